"""Predictions against measurements: errors, coverage, and what the next prediction learns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.hardware.learned import FEWEST_PLANS, recalibrated
from advisor.model.applied import Applied, Comparison, PlanVerdict, SetVerdict, Timing
from advisor.model.base import Range
from advisor.model.launch import LaunchConfig
from advisor.model.scores import ResidualQuantiles
from analyzers.scores import residual_quantiles, score


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
    assert [s.residual for s in found.plans] == pytest.approx([-0.5, -20.0])
    assert found.residuals is None
    assert found.held_out is None
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


def beyond_when_left_out(residuals: list[float]) -> tuple[int, int]:
    """How many lie below and above what all others teach."""
    below = above = 0
    for index, left_out in enumerate(residuals):
        found = residual_quantiles(residuals[:index] + residuals[index + 1 :])
        assert found is not None
        below += left_out < found.low
        above += left_out > found.high
    return below, above


@given(st.lists(st.floats(-7, 7), min_size=FEWEST_PLANS + 1, max_size=80))
def test_learned_intervals_hold_as_often_as_their_ranks_promise(residuals: list[float]) -> None:
    """Exchangeable: each of the n + 1 is as likely to be the next, so each is left out in turn.

    At most k of them lie beyond either end, k = floor((n + 1) / 10).
    """
    assert max(beyond_when_left_out(residuals)) <= len(residuals) // 10


@pytest.mark.parametrize("count", [21, 29, 30, 36, 41, 69])
def test_of_residuals_that_differ_no_more_hold_than_promised(count: int) -> None:
    residuals = [(step - count / 2) / 5 for step in range(count)]
    assert beyond_when_left_out(residuals) == (count // 10, count // 10)


def test_each_side_learns_by_itself_and_so_does_the_middle() -> None:
    """Of 39, k = 4: a tenth of them lies at or beyond each end."""
    found = residual_quantiles([step / 10 for step in range(-9, 30)])
    assert found == ResidualQuantiles(low=-0.6, mid=1.0, high=2.6)


@pytest.mark.parametrize(
    ("residual", "learned"),
    [(0.5, (0.25, 0.5, 0.75)), (1e9, (7.5, 7.75, 8.0)), (-1e9, (-8.0, -7.75, -7.5))],
)
def test_plans_alike_and_faults_teach_within_bounds(
    residual: float, learned: tuple[float, float, float]
) -> None:
    low, mid, high = learned
    found = residual_quantiles([residual] * FEWEST_PLANS)
    assert found == ResidualQuantiles(low=low, mid=mid, high=high)
    assert residual_quantiles([residual] * (FEWEST_PLANS - 1)) is None


def slower(number: int) -> PlanVerdict:
    """Its kernel was to take 500 ns (450 to 600) and takes 480 to 680, as it happens."""
    return verdict(f"p{number}", (400, 500, 550), 520 - 10 * (number * 8 % 21))


def test_runs_are_held_out_whole() -> None:
    """Two runs of alike plans teach each other nothing of the third, which is far off."""
    rounds = [applied(*(slower(21 * run + number) for number in range(21))) for run in range(2)]
    far = applied(*(verdict(f"far{i}", (400, 500, 550), 0) for i in range(10)))
    found = score([("a", rounds[0]), ("b", rounds[1]), ("c", far)]).held_out
    assert found is not None
    assert found.plans == 52
    assert 0.7 < found.coverage <= 42 / 52
    known = score([("a", rounds[0]), ("b", rounds[1])]).held_out
    assert known is not None
    assert known.coverage == pytest.approx(19 / 21)
    assert score([("a", rounds[0])]).held_out is None


def test_what_was_learned_is_learned_again_of_runs_that_used_it() -> None:
    """And these hold: predictions keep what was modelled."""
    plans = [slower(number) for number in range(21)]
    learned = score([("a", applied(*plans))]).residuals
    assert learned is not None
    assert learned.mid > 0
    after = recalibrated(Range(low=450, mid=500, high=600), learned)
    saving = Range(low=1_000 - after.high, mid=1_000 - after.mid, high=1_000 - after.low)
    again = [replace(plan, predicted_ns=saving, modelled_ns=plan.predicted_ns) for plan in plans]
    scores = score([("a", applied(*again))])
    assert scores.residuals == learned
    assert scores.coverage == pytest.approx(19 / 21)
    before = score([("a", applied(*plans))])
    assert scores.median_error is not None
    assert before.median_error is not None
    assert scores.median_error < before.median_error


def test_a_product_teaches_nothing() -> None:
    plan = replace(slower(1), launch=LaunchConfig(scheme="gemm", block_columns=64, block_steps=32))
    assert [item.residual for item in score([("a", applied(plan))]).plans] == [None]
