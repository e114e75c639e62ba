"""Medians with the interval that the sample itself supports; differences in pairs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from advisor.model.applied import Comparison, Timing

CONFIDENCE = 0.95


def interval_of_median(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Order statistics that hold the median with the given confidence, whatever the distribution.

    The r-th smallest and the r-th largest, r as great as P(Binomial(n, 1/2) < r) <= (1 - c) / 2
    allows for confidence c (Conover, Practical Nonparametric Statistics, 3.2); fewer than six
    values give their extremes, which hold less at 95 %.
    """
    ordered = sorted(values)
    rank = _rank(len(ordered), (1 - confidence) / 2)
    return ordered[rank], ordered[-1 - rank]


@functools.cache
def _rank(count: int, tail: float) -> int:
    """How many values may lie beyond each end; exact, in integers."""
    limit, below = tail * 2**count, 0
    for rank in range(count // 2 + 1):
        below += math.comb(count, rank)
        if below > limit:
            return max(rank - 1, 0)
    return 0


def timing(values_ns: Sequence[int]) -> Timing:
    """A sample of durations as a `Timing`."""
    low, high = interval_of_median(values_ns)
    middle = round(median(values_ns))
    return Timing(
        median_ns=middle,
        low_ns=min(round(low), middle),
        high_ns=max(round(high), middle),
        samples=len(values_ns),
    )


def compare(
    before_ns: Sequence[int], after_ns: Sequence[int], clock: Literal["gpu_busy", "step", "kernel"]
) -> Comparison:
    """Two interleaved samples of equal length: the gain is the median of the paired differences."""
    gains = [b - a for b, a in zip(before_ns, after_ns, strict=True)]
    low, high = interval_of_median(gains)
    middle = round(median(gains))
    return Comparison(
        before=timing(before_ns),
        after=timing(after_ns),
        gain_low_ns=min(round(low), middle),
        gain_mid_ns=middle,
        gain_high_ns=max(round(high), middle),
        clock=clock,
    )
