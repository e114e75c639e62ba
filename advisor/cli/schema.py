"""`fusion-advisor schema`: the JSON Schema of what the tool writes, for programs that read it."""

from __future__ import annotations

import click

from advisor.model.schemas import RECORDS, schema_text


@click.command()
@click.argument("name", type=click.Choice([name for name, _, _ in RECORDS]))
def schema(name: str) -> None:
    """Print the JSON Schema called NAME."""
    click.echo(schema_text(name), nl=False)
