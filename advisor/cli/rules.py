"""`fusion-advisor rules`: what the advisor looks for, with a bad and a good example of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from advisor.cli.output import echo
from advisor.cli.usage import near
from advisor.errors import UsageError
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from advisor.report.rules_document import rule_document, rules_reference, rules_table

if TYPE_CHECKING:
    from analyzers.rules.base import Rule

FORMATS = ("text", "markdown", "html")


@click.command()
@click.argument("rule_id", metavar="[ID]", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
def rules(rule_id: str | None, form: str) -> None:
    """List the rules, or explain the rule ID, or that of the finding ID.

    As Markdown or HTML, without an ID, all rules are explained.
    """
    from analyzers.rules import RULES

    if rule_id is not None:
        document = rule_document(_chosen(rule_id, RULES))
    else:
        document = rules_table(RULES) if form == "text" else rules_reference(RULES)
    if form == "text":
        echo(to_terminal(document))
    elif form == "markdown":
        click.echo(to_markdown(document), nl=False)
    else:
        click.echo(to_html("Rules of the fusion advisor", document), nl=False)


def _chosen(name: str, known: Sequence[Rule]) -> Rule:
    # Ids of findings begin with their rule's, in hyphens throughout.
    begins = f"{name.replace('_', '-')}-"
    found = [rule for rule in known if begins.startswith(f"{rule.id.replace('_', '-')}-")]
    if not found:
        raise UsageError(
            f"there is no rule called {name[:80]!r}",
            remedy=near(name, [rule.id for rule in known]) or "`fusion-advisor rules` lists them",
        )
    return max(found, key=lambda rule: len(rule.id))
