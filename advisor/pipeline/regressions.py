"""Two runs of one workload: what lost between them, from the steps that the runs keep."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.model.comparison import ReportComparison
from advisor.model.findings import Finding
from advisor.model.overfusion import Bisection
from advisor.model.report import Report
from advisor.model.step_record import StepRecord
from advisor.store.directory import RunDirectory
from analyzers.overfusion.findings import findings_of
from analyzers.overfusion.judge import judge_pair

NO_STEP = "no step of its launches is kept: give run directories that `profile` or `analyze` wrote"


def step_of_run(path: Path) -> StepRecord | None:
    """The step that a run directory keeps; None for a report by itself, or without a trace."""
    if not path.is_dir():
        return None
    step = RunDirectory.at(path).step()
    return step if step is not None and step.launches else None


def between(before: Path, after: Path) -> tuple[tuple[Finding, ...], Bisection] | str:
    """Regressions and notes of `after` against `before`, and its bisection; or why there are none.

    Raises what reading a run raises.
    """
    steps = step_of_run(before), step_of_run(after)
    for path, step in zip((before, after), steps, strict=True):
        if step is None:
            return f"{path}: {NO_STEP}"
    first, second = steps
    assert first is not None
    assert second is not None
    found = judge_pair(first, second)
    return findings_of(found.verdicts), found.bisection


def explained(comparison: ReportComparison, before: Path, after: Path) -> ReportComparison:
    """The comparison with what lost and what the change is made of; unchanged if not comparable."""
    if not comparison.comparability.comparable:
        return comparison
    found = between(before, after)
    if isinstance(found, str):
        return msgspec.structs.replace(comparison, unpaired=found)
    return msgspec.structs.replace(comparison, regressions=found[0], bisection=found[1])


def with_regressions(report: Report, baseline: Path, path: Path) -> Report:
    """The report with what lost against a baseline among its findings, for the gate."""
    found = between(baseline, path)
    if isinstance(found, str):
        return report
    known = {finding.id for finding in report.findings}
    new = tuple(finding for finding in found[0] if finding.id not in known)
    return msgspec.structs.replace(report, findings=(*report.findings, *new))
