"""The record that each plan keeps of what was tried: its verdict, its reason and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec.structs import replace

from advisor.apply.graph.records import Rewritten
from advisor.apply.judge import Judgement
from advisor.model.actions import ON_COMPILER, REPLACES, ActionKind, facts_of
from advisor.model.applied import (
    UNTRIED,
    ActionVerdict,
    Comparison,
    PlanVerdict,
    SetVerdict,
    Timing,
    Verdict,
)
from advisor.model.plan import FusionPlan
from advisor.model.served import sizes_served
from advisor.model.site_work import site_bytes
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.graph_sites import became, nothing_in, places_in
from advisor.pipeline.trials import KEPT_BEFORE, Trial, of_actions
from analyzers.prediction import MEASURED_BASIS
from collectors.live.recorder import TRACED_STEPS

# Of what a finding calls for and is no change of captured graphs.
ACTION_NOT_TRIED = "tried on a GPU only: without one nothing was looked for or changed"


def verdict_of(
    item: Candidate, trials: Sequence[Trial], result: SetVerdict, mode: str
) -> PlanVerdict:
    """A plan's record: refused, kept with the set, or taken out for the reason of its best trial.

    Some trial has the plan. `mode` is what the workload ran as when its prices were taken.
    """
    plan = item.plan
    its_own = (t for t in trials if plan.id in t.plan_ids)
    best = max(its_own, key=lambda trial: (plan.id not in trial.absent, trial.gain_ns))
    absent = plan.id in best.absent
    rivals = {p for t in trials if t.finding == best.finding for p in t.plan_ids}
    verdict, reason = _judged(item, best, result, rivals)
    tried = best.judgement is not None and best.judgement.tried
    others = len({*best.plan_ids} - best.absent.keys()) - 1 if tried and not absent else 0
    return PlanVerdict(
        plan_id=plan.id,
        title=plan.title,
        verdict=verdict,
        reason=f"{reason} (together with {others} more)" if others else reason,
        sites_expected=len(plan.sites),
        sites_swapped=best.swapped.get(plan.id),
        predicted_ns=plan.prediction.saving_ns if plan.prediction else None,
        modelled_ns=plan.prediction.modelled_saving_ns if plan.prediction else None,
        replaced_ns=plan.prediction.before_ns.mid if plan.prediction else None,
        measured=_like_for_like(item, best, mode),
        region=None if absent else best.comparison,
        launch=item.config,
        serves=sizes_served(plan),
        numerics=item.numerics,
        resources=item.resources,
        timings=tuple(item.timings),
        votes=best.votes,
    )


def action_verdicts(trials: Sequence[Trial], result: SetVerdict) -> tuple[ActionVerdict, ...]:
    """The records of all actions that were looked at, those that do not apply with the reason."""
    found = []
    for trial in of_actions(trials):
        judgement = trial.judgement
        if trial.action is None or judgement is None:
            continue
        facts = facts_of(trial.action)
        found.append(
            ActionVerdict(
                kind=trial.action,
                title=facts.title,
                verdict=_action_verdict(trial, judgement, result),
                reason=_action_reason(trial, judgement, result),
                applies=judgement.applies,
                finding=_finding_of(trial),
                step=trial.step,
                gpu_time=trial.comparison,
                sites=trial.swapped.get(trial.action),
                details=trial.details,
                pool_bytes=trial.pool_bytes,
                peak_memory_before_bytes=trial.peak_bytes and trial.peak_bytes[0],
                peak_memory_after_bytes=trial.peak_bytes and trial.peak_bytes[1],
                by_hand=facts.by_hand,
                votes=trial.votes,
                splits=trial.splits,
                retuned=trial.retuned,
                with_loss=trial.with_loss,
            )
        )
    return tuple(found)


def seen_actions(
    trials: Sequence[Trial],
    seen: Mapping[ActionKind, Sequence[Rewritten]],
    reason: str,
    *,
    named: bool = False,
) -> tuple[ActionVerdict, ...]:
    """The records of actions that were not timed, for a reason.

    Those on graphs were looked at; of the others, only those that a finding calls for are told, or
    that somebody asked for, if all are `named`.
    """
    found = []
    for trial in of_actions(trials):
        kind = trial.action
        assert kind is not None
        if kind in seen or named or trial.finding != kind:
            found.append(_seen_action(trial, kind, seen.get(kind), reason))
    return tuple(found)


def _finding_of(trial: Trial) -> str | None:
    """The finding that calls for an action; one that was kept before, or asked for, has none.

    In its place stands what was asked for of the compiler's kernels, `unfuse` or `unfuse:KERNEL`,
    and of those that were kept before what their record names: one kernel is no proof of others.
    """
    if trial.finding == KEPT_BEFORE:
        return trial.asked_by
    asked = trial.finding == trial.action and trial.action not in ON_COMPILER
    return None if asked else trial.finding


def _seen_action(
    trial: Trial, kind: ActionKind, sites: Sequence[Rewritten] | None, reason: str
) -> ActionVerdict:
    """The record of one of them; `sites` are the places that were looked at, if any were."""
    facts = facts_of(kind)
    bare = ActionVerdict(
        kind=kind,
        title=facts.title,
        verdict="not_measured",
        reason=ACTION_NOT_TRIED,
        finding=_finding_of(trial),
        by_hand=facts.by_hand,
    )
    if sites is None:
        return bare
    why = nothing_in(kind, sites)
    return replace(
        bare,
        verdict="refused" if why else "not_measured",
        reason=why or reason,
        applies=not why,
        sites=places_in(sites),
        details=tuple(became(item) for item in sites),
        with_loss=any(item.with_loss for item in sites),
    )


def _action_verdict(trial: Trial, judgement: Judgement, result: SetVerdict) -> Verdict:
    if trial.action in result.actions:
        return "kept"
    if not judgement.tried:
        return "not_measured"
    return "reverted" if judgement.applies and trial.step is not None else "refused"


def _action_reason(trial: Trial, judgement: Judgement, result: SetVerdict) -> str:
    """Why it was kept or not: what pays by itself may still be taken out, for a reason of the set.

    It goes where what replaces it comes, as graphs of the parts where one of the whole step does.
    """
    if not judgement.keep or trial.action in result.actions:
        return judgement.reason
    for other in result.actions:
        if REPLACES.get(other) == trial.action:
            return f"{facts_of(other).title} took its place"
    return _outvoted(result)


def _judged(
    item: Candidate, best: Trial, result: SetVerdict, rivals: Set[str]
) -> tuple[Verdict, str]:
    """The verdict on a plan and the reason; `rivals` are all plans of its finding."""
    if item.refused is not None:
        return "refused", item.refused
    if best.judgement is None or not best.judgement.tried:
        return "not_measured", best.judgement.reason if best.judgement else UNTRIED
    reason = best.judgement.reason
    if item.plan.id in best.absent:
        return "refused", best.absent[item.plan.id]
    if item.plan.id in result.plans:
        return "kept", reason
    if best.pays:
        outdone = rivals & set(result.plans)
        text = "another variant of the same finding saved more" if outdone else _outvoted(result)
        return "reverted", text
    return "reverted" if best.comparison is not None else "refused", reason


def _outvoted(result: SetVerdict) -> str:
    """Why something that pays beside its predecessors is not in what is left at the end."""
    if result.verdict == "kept":
        return "it paid by itself, but the set that holds it did not; the set kept is without it"
    return f"it paid by itself, but the set that holds it did not: {result.reason}"


def _like_for_like(item: Candidate, best: Trial, mode: str) -> Comparison | None:
    """What was predicted, measured: eager's kernels or, compiled, the step without and with it."""
    if mode != "eager":
        alone = [name for name in best.plan_ids if name not in best.absent] == [item.plan.id]
        return best.comparison if alone else None
    prediction = item.plan.prediction
    if prediction is None or prediction.basis != MEASURED_BASIS or not item.timings:
        return None
    before = Timing(
        median_ns=prediction.before_ns.mid,
        low_ns=prediction.before_ns.low,
        high_ns=prediction.before_ns.high,
        samples=TRACED_STEPS,
    )
    # As in the model, where what was just written lies in cache if it fits: so does the prediction.
    timed = item.timings[0]
    after = _at_all_sites(item.plan, timed.kernel_warm or timed.kernel)
    return Comparison(
        before=before,
        after=after,
        gain_low_ns=before.low_ns - after.high_ns,
        gain_mid_ns=before.median_ns - after.median_ns,
        gain_high_ns=before.high_ns - after.low_ns,
        clock="kernel",
    )


def _at_all_sites(plan: FusionPlan, timing: Timing) -> Timing:
    """The first site's time for all sites, in proportion to the bytes that each moves."""
    moved = sum(site_bytes(plan, site) * site.executions for site in plan.sites)
    factor = moved / max(site_bytes(plan, plan.sites[0]), 1)
    return Timing(
        median_ns=round(timing.median_ns * factor),
        low_ns=round(timing.low_ns * factor),
        high_ns=round(timing.high_ns * factor),
        samples=timing.samples,
    )
