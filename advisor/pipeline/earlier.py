"""What an earlier application of a run proved, and what a later one makes of it.

Proof holds for a device and the versions it was measured with. What was kept is tried again first,
for everything else is measured beside it; the rest of what is proven stays on record, and takes
nothing of a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from advisor.errors import RefusedError
from advisor.model.actions import ON_COMPILER
from advisor.model.applied import ELSEWHERE, ActionVerdict, Applied, PlanVerdict, is_proof
from advisor.model.attempt import Attempt
from advisor.model.base import Warning_
from advisor.pipeline.trials import KEPT_BEFORE, Trial
from advisor.store import RunDirectory

NOTHING_LEFT = (
    "everything was tried already on this device with these versions: nothing is left for the "
    "budget; without --budget all is tried again"
)
# In the place of the name of a GPU.
NO_DEVICE = "no GPU"
_Verdict = TypeVar("_Verdict", bound=PlanVerdict | ActionVerdict)


def goes_on_from(
    run: RunDirectory, only: Sequence[str], *, limited: bool, attempt: Attempt | None
) -> Applied | None:
    """The earlier application whose verdicts stay: where `only` some are asked for, or time is
    `limited`.

    None where there is none, and where `attempt`, what is left of one, knows all that it proved.
    """
    earlier = run.applied() if only or limited else None
    if earlier is None or only or attempt is None:
        return earlier
    plans = {name for trial in attempt.trials for name in trial.plan_ids}
    plans |= {plan.plan_id for plan in attempt.plans}
    actions = {trial.action for trial in attempt.trials}
    known = all(v.plan_id in plans for v in earlier.plans if is_proof(v)) and all(
        v.kind in actions for v in earlier.actions if is_proof(v)
    )
    return None if known else earlier


def kept_before(earlier: Applied | None) -> list[Trial]:
    """What an earlier application kept: its plans as one trial, and its actions."""
    if earlier is None or earlier.set.verdict != "kept":
        return []
    done = {verdict.kind: verdict for verdict in earlier.actions}
    trials = [
        Trial(
            KEPT_BEFORE,
            action=kind,
            kernel=_kernel_of(done[kind]),
            asked_by=done[kind].finding if kind in ON_COMPILER else None,
            splits=done[kind].splits,
            retuned=done[kind].retuned,
            with_loss=done[kind].with_loss,
        )
        for kind in earlier.set.actions
    ]
    return [*trials, Trial(KEPT_BEFORE, earlier.set.plans)] if earlier.set.plans else trials


def unproven(
    trials: Sequence[Trial],
    earlier: Applied | None,
    device: str,
    versions: Mapping[str, str],
) -> list[Trial]:
    """The trials that the earlier application, on this device with these versions, did not judge.

    Those of what it kept are among the judged: they have a trial of their own.
    """
    if earlier is None or not _holds(earlier, device, versions):
        return list(trials)
    plans = {verdict.plan_id for verdict in earlier.plans if is_proof(verdict)}
    judged = [verdict for verdict in earlier.actions if is_proof(verdict)]
    return [
        trial
        for trial in trials
        if not any(_is_of(verdict, trial) for verdict in judged)
        and not (trial.plan_ids and plans.issuperset(trial.plan_ids))
    ]


def _is_of(verdict: ActionVerdict, trial: Trial) -> bool:
    """Whether a verdict says something of what is to be tried.

    One on the compiler's kernels does of the kernel that it names, or of all, if what it names
    looks at all. Without a name it may be of any one: earlier versions lost the name of what was
    kept.
    """
    if verdict.kind != trial.action:
        return False
    if verdict.kind not in ON_COMPILER:
        return True
    return verdict.finding is not None and _kernel_of(verdict) in ("", trial.kernel)


def _kernel_of(verdict: ActionVerdict) -> str:
    """The one kernel of the compiler that was asked for, `unfuse:KERNEL`; "" where none is named.

    What asked for an action stands in the place of its finding.
    """
    kind, _, kernel = (verdict.finding or "").partition(":")
    return kernel if kind == verdict.kind else ""


def is_nothing_left(
    trials: Sequence[Trial], earlier: Applied | None, device: str, versions: Mapping[str, str]
) -> bool:
    """Whether all that can be tried on this device has been; actions need a GPU."""
    if earlier is None or not _holds(earlier, device, versions):
        return False
    new = [trial for trial in trials if trial.finding != KEPT_BEFORE]
    return not [trial for trial in new if trial.plan_ids or device != NO_DEVICE]


def proven_elsewhere(applied: Applied, earlier: Applied | None) -> Applied | None:
    """The earlier record, where this application found out nothing that could take its place.

    It is of another device or other versions, and says so: it is no proof for these.
    """
    if earlier is None or _holds(earlier, applied.device, applied.versions):
        return None
    if not is_left_open(applied, earlier):
        return None
    here, there = _differences(applied, earlier)
    message = (
        f"nothing was found out on {here}: {applied.set.reason}. What stands here was measured on "
        f"{there} and is no proof for {here}; it stays until something is, or until "
        "`fusion-advisor revert`"
    )
    others = tuple(w for w in earlier.warnings if w.code != ELSEWHERE)
    return replace(earlier, warnings=(*others, Warning_(code=ELSEWHERE, message=message)))


def _differences(applied: Applied, earlier: Applied) -> tuple[str, str]:
    """This device and the earlier one, each with the versions that differ."""
    names = sorted({*applied.versions, *earlier.versions})
    differ = [n for n in names if applied.versions.get(n) != earlier.versions.get(n)]

    def told(one: Applied) -> str:
        found = ", ".join(f"{name} {one.versions.get(name, 'none')}" for name in differ)
        return f"{one.device} with {found}" if found else one.device

    return told(applied), told(earlier)


def is_left_open(applied: Applied, earlier: Applied) -> bool:
    """Whether what was kept, or measured on a GPU, was not judged again."""
    if earlier.set.verdict != "kept":
        new = applied.set.verdict == "not_measured" and applied.device != NO_DEVICE
        return new and earlier.set.verdict == "reverted"
    verdicts: tuple[PlanVerdict | ActionVerdict, ...] = (*applied.plans, *applied.actions)
    untried = {_name(verdict) for verdict in verdicts if not is_proof(verdict)}
    is_untried = not untried.isdisjoint((*earlier.set.plans, *earlier.set.actions))
    return applied.set.verdict == "not_measured" or (applied.set.verdict != "kept" and is_untried)


def with_earlier(applied: Applied, earlier: Applied | None) -> Applied:
    """The record with the verdicts on what only the earlier application tried, or came to judge.

    They hold for the device and the versions they were measured with.
    """
    if earlier is None or not _holds(earlier, applied.device, applied.versions):
        return applied
    joined = replace(
        applied,
        plans=_joined(applied.plans, earlier.plans),
        actions=_joined(applied.actions, earlier.actions),
    )
    if _is_decided(applied, earlier):
        return joined
    return replace(
        joined,
        set=earlier.set,
        metrics_before=earlier.metrics_before,
        metrics_after=earlier.metrics_after,
    )


def _holds(earlier: Applied, device: str, versions: Mapping[str, str]) -> bool:
    return (earlier.device, earlier.versions) == (device, dict(versions))


def _is_decided(applied: Applied, earlier: Applied) -> bool:
    """Whether the set is what was found out now: measured, with whatever was kept before.

    Without a GPU nothing is: what was not measured before is not measured still.
    """
    if applied.device == NO_DEVICE:
        return earlier.set.verdict != "not_measured"
    return applied.set.verdict != "not_measured" and not is_left_open(applied, earlier)


def _joined(now: Sequence[_Verdict], before: Sequence[_Verdict]) -> tuple[_Verdict, ...]:
    """The verdicts of `now`, proof from before in the place of none, then all others."""
    known = {_name(verdict): verdict for verdict in before}
    merged = [v if is_proof(v) else known.get(_name(v), v) for v in now]
    tried = {_name(verdict) for verdict in now}
    return (*merged, *(verdict for verdict in before if _name(verdict) not in tried))


def _name(verdict: PlanVerdict | ActionVerdict) -> str:
    return verdict.plan_id if isinstance(verdict, PlanVerdict) else verdict.kind


def refuse_to_forget(run: RunDirectory) -> None:
    """Without a GPU nothing can be judged: the record of what was kept with one would be lost."""
    applied = run.applied()
    if applied is not None and applied.set.verdict == "kept":
        raise RefusedError(
            "what was kept cannot be judged again without a GPU",
            where=run.id,
            why=f"it was measured on {applied.device}",
            remedy="apply where that GPU is, or `fusion-advisor revert` it first",
        )
