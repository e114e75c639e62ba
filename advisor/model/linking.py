"""Attribution: kernel → launch (by correlation) → innermost op around it (by thread and time).

Works on the raw integer columns of a trace under construction, sorted by start; fills `launch`,
`op` and `parent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Table: TypeAlias = dict[str, NDArray[Any]]

# Python objects are made of so many events at a time; of all at once they would take gigabytes.
PIECE = 1 << 16


def link(tables: dict[str, Table], missing: int) -> None:
    """Fill the row-number columns of `tables` in place; `missing` marks what has no counterpart."""
    ops, launches = tables["ops"], tables["launches"]
    ops["parent"], launches["op"] = innermost(ops, launches, missing)
    _by_external_id(launches, ops, missing, enclosed=True)
    for name in ("kernels", "copies"):
        activities = tables[name]
        rows = launch_rows(activities, launches, missing)
        activities["launch"] = rows
        found = rows != missing
        activities["op"][found] = launches["op"][rows[found]]
        _by_external_id(activities, ops, missing, enclosed=False)


def innermost(ops: Table, launches: Table, missing: int) -> tuple[Ints, Ints]:
    """(parent of each op, innermost op around the start of each launch), `missing` where none is.

    An op surrounds a moment t on its thread if start ≤ t < end. Old files round to 1 µs, so
    intervals may overlap without nesting: the innermost is then the last begun that has not ended.
    """
    count, queries = len(ops["start_ns"]), len(launches["start_ns"])
    moments = np.concatenate((ops["start_ns"], launches["start_ns"]))
    threads = np.concatenate((ops["thread"], launches["thread"]))
    # A query is an op that has ended before it began: it never gets onto a stack.
    ends = np.concatenate((ops["start_ns"] + ops["duration_ns"], np.full(queries, missing)))
    # Stable, and ops come first: at one moment an op begins before a launch in it.
    order = np.lexsort((moments, threads))
    result = np.full(count + queries, missing, dtype=np.int64)
    borders = np.flatnonzero(np.diff(threads[order])) + 1
    del threads
    moments, ends = moments[order], ends[order]
    for first, last in pairwise((0, *borders.tolist(), len(order)) if len(order) else ()):
        rows, when, until = order[first:last], moments[first:last], ends[first:last]
        places = _nested(when, until)
        if places is None:
            for at, found in _sweep(when, until):
                part = rows[at : at + len(found)]
                result[part] = [missing if place < 0 else rows[place] for place in found]
        else:
            inside = places >= 0
            result[rows[inside]] = rows[places[inside]]
    return result[:count], result[count:]


def _nested(moments: Ints, ends: Ints) -> NDArray[np.int32] | None:
    """The innermost interval around each moment of one thread, as a place in the order given; -1.

    Where intervals nest, that is the last one begun on the level outside: the number of those begun
    before less the number of those that have ended. None if they overlap without nesting.
    """
    opens = ends > moments
    # Half the size: fewer than 2³¹ events fit into memory.
    depth = np.cumsum(opens, dtype=np.int32)
    depth -= opens
    depth -= np.searchsorted(np.sort(ends[opens]), moments, side="right").astype(np.int32)
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    found = np.full(len(moments), -1, dtype=np.int32)
    outside = np.empty(0, dtype=np.int64)
    for level in levels:
        if depth[level[0]] > 0:
            if not len(outside):
                return None
            found[level] = outside[np.searchsorted(outside, level) - 1]
        outside = level[opens[level]]
    inner = np.flatnonzero(opens & (found >= 0))
    return found if np.all(ends[inner] <= ends[found[inner]]) else None


def _sweep(moments: Ints, ends: Ints) -> Iterator[tuple[int, list[int]]]:
    """The same for intervals that overlap in any way: (first place, found of the places after)."""
    stack: list[int] = []
    stack_ends: list[int] = []
    for first in range(0, len(moments), PIECE):
        found = []
        columns = (moments[first : first + PIECE], ends[first : first + PIECE])
        for place, (moment, end) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            while stack and stack_ends[-1] <= moment:
                stack.pop()
                stack_ends.pop()
            found.append(stack[-1] if stack else -1)
            if end > moment:
                stack.append(first + place)
                stack_ends.append(end)
        yield first, found


def launch_rows(activities: Table, launches: Table, missing: int) -> Ints:
    """The launch of each activity by correlation id; if one recurs, the last begun before it."""
    ids, starts = launches["correlation"], launches["start_ns"]
    order = np.lexsort((starts, ids))
    order = order[ids[order] != missing]
    sorted_ids = ids[order]
    wanted = activities["correlation"]
    rows = np.full(len(wanted), missing, dtype=np.int64)
    if not len(order):
        return rows
    first = np.searchsorted(sorted_ids, wanted, side="left")
    last = np.searchsorted(sorted_ids, wanted, side="right") - 1
    present = (wanted != missing) & (first <= last)
    rows[present] = order[first[present]]
    for index in np.flatnonzero(present & (last > first)):
        candidates = order[first[index] : last[index] + 1]
        begun = np.searchsorted(starts[candidates], activities["start_ns"][index], side="right")
        rows[index] = candidates[max(int(begun) - 1, 0)]
    return rows


def _by_external_id(events: Table, ops: Table, missing: int, *, enclosed: bool) -> None:
    """Give events without an op the one their external id names, if it began before them.

    Where no op was around, profilers repeat the correlation id (2022-23 files: everywhere).
    """
    wanted = events["external_id"]
    named = (wanted != missing) & (wanted != events["correlation"])
    open_ = np.flatnonzero((events["op"] == missing) & named)
    known = np.flatnonzero(ops["external_id"] != missing)
    if not len(open_) or not len(known):
        return
    order = known[np.argsort(ops["external_id"][known], kind="stable")]
    ids = ops["external_id"][order]
    at = np.minimum(np.searchsorted(ids, wanted[open_]), len(ids) - 1)
    rows, start = order[at], events["start_ns"][open_]
    good = (ids[at] == wanted[open_]) & (ops["start_ns"][rows] <= start)
    if enclosed:
        good &= start <= ops["start_ns"][rows] + ops["duration_ns"][rows]
    events["op"][open_[good]] = rows[good]
