"""Time the device stood idle because its next kernel had not been launched yet.

For each gap [a, b) in a device's union of kernels, copies and memsets that kernel k ends, the
device was starved for max(0, min(b, launch start of k) − a): before the launch the host was late,
after it the device was. The gap is the fault of a synchronisation if the launching thread was
inside a blocking call when the device ran dry (the host had itself forbidden to run ahead), else of
dispatch: the host was simply slower than the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from advisor.model.trace import Trace
from analyzers.activities import NONE, Activities

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

BLOCKING = ("device", "stream", "event")


class Starvation(NamedTuple):
    """One element for each gap that a kernel ends; `activity` is that kernel's place."""

    starved_ns: Ints
    activity: Ints
    synchronised: NDArray[np.bool_]
    attributed: NDArray[np.bool_]
    gap_ns: Ints


def starvation(trace: Trace, found: Activities) -> Starvation:
    """All gaps of all devices; gaps ended by a copy or memset are not in it."""
    parts = [_gaps(found, device) for device in np.unique(found.device)]
    dry = np.concatenate([p[0] for p in parts]) if parts else np.empty(0, dtype=np.int64)
    ender = np.concatenate([p[1] for p in parts]) if parts else np.empty(0, dtype=np.int64)
    attributed = found.launch[ender] != NONE
    until = np.minimum(found.start[ender], found.launch_start[ender])
    starved = np.where(attributed, np.maximum(until - dry, 0), 0)
    threads = trace.launches["thread"].to_numpy()
    thread = np.full(len(ender), NONE, dtype=np.int64)
    thread[attributed] = threads[found.launch[ender[attributed]]]
    return Starvation(
        starved, ender, _blocked(trace, dry, thread), attributed, found.start[ender] - dry
    )


def _gaps(found: Activities, device: int) -> tuple[Ints, Ints]:
    """(when the device ran dry, the kernel that ended the gap) on one device."""
    rows = np.flatnonzero(found.device == device)
    order = rows[np.lexsort((found.launch_start[rows], ~found.kernel[rows], found.start[rows]))]
    start, reach = found.start[order], np.maximum.accumulate(found.end[order])
    opens = np.flatnonzero(start[1:] > reach[:-1]) + 1
    ended_by_kernel = opens[found.kernel[order[opens]]]
    return reach[ended_by_kernel - 1], order[ended_by_kernel]


def _blocked(trace: Trace, moments: Ints, threads: Ints) -> NDArray[np.bool_]:
    """Whether each thread was inside a blocking call at the moment."""
    syncs = trace.syncs[trace.syncs["kind"].isin(BLOCKING)]
    result = np.zeros(len(moments), dtype=bool)
    for thread in np.unique(threads):
        mine = syncs[syncs["thread"] == thread]
        starts = mine["start_ns"].to_numpy()
        if not len(starts):
            continue
        ends = np.maximum.accumulate(starts + mine["duration_ns"].to_numpy())
        here = np.flatnonzero(threads == thread)
        at = np.searchsorted(starts, moments[here], side="right") - 1
        result[here] = (at >= 0) & (moments[here] < ends[at])
    return result
