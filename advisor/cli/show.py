"""`fusion-advisor show`: a run or a bare report on the terminal, or as JSON."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Group, RenderableType

from advisor.cli.output import echo
from advisor.model.applied import Applied
from advisor.model.base import load
from advisor.model.report import Report
from advisor.report.applied import render_applied
from advisor.report.terminal import render_next, render_report
from advisor.report.text import heading
from advisor.store import RunDirectory


@click.command()
@click.argument("run", metavar="RUN|report.json", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print report and applied record as JSON.")
def show(run: Path, as_json: bool) -> None:
    """Print the report of RUN, and what has been applied.

    RUN is a run directory, or a report.json by itself.
    """
    report, applied, directory = _read(run)
    if as_json:
        record = {"report": report, "applied": applied}
        click.echo(msgspec.json.format(msgspec.json.encode(record)))
        return
    parts: list[RenderableType] = [render_report(report)]
    if applied is not None:
        parts += [heading("Applied"), render_applied(applied)]
    if directory is not None:
        parts.append(render_next(report, directory, applied=applied is not None))
    echo(Group(*parts))


def _read(run: Path) -> tuple[Report, Applied | None, str | None]:
    """Report, applied record and the name of the run directory, as far as there are any."""
    if run.is_dir():
        stored = RunDirectory.at(run)
        return stored.report(), stored.applied(), str(run)
    return load(run, Report), None, None
