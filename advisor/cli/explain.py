"""`fusion-advisor explain`: one finding of a run in full."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path

import click

from advisor.cli.output import echo
from advisor.cli.reports import read_run
from advisor.errors import UsageError
from advisor.model.base import Location
from advisor.model.findings import Finding
from advisor.model.plan import FusionPlan
from advisor.model.report import Report
from advisor.report.explain import render_explanation
from advisor.report.words import named, ranked
from advisor.store import RunDirectory


@click.command()
@click.argument("run", metavar="RUN|report.json", type=click.Path(path_type=Path))
@click.argument("finding", metavar="FINDING")
def explain(run: Path, finding: str) -> None:
    """Print everything that is known of FINDING: its id, its plan's id, or its number in `show`.

    What runs today, the program that would take its place line by line, its bytes and the least
    time they take, every place with its source line, the other ways with their prices, and why the
    neighbours stay out.
    """
    report, _, directory = read_run(run)
    found = _chosen(report, finding)
    stored = RunDirectory.at(run) if directory is not None else None
    plans = _plans(stored, found)
    base = (
        Path(stored.info().working_directory) if stored is not None and _has_info(stored) else None
    )
    echo(render_explanation(report, found, plans, lambda place: _source(place, base)))


def _chosen(report: Report, name: str) -> Finding:
    by_plan = {f.plan_id: f for f in reversed(ranked(report))}
    found = named(report).get(name) or by_plan.get(name)
    if found is None:
        raise UsageError(
            f"{name!r} is no finding of this run",
            remedy="`fusion-advisor show` lists them; give an id or a number",
        )
    return found


def _plans(run: RunDirectory | None, finding: Finding) -> Sequence[FusionPlan]:
    """The plans of a finding, the one it shows first; none for a report by itself."""
    names = [finding.plan_id, *(name for way in finding.alternatives for name in way.plan_ids)]
    if run is None:
        return ()
    return [run.plan(name) for name in dict.fromkeys(names) if name is not None]


def _has_info(run: RunDirectory) -> bool:
    return (run.path / "run.json").is_file()


def _source(place: Location, base: Path | None) -> str | None:
    """The line of a place, where its file can be read from here or from where it was profiled."""
    if not place.file or place.line is None:
        return None
    for path in (Path(place.file), *([base / place.file] if base is not None else [])):
        text = linecache.getline(str(path), place.line).strip()
        if text:
            return text
    return None
