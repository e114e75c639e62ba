"""How well predictions did: every plan that was measured, kept or not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from advisor.hardware.learned import FEWEST_PLANS, LARGEST_FACTOR, SMALLEST_FACTOR
from advisor.model.applied import Applied, Comparison, PlanVerdict
from advisor.model.base import Range
from advisor.model.scores import PlanScore, Scores

COVERAGE = 0.8


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
    errors = [item.error for item in plans if item.error is not None]
    return Scores(
        plans=tuple(plans),
        median_error=median(errors) if errors else None,
        coverage=sum(item.inside for item in plans) / len(plans),
        interval_factor=interval_factor(plans),
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
    gap = abs(predicted.mid - measured.gain_mid_ns)
    return PlanScore(
        run=run,
        plan_id=verdict.plan_id,
        title=verdict.title,
        gpu=gpu,
        kept=verdict.verdict == "kept",
        predicted_ns=predicted,
        measured_ns=Range(
            low=measured.gain_low_ns, mid=measured.gain_mid_ns, high=measured.gain_high_ns
        ),
        before_ns=before,
        error=gap / before if before else None,
        inside=predicted.low <= measured.gain_mid_ns <= predicted.high,
    )


def interval_factor(plans: Iterable[PlanScore]) -> float | None:
    """The factor for half-widths at which four fifths of the intervals hold; None if too few.

    It is the 80 % quantile of |measured - middle| over the half-width on that side.
    """
    needed = sorted(_needed(item) for item in plans)
    if len(needed) < FEWEST_PLANS:
        return None
    place = math.ceil(COVERAGE * len(needed)) - 1
    return min(max(needed[place], SMALLEST_FACTOR), LARGEST_FACTOR)


def _needed(item: PlanScore) -> float:
    gap = item.measured_ns.mid - item.predicted_ns.mid
    predicted = item.predicted_ns
    half = predicted.high - predicted.mid if gap > 0 else predicted.mid - predicted.low
    return abs(gap) / half if half else (math.inf if gap else 0.0)
