"""The host calls of a step and the activities that they start, as plain arrays in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from advisor.model.trace import Trace
from analyzers.activities import NONE

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

# A copy by one of these calls returns only when it is done.
_BLOCKING_CALLS = ("cudaMemcpy", "hipMemcpyWithStream", "hipMemcpy")
# Device and host clocks of one file agree to less than this.
_SKEW_NS = 1_000_000
# A longer step is replayed in its first part only.
MOST_ACTIONS = 40_000


class Window(NamedTuple):
    """A step on the host's clock: [start, end) in ns, on its main thread."""

    start_ns: int
    end_ns: int
    thread: int


class Calls(NamedTuple):
    """One element for each host call that starts nothing, and for each activity with its call.

    `row` numbers kernels, then copies, of the trace (NONE: starts nothing); `call` the call within
    the window; `first` is false for further activities of the same call. The last element is the
    end of the window itself.
    """

    start: Ints
    end: Ints
    thread: Ints
    kind: NDArray[Any]
    op: Ints
    row: Ints
    begun: Ints
    ended: Ints
    stream: Ints
    first: Flags

    @property
    def graphed(self) -> Flags:
        """What a graph launch started."""
        return np.asarray(self.kind == "graph")


def calls_in(trace: Trace, window: Window) -> Calls:
    """The calls that the host began inside the window, in order, with all that they started."""
    rows = within(trace.launches["start_ns"].to_numpy(), window)
    row, call, begun, ended, stream = _activities(trace, window, rows)
    host = [_host(table, window) for table in (trace.launches, trace.syncs)]
    # What was launched nobody knows when is ready from the start.
    lost = np.flatnonzero(call == NONE)
    host.append(_launched_before(window, len(lost)))
    start, end, thread, kind, op = (np.concatenate(columns) for columns in zip(*host, strict=True))
    call[lost] = np.arange(len(start) - len(lost), len(start))
    idle = np.ones(len(start), dtype=bool)
    idle[call] = False
    calls = np.concatenate([np.flatnonzero(idle), call])
    none = np.full(int(idle.sum()), NONE, dtype=np.int64)
    row, begun, ended, stream = (
        np.concatenate([none, column]) for column in (row, begun, ended, stream)
    )
    order = np.lexsort((begun, calls, start[calls]))[:MOST_ACTIONS]
    calls = calls[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = np.diff(calls) != 0
    closes = window.end_ns if len(order) < MOST_ACTIONS else int(end[calls[-1]])
    return Calls(
        np.append(start[calls], max(closes, int(end[calls[-1:]].max(initial=window.start_ns)))),
        np.append(end[calls], max(closes, int(end[calls[-1:]].max(initial=window.start_ns)))),
        np.append(thread[calls], window.thread),
        np.append(kind[calls], "end"),
        np.append(op[calls], NONE),
        np.append(row[order], NONE),
        np.append(begun[order], NONE),
        np.append(ended[order], NONE),
        np.append(stream[order], NONE),
        np.append(first, True),
    )


def within(moments: Ints, window: Window) -> Ints:
    """Rows of sorted moments inside the window."""
    first, last = np.searchsorted(moments, [window.start_ns, window.end_ns])
    return np.arange(first, last)


def _host(table: pd.DataFrame, window: Window) -> tuple[Ints, Ints, Ints, NDArray[Any], Ints]:
    """(start, end, thread, kind, op) of the calls of one table."""
    part = table.iloc[within(table["start_ns"].to_numpy(), window)]
    start = part["start_ns"].to_numpy()
    kind = part["kind"].astype(object).to_numpy(dtype=object, copy=True)
    names = part["name"].astype(object).to_numpy()
    kind[np.isin(names.astype(str), _BLOCKING_CALLS)] = "blocking"
    op = np.full(len(part), NONE, dtype=np.int64)
    if "op" in part:
        op = part["op"].to_numpy(dtype=np.int64, na_value=NONE)
    end = start + part["duration_ns"].to_numpy()
    return start, end, part["thread"].to_numpy(), kind, op


def _launched_before(window: Window, count: int) -> tuple[Ints, Ints, Ints, NDArray[Any], Ints]:
    begin = np.full(count, window.start_ns, dtype=np.int64)
    kind = np.full(count, "unknown", dtype=object)
    thread = np.full(count, window.thread, dtype=np.int64)
    return begin, begin, thread, kind, np.full(count, NONE, dtype=np.int64)


def _activities(trace: Trace, window: Window, rows: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(row, call, begin, end, stream over all devices) of what the calls in `rows` started.

    `call` is NONE for what began inside the window and has no launch on record.
    """
    parts = []
    offset = 0
    base, count = (int(rows[0]), len(rows)) if len(rows) else (0, 0)
    for table in (trace.kernels, trace.copies):
        skip = int(np.searchsorted(table["start_ns"].to_numpy(), window.start_ns - _SKEW_NS))
        part = table.iloc[skip:]
        launch = part["launch"].to_numpy(dtype=np.int64, na_value=NONE)
        call = np.where(launch == NONE, NONE, launch - base)
        begun = part["start_ns"].to_numpy()
        unlaunched = (launch == NONE) & (begun >= window.start_ns) & (begun < window.end_ns)
        known = np.flatnonzero(unlaunched | ((call >= 0) & (call < count)))
        part, begun = part.iloc[known], begun[known]
        ended = begun + part["duration_ns"].to_numpy()
        parts.append((known + skip + offset, call[known], begun, ended, stream_of(part)))
        offset += len(table)
    row, calls, begins, ends, streams = (np.concatenate(c) for c in zip(*parts, strict=True))
    return row, calls, begins, ends, streams


def stream_of(activities: pd.DataFrame) -> Ints:
    """One number for each stream of each device."""
    device = activities["device"].to_numpy(dtype=np.int64, na_value=0)
    stream = activities["stream"].to_numpy(dtype=np.int64, na_value=0)
    return np.asarray((device << 32) + stream)
