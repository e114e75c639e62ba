"""Predictions against measurements: errors, coverage, the factor that makes intervals hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.model.applied import Applied, Comparison, PlanVerdict, SetVerdict, Timing
from advisor.model.base import Range
from analyzers.scores import interval_factor, score


def timing(middle: int) -> Timing:
    return Timing(median_ns=middle, low_ns=middle - 1, high_ns=middle + 1, samples=9)


def verdict(
    name: str, predicted: tuple[int, int, int] | None, measured: int | None, *, kept: bool = True
) -> PlanVerdict:
    """A plan that replaces 1,000 ns of a step of 100,000."""
    comparison = None
    if measured is not None:
        comparison = Comparison(
            before=timing(100_000), after=timing(100_000 - measured), clock="gpu_busy",
            gain_low_ns=measured - 2, gain_mid_ns=measured, gain_high_ns=measured + 2,
        )  # fmt: skip
    low, mid, high = predicted or (0, 0, 0)
    return PlanVerdict(
        plan_id=name, title=name, verdict="kept" if kept else "reverted", reason="",
        sites_expected=1, measured=comparison, replaced_ns=1_000,
        predicted_ns=Range(low=low, mid=mid, high=high) if predicted else None,
    )  # fmt: skip


def applied(*plans: PlanVerdict) -> Applied:
    result = SetVerdict(verdict="reverted", reason="", plans=())
    return Applied(created="now", device="NVIDIA H200", versions={}, plans=plans, set=result)


def test_plans_taken_out_count_and_plans_without_both_figures_do_not() -> None:
    found = score([
        ("a", applied(verdict("hit", (90, 100, 110), 105),
                      verdict("miss", (90, 100, 110), 300, kept=False),
                      verdict("unmeasured", (90, 100, 110), None),
                      verdict("unpriced", None, 50))),
        ("b", None),
    ])  # fmt: skip
    assert [(s.plan_id, s.kept, s.inside) for s in found.plans] == [
        ("hit", True, True), ("miss", False, False),
    ]  # fmt: skip
    assert [s.error for s in found.plans] == pytest.approx([0.005, 0.2])
    assert found.median_error == pytest.approx(0.1025)
    assert found.coverage == 0.5
    assert found.interval_factor is None
    assert found.runs_without == 1


def test_a_step_is_not_what_a_plan_replaces() -> None:
    """Records that do not say so: of eager's kernels both are one, of a compiled step not."""
    step = replace(verdict("step", (90, 100, 110), 105), replaced_ns=None)
    assert step.measured is not None
    kernels = replace(step, plan_id="kernels", measured=replace(step.measured, clock="kernel"))
    found = score([("a", applied(step, kernels))])
    assert [s.error is None for s in found.plans] == [True, False]
    assert found.median_error == pytest.approx(5 / 100_000)
    assert found.coverage == 1.0


def test_no_plan_has_no_score() -> None:
    found = score([("a", applied())])
    assert (found.median_error, found.coverage, found.runs_without) == (None, None, 1)


@pytest.mark.parametrize(("beyond", "factor"), [(2, 2.0), (0, 0.25), (100, 8.0)])
def test_the_factor_makes_four_fifths_of_the_intervals_hold(beyond: int, factor: float) -> None:
    """Of 20 plans 16 miss by `beyond` half-widths (of 10 ns), the rest by more."""
    plans = [verdict(f"p{i}", (90, 100, 110), 100 + 10 * beyond) for i in range(16)]
    plans += [verdict(f"q{i}", (90, 100, 110), -900) for i in range(4)]
    scores = score([("a", applied(*plans))])
    assert scores.interval_factor == factor


def test_the_side_that_missed_is_the_one_that_is_measured() -> None:
    plans = [verdict(f"p{i}", (60, 100, 110), 80) for i in range(20)]
    assert interval_factor(score([("a", applied(*plans))]).plans) == 0.5
