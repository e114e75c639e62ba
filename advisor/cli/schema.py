"""`fusion-advisor schema`: the JSON Schema of what the tool writes, for programs that read it."""

from __future__ import annotations

import click

from advisor.model.schemas import RECORDS, schema_text

NAMES = [name for name, _, _ in RECORDS]


@click.command(epilog=f"NAME is one of: {', '.join(NAMES)}.")
@click.argument("name", metavar="NAME", type=click.Choice(NAMES))
def schema(name: str) -> None:
    """Print the JSON Schema called NAME."""
    click.echo(schema_text(name), nl=False)
