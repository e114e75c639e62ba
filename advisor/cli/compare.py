"""`fusion-advisor compare`: what changed between two runs of the same work."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.output import echo, echo_json
from advisor.cli.reports import read_report
from advisor.errors import EXIT_OK, EXIT_UNREADABLE
from advisor.model.base import encode
from advisor.model.comparison import ReportComparison
from advisor.pipeline.regressions import explained
from advisor.report.compare import compare_reports
from advisor.report.compare_document import comparison_document
from advisor.report.compare_work import CHECKS
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from analyzers.demangle import short_name

FORMATS = ("text", "markdown", "html", "json")


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--accept",
    multiple=True,
    metavar="CHECK",
    help=f"Compare although this differs; may be repeated. One of: {', '.join(CHECKS)}.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.pass_context
def compare(
    ctx: click.Context, before: Path, after: Path, accept: tuple[str, ...], form: str
) -> None:
    """Say what changed from A to B: run directories or report.json files.

    Of run directories it also says which fused kernels lost against what they replaced and why, and
    what the change of the step is made of.

    Exit code 0 if the two are of the same work, 3 if they are not: then every reason is listed and
    no figure is compared.
    """
    first, second = read_report(before), read_report(after)
    comparison = compare_reports(first, second, (str(before), str(after)), accept)
    comparison = explained(comparison, (before, first), (after, second))
    show_comparison(comparison, form)
    ctx.exit(EXIT_OK if comparison.comparability.comparable else EXIT_UNREADABLE)


def show_comparison(comparison: ReportComparison, form: str) -> None:
    """Print a comparison in one of `FORMATS`."""
    document = comparison_document(comparison, short_name)
    if form == "json":
        echo_json(encode(comparison))
    elif form == "text":
        echo(to_terminal(document))
    elif form == "markdown":
        click.echo(to_markdown(document), nl=False)
    else:
        title = f"{comparison.before.label} → {comparison.after.label}"
        click.echo(to_html(title, document), nl=False)
