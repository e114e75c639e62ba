"""The difference of two samples of steps, with the interval that the samples themselves support."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.comparison import Difference, Direction, Significance
from advisor.model.shifts import interval_of_shift

# Larger samples are thinned evenly: the number of pairs is the product of both.
MAX_STEPS = 300
Number = float | int


def difference(
    before: Number | None,
    after: Number | None,
    steps_before: Sequence[Number | None] = (),
    steps_after: Sequence[Number | None] = (),
    *,
    higher_is_better: bool | None = None,
    counted: bool = False,
) -> Difference:
    """Two values with their steps; `counted` ones that never vary in a run compare exactly."""
    if before is None or after is None:
        return Difference(
            before=before, after=after, significance="incomparable", direction="unknown"
        )
    change = after - before
    first, second = _known(steps_before), _known(steps_after)
    interval = None
    if counted and len({*first, before}) == len({*second, after}) == 1:
        significance: Significance = "exact"
    else:
        interval = interval_of_shift(first, second)
        significance = _significance(interval) if first and second else "single"
    if interval is not None:
        interval = min(interval[0], float(change)), max(interval[1], float(change))
    return Difference(
        before=before,
        after=after,
        change=change,
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        significance=significance,
        direction=_direction(change, significance, higher_is_better),
    )


def _known(steps: Sequence[Number | None]) -> list[Number]:
    known = [value for value in steps if value is not None]
    if len(known) <= MAX_STEPS:
        return known
    return [known[i * len(known) // MAX_STEPS] for i in range(MAX_STEPS)]


def _significance(interval: tuple[float, float] | None) -> Significance:
    if interval is None:
        return "untested"
    return "insignificant" if interval[0] <= 0 <= interval[1] else "significant"


def _direction(change: Number, significance: Significance, higher: bool | None) -> Direction:
    if change == 0 or significance == "insignificant":
        return "same"
    if higher is None:
        return "changed"
    return "better" if (change > 0) == higher else "worse"
