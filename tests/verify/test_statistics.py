"""Intervals hold what they promise: by simulation, and by the binomial law itself."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.verify.statistics import compare, interval_of_median, timing

TRIALS = 2000
SHAPES: dict[str, tuple[Callable[[random.Random], float], float]] = {
    "normal": (lambda r: r.gauss(1000, 30), 1000),
    "exponential": (lambda r: r.expovariate(1 / 1000), 1000 * math.log(2)),
    "two modes": (lambda r: r.gauss(900, 5) if r.random() < 0.51 else r.gauss(1500, 5), 911.9),
    "heavy tail": (lambda r: 1000 * r.paretovariate(1.1), 1000 * 2 ** (1 / 1.1)),
}


@pytest.mark.parametrize("count", [6, 16, 30, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_coverage_by_simulation(shape: str, count: int) -> None:
    draw, truth = SHAPES[shape]
    source = random.Random(f"{shape}{count}")
    below = above = 0
    for _ in range(TRIALS):
        low, high = interval_of_median([draw(source) for _ in range(count)])
        below += truth < low
        above += truth > high
    # Each end may miss in 2.5 % of cases; three standard errors of that are 1.05 %.
    assert below / TRIALS < 0.0355
    assert above / TRIALS < 0.0355


@pytest.mark.parametrize("count", range(6, 130))
def test_ranks_are_the_closest_that_the_binomial_law_allows(count: int) -> None:
    low, high = interval_of_median(list(range(count)))
    assert high == count - 1 - low, "both ends are as safe"

    def missed(rank: int) -> float:
        return sum(math.comb(count, k) for k in range(rank + 1)) / 2**count

    assert missed(int(low)) <= 0.025 < missed(int(low) + 1)


@pytest.mark.parametrize("count", range(1, 6))
def test_few_values_give_their_extremes(count: int) -> None:
    assert interval_of_median(list(range(count))) == (0, count - 1)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_a_timing_is_ordered_and_counts_its_sample(values: list[int]) -> None:
    found = timing(values)
    found.check()
    assert found.samples == len(values)
    assert abs(found.median_ns - median(values)) <= 0.5


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=40))
def test_gains_are_paired(pairs: list[tuple[int, int]]) -> None:
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    found = compare(before, after, "step")
    found.check()
    assert abs(found.gain_mid_ns - median(b - a for b, a in pairs)) <= 0.5
    back = compare(after, before, "step")
    assert (back.gain_low_ns, back.gain_high_ns) == (-found.gain_high_ns, -found.gain_low_ns)


def test_drift_that_hits_both_sides_does_not_hide_a_gain() -> None:
    drift = [10_000 + 500 * k for k in range(30)]
    found = compare(drift, [value - 100 for value in drift], "gpu_busy")
    assert (found.gain_low_ns, found.gain_mid_ns, found.gain_high_ns) == (100, 100, 100)
    assert found.significant


def test_samples_of_unequal_length_are_a_mistake() -> None:
    with pytest.raises(ValueError):
        compare([1, 2], [1], "step")


def test_no_difference_is_rarely_called_a_gain() -> None:
    source = random.Random(7)
    wrong = 0
    for _ in range(TRIALS):
        before = [round(source.gauss(10_000, 100)) for _ in range(16)]
        after = [round(source.gauss(10_000, 100)) for _ in range(16)]
        wrong += compare(before, after, "gpu_busy").significant
    assert wrong / TRIALS < 0.0355
