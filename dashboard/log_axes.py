"""Ticks of logarithmic axes as values with their unit, as tables and tooltips print them.

Plotly's own are digits without a unit between decades, which overlap where a decade is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from advisor.units import NS_PER_MS, format_bytes, format_ns

_MAX_TICKS = 7
_DECADES = ((1, 2, 5), (1, 3), (1,))


def bytes_ticks(sizes: Sequence[float]) -> dict[str, object]:
    """Powers of two around sizes in bytes, so few that their labels have room."""
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, -(-(high - low) // (_MAX_TICKS - 1)))
    return _ticks([2.0**power for power in range(max(low, 0), high + 1, step)], format_bytes)


def time_ticks(times_ns: Sequence[float]) -> dict[str, object]:
    """Round times around these, on an axis in ms."""
    low, high = min(times_ns), max(times_ns)
    return _ticks(_round(low, high), format_ns, NS_PER_MS)


def _round(low: float, high: float) -> list[float]:
    """Values of one or two digits within the ends, from many a decade to one in several."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = [(digits, 1) for digits in _DECADES] + [((1,), every) for every in range(2, last + 2)]
    for digits, every in steps:
        found = [d * 10.0**power for power in range(first, last + 1, every) for d in digits]
        found = [value for value in found if low <= value <= high]
        if len(found) <= _MAX_TICKS:
            break
    return found


def _ticks(
    values: Sequence[float], told: Callable[[int], str], scale: float = 1.0
) -> dict[str, object]:
    return {
        "tickmode": "array",
        "tickvals": [value / scale for value in values],
        "ticktext": [told(round(value)) for value in values],
    }
