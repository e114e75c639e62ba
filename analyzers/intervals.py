"""Arithmetic on integer time intervals [start, end), as pairs of int64 arrays.

`Spans` made by `merge` are sorted, disjoint, not touching, not empty; the others want such spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


class Spans(NamedTuple):
    """Sorted disjoint intervals; `starts[i] < ends[i] < starts[i + 1]`."""

    starts: Ints
    ends: Ints

    def length(self) -> int:
        """The total length."""
        return int((self.ends - self.starts).sum())


def merge(starts: Ints, ends: Ints) -> Spans:
    """The union of any intervals; those with end ≤ start are empty and vanish."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return Spans(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Spans(starts[first], reach[last])


def intersect(a: Spans, b: Spans) -> Spans:
    """The moments that lie in both."""
    edges = np.concatenate((a.starts, b.starts, a.ends, b.ends))
    steps = np.repeat(np.array([1, -1]), [len(a.starts) + len(b.starts)] * 2)
    # At one moment, what ends goes before what starts: intervals that only touch share nothing.
    order = np.lexsort((steps, edges))
    edges, depth = edges[order], np.cumsum(steps[order])
    opens = np.flatnonzero(depth == 2)
    return Spans(edges[opens], edges[opens + 1])


def gaps(spans: Spans) -> Spans:
    """The intervals between consecutive spans."""
    return Spans(spans.ends[:-1], spans.starts[1:])


def any_overlap(start: Ints, end: Ints, other_start: Ints, other_end: Ints) -> bool:
    """Whether an interval of the first kind shares a moment with one of the second."""
    if not len(other_start):
        return False
    order = np.argsort(other_start, kind="stable")
    # Of all that have begun before an interval ends, does the last to end end after its start?
    latest = np.maximum.accumulate(other_end[order])
    begun = np.searchsorted(other_start[order], end, side="left")
    return bool(((begun > 0) & (latest[np.maximum(begun, 1) - 1] > start)).any())
