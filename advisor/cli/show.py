"""`fusion-advisor show`: a run or a bare report as text, Markdown, one HTML file, or JSON."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Group, RenderableType

from advisor.cli.output import echo, echo_json
from advisor.cli.reports import read_run
from advisor.model.applied import Applied
from advisor.model.report import Report
from advisor.report.applied import render_applied
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.report_document import report_document
from advisor.report.terminal import render_next, render_report
from advisor.report.text import heading
from analyzers.demangle import short_name

FORMATS = ("text", "markdown", "html", "json")


@click.command()
@click.argument("run", metavar="RUN|report.json", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def show(run: Path, form: str, as_json: bool) -> None:
    """Print the report of RUN, and what has been applied.

    RUN is a run directory, or a report.json by itself. HTML is one file that loads nothing:
    redirect it and open or mail it.
    """
    report, applied, directory = read_run(run)
    if as_json or form == "json":
        record = {"report": report, "applied": applied}
        echo_json(msgspec.json.format(msgspec.json.encode(record)))
    elif form == "text":
        _terminal(report, applied, directory)
    else:
        document = report_document(report, applied, short_name)
        title = f"{report.workload.target}: fusion advice"
        text = to_markdown(document) if form == "markdown" else to_html(title, document)
        click.echo(text, nl=False)


def _terminal(report: Report, applied: Applied | None, directory: str | None) -> None:
    parts: list[RenderableType] = [render_report(report)]
    if applied is not None:
        parts += [heading("Applied"), render_applied(applied)]
    if directory is not None:
        parts.append(render_next(report, directory, applied))
    echo(Group(*parts))
