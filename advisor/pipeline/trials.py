"""What `apply` is asked to try, checked before anything is run or written, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.apply.judge import Judgement
from advisor.errors import RefusedError, UsageError
from advisor.model.applied import Comparison
from advisor.model.report import Report
from advisor.model.run import RunInfo
from advisor.pipeline.unfinished import is_incomplete
from advisor.store import RunDirectory, verify
from collectors.live.target import parse_target


@dataclass
class Trial:
    """One variant of a finding: plans to put in together, and what came of it."""

    finding: str
    plan_ids: tuple[str, ...]
    comparison: Comparison | None = None
    judgement: Judgement | None = None
    swapped: dict[str, int] = field(default_factory=dict)

    @property
    def gain_ns(self) -> int:
        """GPU time that the compiled step saved; 0 where nothing was compared."""
        return self.comparison.gain_mid_ns if self.comparison is not None else 0

    @property
    def pays(self) -> bool:
        """Judged worth keeping."""
        return self.judgement is not None and self.judgement.keep


def requested(run: RunDirectory, only: Sequence[str]) -> list[Trial]:
    """What to try in a run, given names of findings or plans, all where there are none.

    Raises `RefusedError` for a run that was copied or edited, `UsageError` for what cannot be
    tried. Needs no torch.
    """
    refusal = verify(run)
    if refusal is not None:
        raise refusal
    _check_target(run.info())
    report = run.report()
    if is_incomplete(report):
        raise RefusedError(
            "the run cannot be applied",
            where=run.id,
            why="its profile did not finish",
            remedy="profile again",
        )
    return trials_of(report, only)


def _check_target(info: RunInfo) -> None:
    """A workload that was given as a file is looked for from where it was profiled."""
    target = parse_target(info.target)
    if target.factory is None:
        raise UsageError(
            "a script cannot be applied to",
            where=info.target,
            why="kernels are put into the model that a factory returns; a script keeps its own",
            remedy="give file.py:factory to profile, or do what the findings say",
        )
    path = Path(info.working_directory, target.file or "")
    if target.file is not None and not path.is_file():
        raise UsageError(
            "the file of the workload is missing",
            where=str(path),
            why="the run was profiled from it",
            remedy="put it back, or profile again",
        )


def trials_of(report: Report, only: Sequence[str]) -> list[Trial]:
    """Variants to try, best finding first, best variant first; `only` names findings or plans.

    Raises `UsageError` for a name that is neither, and for a finding without a generated kernel.
    """
    by_id = {finding.id: finding for finding in report.findings}
    known = {plan.id for plan in report.plans}
    unknown = [name for name in only if name not in by_id and name not in known]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no finding or plan of this run",
            remedy="`fusion-advisor show RUN` lists them",
        )
    trials = []
    for name in only or report.recommended.order:
        if name in known:
            trials.append(Trial(name, (name,)))
            continue
        finding = by_id[name]
        variants = [Trial(name, a.plan_ids) for a in finding.alternatives if a.plan_ids]
        if not variants and finding.plan_id is not None:
            variants = [Trial(name, (finding.plan_id,))]
        if only and not variants:
            raise UsageError(
                f"{name} has no generated kernel to apply", remedy=f"what to do: {finding.action}"
            )
        trials += variants
    return trials


def by_finding(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The variants of each finding, of which one can win."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.finding, []).append(trial)
    return list(found.values())
