"""The record that each plan keeps of what was tried: its verdict, its reason and its figures."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.apply.judge import Judgement
from advisor.model.actions import facts_of
from advisor.model.applied import (
    ActionVerdict,
    Comparison,
    PlanVerdict,
    SetVerdict,
    Timing,
    Verdict,
)
from advisor.model.plan import FusionPlan
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.trials import Trial, of_actions
from analyzers.program_cost import site_bytes
from analyzers.variants import MEASURED_BASIS
from collectors.live.recorder import TRACED_STEPS


def verdict_of(
    item: Candidate, trials: Sequence[Trial], result: SetVerdict, mode: str
) -> PlanVerdict:
    """A plan's record: refused, kept with the set, or taken out for the reason of its best trial.

    Some trial has the plan. `mode` is what the workload ran as when its prices were taken.
    """
    plan = item.plan
    best = max((t for t in trials if plan.id in t.plan_ids), key=lambda trial: trial.gain_ns)
    verdict, reason = _judged(item, best, result)
    others = len(best.plan_ids) - 1
    return PlanVerdict(
        plan_id=plan.id,
        title=plan.title,
        verdict=verdict,
        reason=f"{reason} (together with {others} more)" if others else reason,
        sites_expected=len(plan.sites),
        sites_swapped=best.swapped.get(plan.id),
        predicted_ns=plan.prediction.saving_ns if plan.prediction else None,
        measured=_like_for_like(item, best, mode),
        region=best.comparison,
        launch=item.config,
        numerics=item.numerics,
        resources=item.resources,
        timings=tuple(item.timings),
    )


def action_verdicts(trials: Sequence[Trial], result: SetVerdict) -> tuple[ActionVerdict, ...]:
    """The records of all actions tried; one that nobody asked for and that does not apply has none.

    An action that was asked for through a finding says why it does not apply.
    """
    found = []
    for trial in of_actions(trials):
        judgement = trial.judgement
        asked = trial.finding != trial.action
        if trial.action is None or judgement is None or not (judgement.applies or asked):
            continue
        facts = facts_of(trial.action)
        found.append(
            ActionVerdict(
                kind=trial.action,
                title=facts.title,
                verdict=_action_verdict(trial, judgement, result),
                reason=judgement.reason,
                finding=trial.finding if asked else None,
                step=trial.step,
                gpu_time=trial.comparison,
                sites=trial.swapped.get(trial.action),
                details=trial.details,
                pool_bytes=trial.pool_bytes,
                by_hand=facts.by_hand,
            )
        )
    return tuple(found)


def _action_verdict(trial: Trial, judgement: Judgement, result: SetVerdict) -> Verdict:
    if trial.action in result.actions:
        return "kept"
    return "reverted" if judgement.applies and trial.step is not None else "refused"


def _judged(item: Candidate, best: Trial, result: SetVerdict) -> tuple[Verdict, str]:
    reason = best.judgement.reason if best.judgement is not None else "it was not tried"
    if item.refused is not None:
        return "refused", item.refused
    if item.plan.id in result.plans:
        return "kept", reason
    if best.pays:
        outdone = "another variant of the same finding saved more"
        return "reverted", outdone if result.plans else result.reason
    return "reverted", reason


def _like_for_like(item: Candidate, best: Trial, mode: str) -> Comparison | None:
    """What was predicted, measured: eager's kernels or, compiled, the step without and with it."""
    if mode != "eager":
        return best.comparison if len(best.plan_ids) == 1 else None
    prediction = item.plan.prediction
    if prediction is None or prediction.basis != MEASURED_BASIS or not item.timings:
        return None
    before = Timing(
        median_ns=prediction.before_ns.mid,
        low_ns=prediction.before_ns.low,
        high_ns=prediction.before_ns.high,
        samples=TRACED_STEPS,
    )
    after = _at_all_sites(item.plan, item.timings[0].kernel)
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
