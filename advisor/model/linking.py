"""Attribution: kernel → launch (by correlation) → innermost op around it (by thread and time).

Works on the raw integer columns of a trace under construction, sorted by start; fills `launch`,
`op` and `parent`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Table: TypeAlias = dict[str, NDArray[Any]]

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
    start, thread = ops["start_ns"], ops["thread"]
    end = start + ops["duration_ns"]
    count, queries = len(start), len(launches["start_ns"])
    moments = np.concatenate((start, launches["start_ns"]))
    threads = np.concatenate((thread, launches["thread"]))
    kind = np.zeros(count + queries, dtype=np.int8)
    kind[count:] = 1
    order = np.lexsort((np.arange(count + queries), kind, moments, threads))
    found = _sweep(order.tolist(), threads.tolist(), moments.tolist(), end.tolist())
    result = np.array(found, dtype=np.int64)
    result[result < 0] = missing
    return result[:count], result[count:]


def _sweep(order: list[int], threads: list[int], moments: list[int], ends: list[int]) -> list[int]:
    """For each event, the op on top of its thread's stack; indices below len(ends) are ops."""
    found = [-1] * len(moments)
    stack: list[int] = []
    current, count = None, len(ends)
    for index in order:
        if threads[index] != current:
            current = threads[index]
            stack.clear()
        moment = moments[index]
        while stack and ends[stack[-1]] <= moment:
            stack.pop()
        if stack:
            found[index] = stack[-1]
        if index < count:
            stack.append(index)
    return found


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
