"""Medians with the interval that the sample itself supports; differences in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median
from typing import Literal

from advisor.model.applied import Comparison, Timing

CONFIDENCE = 0.95


def interval_of_median(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Order statistics that hold the median with the given confidence, whatever the distribution.

    Ranks (n ± z sqrt(n)) / 2, the normal approximation of the binomial (Conover, Practical
    Nonparametric Statistics, 3.2); fewer than six values give their extremes.
    """
    ordered = sorted(values)
    count = len(ordered)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - half), math.ceil(count / 2 + half)
    return ordered[max(low, 0)], ordered[min(high, count - 1)]


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
