"""By how much one sample lies above another, whatever their distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

CONFIDENCE = 0.95


def interval_of_shift(
    before: Sequence[float | int], after: Sequence[float | int], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Interval of the shift from `before` to `after`, whatever the distribution; None if too few.

    The C-th smallest and largest of all pairwise differences, C = mn/2 − z sqrt(mn(m+n+1)/12)
    rounded down (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 4.3). With C < 1
    (three steps each, say) no interval reaches the confidence.
    """
    m, n = len(before), len(after)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rank = math.floor(m * n / 2 - z * math.sqrt(m * n * (m + n + 1) / 12))
    if rank < 1:
        return None
    shifts = sorted(float(a - b) for b in before for a in after)
    return shifts[rank - 1], shifts[-rank]


def interval_of_ratio(
    before: Sequence[float | int], after: Sequence[float | int], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Interval of after over before, for positive samples: that of the shift of logarithms."""
    if not before or not after or min(*before, *after) <= 0:
        return None
    found = interval_of_shift(
        [math.log(v) for v in before], [math.log(v) for v in after], confidence
    )
    return None if found is None else (math.exp(found[0]), math.exp(found[1]))
