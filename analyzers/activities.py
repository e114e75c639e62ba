"""The device activities of a trace as plain arrays, and the step each of them belongs to.

An activity belongs to the step that contains the start of its launch; without a launch to none.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from advisor.model.trace import Trace
from analyzers.intervals import Spans, merge
from analyzers.kernel_roles import is_communication

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

NONE = -1


class Activities(NamedTuple):
    """Kernels first, then copies and memsets; `launch` is a row of `trace.launches` or `NONE`."""

    start: Ints
    end: Ints
    device: Ints
    launch: Ints
    launch_start: Ints  # where launch is NONE: the activity's own start
    kernel: Flags
    communication: Flags

    def where(self, chosen: Flags | Ints) -> Activities:
        """The chosen ones."""
        return Activities(
            self.start[chosen],
            self.end[chosen],
            self.device[chosen],
            self.launch[chosen],
            self.launch_start[chosen],
            self.kernel[chosen],
            self.communication[chosen],
        )

    def by_step(self, step: Ints, steps: int) -> list[Activities]:
        """The activities of each step, in order of step; those of `NONE` are in no part."""
        order = np.argsort(step, kind="stable")
        edges = np.searchsorted(step[order], np.arange(steps + 1))
        return [self.where(order[first:last]) for first, last in pairwise(edges.tolist())]

    def busy(self) -> int:
        """Union of the intervals per device, summed over devices, in ns."""
        return sum(self.on(device).length() for device in np.unique(self.device))

    def on(self, device: int) -> Spans:
        """Union of the intervals on one device."""
        here = self.device == device
        return merge(self.start[here], self.end[here])


def activities(trace: Trace) -> Activities:
    """All kernels, copies and memsets of the trace."""
    tables = (trace.kernels, trace.copies)
    start, duration = _joined(tables, "start_ns"), _joined(tables, "duration_ns")
    launch = _joined(tables, "launch")
    begun = trace.launches["start_ns"].to_numpy()
    launch_start = start.copy()
    known = launch != NONE
    launch_start[known] = begun[launch[known]]
    kernels = len(trace.kernels)
    names = trace.kernels["name"].cat
    communicates = np.array([*is_communication(names.categories), False], dtype=bool)
    communication = np.zeros(len(start), dtype=bool)
    communication[:kernels] = communicates[names.codes.to_numpy()]
    return Activities(
        start,
        start + duration,
        _joined(tables, "device"),
        launch,
        launch_start,
        np.arange(len(start)) < kernels,
        communication,
    )


def _joined(tables: tuple[pd.DataFrame, ...], column: str) -> Ints:
    parts: list[Any] = [t[column].to_numpy(dtype=np.int64, na_value=NONE) for t in tables]
    return np.concatenate(parts)


def host_steps(moments: Ints, steps: pd.DataFrame) -> Ints:
    """The row of `steps` (sorted by start) whose [start, end) holds each moment, else `NONE`."""
    if not len(steps):
        return np.full(len(moments), NONE, dtype=np.int64)
    starts = steps["start_ns"].to_numpy()
    ends = starts + steps["duration_ns"].to_numpy()
    rows = np.searchsorted(starts, moments, side="right") - 1
    return np.where((rows >= 0) & (moments < ends[rows]), rows, NONE)


def step_of(found: Activities, steps: pd.DataFrame) -> Ints:
    """The row of `steps` each activity belongs to, else `NONE`."""
    rows = host_steps(found.launch_start, steps)
    rows[found.launch == NONE] = NONE
    return rows
