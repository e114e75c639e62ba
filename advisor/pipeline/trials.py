"""What `apply` is asked to try, checked before anything is run or written, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.apply.judge import Judgement
from advisor.errors import RefusedError, UsageError
from advisor.model.actions import ACTIONS, ANSWERS, ON_COMPILER, ActionKind
from advisor.model.applied import Comparison, RankVote
from advisor.model.cures import Retuned, Split
from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.model.run import RunInfo
from advisor.pipeline.unfinished import is_incomplete
from advisor.report.words import named
from advisor.store import RunDirectory, verify
from collectors.live.target import parse_target, workload_gone

# In place of a finding: what an earlier application kept, and a later one starts from.
KEPT_BEFORE = "kept before"
KINDS: tuple[ActionKind, ...] = tuple(item.kind for item in ACTIONS)


@dataclass
class Trial:
    """One thing to try, plans to put in together or an action, and what came of it.

    `comparison` is of GPU time, `step` (actions only) of the whole step, `peak_bytes` (actions
    only) its peaks of memory without and with it; `votes` are those of all ranks of a job of
    several. Plans that are `absent` had no site beside what was kept then, for a reason each. Of
    kernels of the compiler, `kernel` is the part of their names that was asked for,
    `splits` and `retuned` what was chosen for them; where they were kept before, `asked_by` is what
    their record names, None where it names nothing. `with_loss`: the action needs the loss
    compiled with its model.
    """

    finding: str
    plan_ids: tuple[str, ...] = ()
    action: ActionKind | None = None
    comparison: Comparison | None = None
    step: Comparison | None = None
    judgement: Judgement | None = None
    swapped: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    pool_bytes: int | None = None
    peak_bytes: tuple[int, int] | None = None
    votes: tuple[RankVote, ...] = ()
    kernel: str = ""
    asked_by: str | None = None
    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()
    with_loss: bool = False

    @property
    def label(self) -> str:
        """What tells it from all others of an application."""
        return f"{self.finding}: {self.action or ' '.join(self.plan_ids)}"

    @property
    def gain_ns(self) -> int:
        """GPU time that the compiled step saved, on the rank where it saved least.

        0 where nothing was compared.
        """
        gains = [vote.gpu_time.gain_mid_ns for vote in self.votes if vote.gpu_time is not None]
        if gains:
            return min(gains)
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
        raise workload_gone(path)


def trials_of(report: Report, only: Sequence[str]) -> list[Trial]:
    """What to try, best finding first, best variant first.

    `only` names findings, by id or by the number that `show` prints, plans or actions, each once;
    without it every action is tried too, where it applies, but those on the compiler's own kernels
    only where a finding asks for them: they compile much.
    Raises `UsageError` for another name, and for a finding that nothing here answers.
    """
    findings = named(report)
    plans = {plan.id for plan in report.plans}
    asked = dict.fromkeys(
        findings[name].id if name in findings and name not in plans else name for name in only
    )
    trials = []
    for name in asked or report.recommended.order:
        if name in plans:
            trials.append(Trial(name, (name,)))
        elif name in KINDS:
            trials.append(Trial(name, action=name))
        elif kind := _of_kernels(name):
            trials.append(Trial(name, action=kind, kernel=name.partition(":")[2]))
        elif name in findings:
            trials += _answers(findings[name], strict=bool(only))
        else:
            raise UsageError(
                f"{name!r} is no finding or plan of this run, and no action",
                remedy=f"`fusion-advisor show RUN` lists them; actions: {', '.join(KINDS)}",
            )
    if not only:
        tried = {trial.action for trial in trials} | {*ON_COMPILER}
        trials += [Trial(kind, action=kind) for kind in KINDS if kind not in tried]
    return trials


def _of_kernels(name: str) -> ActionKind | None:
    """The action of `unfuse:KERNEL` or `retune:KERNEL`."""
    return next((kind for kind in ON_COMPILER if name.startswith(f"{kind}:")), None)


def _answers(finding: Finding, *, strict: bool) -> list[Trial]:
    """The plans of a finding, each variant of them, and the actions that its rule calls for."""
    trials = [Trial(finding.id, a.plan_ids) for a in finding.alternatives if a.plan_ids]
    if not trials and finding.plan_id is not None:
        trials = [Trial(finding.id, (finding.plan_id,))]
    trials += [Trial(finding.id, action=kind) for kind in ANSWERS.get(finding.rule, ())]
    if strict and not trials:
        raise UsageError(
            f"{finding.id} has no generated kernel to apply, and no action answers it",
            remedy=f"what to do: {finding.action}",
        )
    return trials


def by_finding(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The variants of plans of each finding, of which one can win."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.plan_ids:
            found.setdefault(trial.finding, []).append(trial)
    return list(found.values())


def of_actions(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of actions in the order in which actions are done, each kind once."""
    first = {trial.action: trial for trial in reversed(trials) if trial.action is not None}
    return [first[kind] for kind in KINDS if kind in first]


def beside(trials: Sequence[Trial], first: Trial) -> list[Trial]:
    """What else is asked for of the compiler's kernels than the first trial of the kind looks at.

    What was kept before looks at nothing new.
    """
    if first.action not in ON_COMPILER:
        return []
    is_new = first.kernel or first.finding != KEPT_BEFORE
    seen, found = {first.kernel} if is_new else set(), []
    for trial in trials:
        if trial is not first and trial.action == first.action and trial.kernel not in seen:
            seen.add(trial.kernel)
            found.append(trial)
    return found


def take_up(first: Trial, more: Trial) -> None:
    """Put what came of a trial `beside` the first into the first: both are one action.

    A trial that pays holds what the first has chosen too, and was compared with the step without.
    """
    if more.judgement is None or not more.judgement.tried:
        return
    if more.pays:
        first.judgement, first.comparison, first.step = more.judgement, more.comparison, more.step
        first.splits, first.retuned, first.votes = more.splits, more.retuned, more.votes
        first.pool_bytes, first.peak_bytes = more.pool_bytes, more.peak_bytes
    first.details = (*first.details, *(more.details or (more.judgement.reason,)))
    if first.kernel or (first.finding == KEPT_BEFORE and first.asked_by is None):
        first.finding, first.kernel = more.finding, more.kernel
