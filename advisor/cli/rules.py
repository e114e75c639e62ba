"""`fusion-advisor rules`: what the advisor looks for, with a bad and a good example of each."""

from __future__ import annotations

import click

from advisor.cli.output import echo
from advisor.cli.usage import near
from advisor.errors import UsageError
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from advisor.report.rules_document import rule_document, rules_reference, rules_table

FORMATS = ("text", "markdown", "html")


@click.command()
@click.argument("rule_id", metavar="[ID]", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
def rules(rule_id: str | None, form: str) -> None:
    """List the rules, or explain the rule ID.

    As Markdown or HTML, without an ID, all rules are explained.
    """
    from analyzers.rules import RULES

    if rule_id is not None:
        # Ids of findings begin with their rule's, in hyphens throughout.
        spelt = rule_id.replace("_", "-")
        chosen = next((rule for rule in RULES if rule.id.replace("_", "-") == spelt), None)
        if chosen is None:
            raise UsageError(
                f"there is no rule called {rule_id[:80]!r}",
                remedy=near(rule_id, [rule.id for rule in RULES])
                or "`fusion-advisor rules` lists them",
            )
        document = rule_document(chosen)
    else:
        document = rules_table(RULES) if form == "text" else rules_reference(RULES)
    if form == "text":
        echo(to_terminal(document))
    elif form == "markdown":
        click.echo(to_markdown(document), nl=False)
    else:
        click.echo(to_html("Rules of the fusion advisor", document), nl=False)
