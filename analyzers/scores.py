"""How well predictions did: every plan that was measured, kept or not, and what that teaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from advisor.hardware.learned import (
    FEWEST_PLANS,
    LARGEST_RESIDUAL,
    SMALLEST_HALF,
    residual_of,
    time_at,
)
from advisor.model.applied import Applied, Comparison, PlanVerdict
from advisor.model.base import Range
from advisor.model.scores import HeldOut, PlanScore, ResidualQuantiles, Scores

# One plan of so many lies beyond each end of an 80 % interval.
_ONE_BEYOND_OF = 10


def score(applications: Iterable[tuple[str, Applied | None]]) -> Scores:
    """Scores of (run, its applied.json); None where nothing was applied."""
    plans: list[PlanScore] = []
    without = 0
    for run, applied in applications:
        found = [] if applied is None else _of_run(run, applied)
        plans += found
        without += not found
    if not plans:
        return Scores(plans=(), runs_without=without)
    return Scores(
        plans=tuple(plans),
        median_error=_median(item.error for item in plans),
        coverage=sum(item.inside for item in plans) / len(plans),
        residuals=residual_quantiles(_residuals(plans)),
        held_out=held_out(plans),
        runs_without=without,
    )


def _of_run(run: str, applied: Applied) -> list[PlanScore]:
    return [
        _score(run, applied.device, verdict, verdict.predicted_ns, verdict.measured)
        for verdict in applied.plans
        if verdict.predicted_ns is not None and verdict.measured is not None
    ]


def _score(
    run: str, gpu: str, verdict: PlanVerdict, predicted: Range, measured: Comparison
) -> PlanScore:
    before = verdict.replaced_ns
    if before is None and measured.clock == "kernel":  # else it is the whole step
        before = measured.before.median_ns
    gain = measured.gain_mid_ns
    modelled = verdict.modelled_ns or predicted
    product = verdict.launch is not None and verdict.launch.scheme == "gemm"
    return PlanScore(
        run=run,
        plan_id=verdict.plan_id,
        title=verdict.title,
        gpu=gpu,
        kept=verdict.verdict == "kept",
        predicted_ns=predicted,
        modelled_ns=modelled,
        measured_ns=Range(low=measured.gain_low_ns, mid=gain, high=measured.gain_high_ns),
        before_ns=before,
        error=abs(predicted.mid - gain) / before if before else None,
        residual=None if product else residual_of(_negative(modelled), -gain),
        inside=predicted.low <= gain <= predicted.high,
    )


def _negative(saving: Range) -> Range:
    """What is left, but for a constant: saving = before - after, where before is one figure."""
    return Range(low=-saving.high, mid=-saving.mid, high=-saving.low)


def residual_quantiles(residuals: Iterable[float]) -> ResidualQuantiles | None:
    """What past residuals say of the next plan's; None if they are too few.

    The ends are the k-th smallest and the k-th largest, k = floor((n + 1) / 10): if the next plan
    is exchangeable with these n, it lies beyond either with a probability of at most k / (n + 1),
    whatever the distribution (split conformal prediction with a side each: Vovk, Gammerman, Shafer,
    Algorithmic Learning in a Random World, 2005; Romano, Patterson, Candès, Conformalized Quantile
    Regression, 2019, theorem 2).
    """
    bound = LARGEST_RESIDUAL
    ordered = sorted(min(max(residual, -bound), bound) for residual in residuals)
    if len(ordered) < FEWEST_PLANS:
        return None
    beyond = (len(ordered) + 1) // _ONE_BEYOND_OF
    inner = bound - SMALLEST_HALF
    mid = min(max(median(ordered), -inner), inner)
    return ResidualQuantiles(
        low=min(ordered[beyond - 1], mid - SMALLEST_HALF),
        mid=mid,
        high=max(ordered[-beyond], mid + SMALLEST_HALF),
    )


def held_out(plans: Sequence[PlanScore]) -> HeldOut | None:
    """Each run by what all others teach, as plans of one run are alike; None if they are too few.

    Plans without a residual are left out.
    """
    inside: list[bool] = []
    errors: list[float | None] = []
    for run in dict.fromkeys(item.run for item in plans):
        learned = residual_quantiles(_residuals(item for item in plans if item.run != run))
        if learned is None:
            return None
        for item in plans:
            if item.run == run and item.residual is not None:
                inside.append(learned.low <= item.residual <= learned.high)
                errors.append(_error(item, learned))
    if not inside:
        return None
    return HeldOut(
        plans=len(inside), coverage=sum(inside) / len(inside), median_error=_median(errors)
    )


def _error(item: PlanScore, learned: ResidualQuantiles) -> float | None:
    """The error of the middle that was learned."""
    predicted_ns = -time_at(_negative(item.modelled_ns), learned.mid)
    gap = abs(predicted_ns - item.measured_ns.mid)
    return gap / item.before_ns if item.before_ns else None


def _residuals(plans: Iterable[PlanScore]) -> list[float]:
    return [item.residual for item in plans if item.residual is not None]


def _median(errors: Iterable[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return median(known) if known else None
