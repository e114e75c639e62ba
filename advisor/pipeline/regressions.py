"""Two runs of one workload: what lost between them, from the steps that the runs keep."""

from __future__ import annotations

from pathlib import Path
from statistics import quantiles

import msgspec

from advisor.model.base import Range
from advisor.model.comparison import Comparability, ReportComparison
from advisor.model.findings import Finding
from advisor.model.overfusion import Bisection
from advisor.model.report import Report
from advisor.model.step_record import StepRecord
from advisor.report.compare_work import comparability
from advisor.store.directory import RunDirectory
from analyzers.overfusion.findings import findings_of
from analyzers.overfusion.judge import judge_pair, judge_times

FEWEST_STEPS = 4
NO_STEP = "no step of its launches is kept: give run directories that `profile` or `analyze` wrote"
NO_LAUNCHES = "no launches of a GPU were recorded in it: profile it where there is one"
NO_TRACE = "its launches were recorded, but the trace is not in the directory: profile it again"
# What makes the same fusion take another time.
OTHER_WORK = ("gpu", "device_present", "shapes", "work", "world_size")


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
            return f"{path}: {_why_no_step(path)}"
    first, second = steps
    assert first is not None
    assert second is not None
    found = judge_pair(first, second)
    return findings_of(found.verdicts), found.bisection


def _why_no_step(path: Path) -> str:
    if not path.is_dir():
        return NO_STEP
    recorded = RunDirectory.at(path).report().metrics.get("kernel_launches_per_step")
    return NO_LAUNCHES if recorded is None or not recorded.value else NO_TRACE


def by_step(before: Report, after: Report) -> tuple[Finding, ...]:
    """The compiler's fusions as a whole, by the clean step: where no launches were recorded.

    Only an eager run against a compiled one says anything of fusing; the middle half of the steps
    of each must be known.
    """
    if (before.workload.mode, after.workload.mode) != ("eager", "compile"):
        return ()
    times = [_steps(report) for report in (before, after)]
    if None in times:
        return ()
    members, fused = times
    assert members is not None
    assert fused is not None
    return findings_of([judge_times("the compiled step", fused, members)])


def _steps(report: Report) -> Range | None:
    metric = report.metrics.get("step_ns")
    known = [] if metric is None else [round(v) for v in metric.per_step if v is not None]
    if len(known) < FEWEST_STEPS:
        return None
    low, middle, high = quantiles(known, n=4)
    return Range(low=round(low), mid=round(middle), high=round(high))


def explained(
    comparison: ReportComparison, before: tuple[Path, Report], after: tuple[Path, Report]
) -> ReportComparison:
    """The comparison with what lost and what the change is made of; unchanged if not comparable.

    Where other work, or another device, was accepted, times do not tell whether fusing hurt.
    """
    if not comparison.comparability.comparable:
        return comparison
    other = _other_work(comparison.comparability)
    if other:
        return msgspec.structs.replace(comparison, unpaired=f"the two differ in {', '.join(other)}")
    found = between(before[0], after[0])
    if isinstance(found, str):
        whole = by_step(before[1], after[1])
        return msgspec.structs.replace(comparison, unpaired=found, regressions=whole)
    return msgspec.structs.replace(comparison, regressions=found[0], bisection=found[1])


def _other_work(found: Comparability) -> list[str]:
    return [c.name for c in found.checks if c.outcome == "differ" and c.name in OTHER_WORK]


def with_regressions(
    report: Report, path: Path, baseline: Report, baseline_path: Path
) -> tuple[Report, str]:
    """For the gate: the report with what lost against a baseline; why nobody can tell, else empty.

    Raises what reading a run raises.
    """
    other = _other_work(comparability(baseline, report))
    if other:
        return report, f"the two differ in {', '.join(other)}"
    found = between(baseline_path, path)
    lost = by_step(baseline, report) if isinstance(found, str) else found[0]
    known = {finding.id for finding in report.findings}
    new = tuple(finding for finding in lost if finding.id not in known)
    why = found if isinstance(found, str) and not lost else ""
    return msgspec.structs.replace(report, findings=(*report.findings, *new)), why
