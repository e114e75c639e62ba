"""A recorded step as actions to replay: who launched what, and what had to be waited for.

What the trace does not say is inferred where the recorded times allow it, never against them:

- a thread goes on where another one returned if that happened inside a pause of its own that no
  operator of its own covers (the backward thread, and the main thread after it);
- a blocking call waits for the last activity that had been launched before and ended within it;
  so does a launch that a full queue held up;
- an activity waits for another stream if a stream-wait call lies between the two launches, if both
  belong to one graph launch, or if it began late for no other reason, and the other stream's last
  activity ended before it began.

Profiling stretches the host: each recorded operator, API call and, with stacks, Python frame costs
time of its own (`Overhead`), which is taken off here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from advisor.model.range_names import COMPILED_FUNCTION, COMPILED_REGION
from advisor.model.trace import Trace
from analyzers.activities import NONE
from analyzers.replay import Step
from analyzers.replay_calls import Calls, Window, calls_in, stream_of, within
from analyzers.replay_device import (
    device_delays,
    device_waits,
    host_waits,
    queue_waits,
    waited_at_the_end,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Floats: TypeAlias = NDArray[np.float64]

# Profiled host time never shrinks below this share of itself.
_LEAST_SHARE = 0.2
# Operators around what a compiler made: their calls can become one CUDA graph.
_REGIONS = (COMPILED_REGION, COMPILED_FUNCTION)


class Overhead(NamedTuple):
    """What the profiler adds to the host's time, in ns: per operator, per call."""

    op_ns: float
    stacked_op_ns: float
    call_ns: float


def recorded_step(
    trace: Trace, window: Window, overhead: Overhead, *, backlog: bool = False
) -> Step:
    """The actions that the host began inside the window; the last one is the window's end.

    With `backlog`, streams begin with what they had still to do when the step began.
    """
    found = calls_in(trace, window)
    streams, stream = np.unique(found.stream, return_inverse=True)
    stream = stream - int(streams[0] == NONE)
    host = _Host(trace, window, found, overhead)
    outside, before, call, tail = host.times()
    gap, latency = device_delays(found, stream)
    waits = host_waits(found, stream)
    held_up, until = queue_waits(found)
    if len(held_up):
        waits[held_up], call[held_up] = until, float(np.quantile(call[found.first], 0.05))
    if (last := waited_at_the_end(found)) != NONE:
        waits[-1], outside[-1] = last, found.end[-1] - found.ended[last]
    return Step(
        thread=np.unique(found.thread, return_inverse=True)[1],
        stream=stream,
        outside_ns=outside,
        before_ns=before,
        call_ns=call,
        tail_ns=tail,
        device_ns=(found.ended - found.begun).astype(np.float64),
        gap_ns=gap,
        latency_ns=latency,
        follows=host.follows,
        waits=waits,
        after=device_waits(found, stream, latency),
        row=found.row,
        region=host.regions(),
        backlog_ns=_backlog(trace, window, streams[streams != NONE]) if backlog else np.zeros(0),
    )


def _backlog(trace: Trace, window: Window, streams: Ints) -> Floats:
    """For each stream, how long it still runs what was launched before the window."""
    calls = np.append(trace.launches["start_ns"].to_numpy(), window.start_ns)
    keys, ends = [], []
    for table in (trace.kernels, trace.copies):
        launch = table["launch"].to_numpy(dtype=np.int64, na_value=NONE)
        early = calls[launch] < window.start_ns
        keys.append(stream_of(table)[early])
        ends.append((table["start_ns"] + table["duration_ns"]).to_numpy()[early])
    key, end = np.concatenate(keys), np.concatenate(ends) - window.start_ns
    return np.array([end[key == one].max(initial=0) for one in streams], dtype=np.float64)


class _Host:
    """The threads of a step: who handed on to whom, and what the time went to."""

    def __init__(self, trace: Trace, window: Window, calls: Calls, overhead: Overhead) -> None:
        self.window, self.calls = window, calls
        self.call_overhead_ns = overhead.call_ns
        stacked = trace.info.stacks_recorded
        self.op_overhead_ns = overhead.stacked_op_ns if stacked else overhead.op_ns
        ops = trace.ops
        self.rows = within(ops["start_ns"].to_numpy(), window)
        part = ops.iloc[self.rows]
        self.start = part["start_ns"].to_numpy()
        self.end = self.start + part["duration_ns"].to_numpy()
        self.thread = part["thread"].to_numpy()
        base = int(self.rows[0]) if len(self.rows) else 0
        # Operators by place in the window; those begun before it are left out.
        parent = part["parent"].to_numpy(dtype=np.int64, na_value=NONE) - base
        self.parent = np.where(parent < 0, NONE, parent)
        op = calls.op - base
        self.op = np.where((calls.op == NONE) | (op < 0) | (op >= len(part)), NONE, op)
        names = part["name"].cat
        marked = np.array([*(str(n).startswith(_REGIONS) for n in names.categories), False])
        self.compiled = marked[names.codes.to_numpy()]
        self.follows = self._handed_on()

    def _handed_on(self) -> Ints:
        """For each action, the one of another thread whose return it waited for."""
        calls = self.calls
        follows = np.full(len(calls.start), NONE, dtype=np.int64)
        threads = np.unique(calls.thread)
        if len(threads) < 2:
            return follows
        covers = {int(thread): self._outermost(int(thread)) for thread in threads}
        latest: dict[int, int] = {}
        last = NONE  # the action that returned last, over all threads
        for index in np.flatnonzero(calls.first).tolist():
            thread = int(calls.thread[index])
            if last != NONE and calls.thread[last] != thread:
                own = latest.get(thread, NONE)
                paused = own == NONE or calls.end[own] <= calls.start[last]
                done = calls.end[last] <= calls.start[index]
                if paused and done and not _covered(covers[thread], int(calls.start[last])):
                    follows[index] = last
            latest[thread] = index
            if last == NONE or calls.end[index] >= calls.end[last]:
                last = index
        return follows

    def _outermost(self, thread: int) -> tuple[Ints, Ints]:
        """Starts and ends of the operators of a thread that no other surrounds."""
        mine = (self.thread == thread) & (self.parent == NONE)
        return self.start[mine], self.end[mine]

    def times(self) -> tuple[Floats, Floats, Floats, Floats]:
        """(outside, before, call, tail) of each action, without what the profiler added."""
        calls = self.calls
        outside, before, call, tail = (np.zeros(len(calls.start)) for _ in range(4))
        begun, done = self._owners()
        which = np.cumsum(calls.first)
        final = np.searchsorted(which, which, side="right") - 1
        for thread in np.unique(calls.thread).tolist():
            mine = np.flatnonzero((calls.thread == thread) & calls.first)
            start, end = calls.start[mine], calls.end[mine]
            handed = self.follows[mine] != NONE
            # What the operator still does after its last call is its own, else the next call's.
            last = np.append(begun[mine][1:] != begun[mine][:-1], True)
            following = np.append(np.where(handed[1:], end[:-1], start[1:]), self.window.end_ns)
            until = np.where(last, np.clip(done[mine], end, np.maximum(end, following)), end)
            free = np.append(self.window.start_ns, until[:-1])
            free[handed] = calls.end[self.follows[mine][handed]]
            free = np.minimum(free, start)
            since = np.clip(begun[mine], free, start)
            clock = self.start[self.thread == thread]
            outside[mine] = self._spent(clock, free, since)
            before[mine] = self._spent(clock, since, start)
            call[mine] = _reduced((end - start).astype(np.float64), self.call_overhead_ns)
            # Behind all that the call started: its kernels do not wait for what comes after it.
            tail[final[mine]] = self._spent(clock, end, until)
        # The kernels of a graph begin when the call that launches it returns.
        graphed = calls.graphed
        before[graphed] += call[graphed]
        call[graphed] = 0.0
        return outside, before, call, tail

    def _spent(self, ops: Ints, start: Ints, end: Ints) -> Floats:
        """Host time of [start, end) without what recording the operators begun in it cost."""
        count = np.searchsorted(ops, end) - np.searchsorted(ops, start)
        return _reduced(
            (end - start).astype(np.float64), (count * self.op_overhead_ns).astype(np.float64)
        )

    def _owners(self) -> tuple[Ints, Ints]:
        """[start, end) of the operator that each call belongs to, else of the call's own moment.

        That is the outermost operator around the call in which no other operator calls anything.
        """
        owner = outermost_sole(self.parent, self.op)
        known = owner != NONE
        begun, done = self.calls.start.copy(), self.calls.start.copy()
        begun[known], done[known] = self.start[owner[known]], self.end[owner[known]]
        return begun, done

    def regions(self) -> Ints:
        """The outermost compiled region around each action, as a number; NONE outside of all."""
        found = np.full(len(self.op), NONE, dtype=np.int64)
        if not self.compiled.any():
            return found
        for place, op in enumerate(self.op.tolist()):
            at = op
            while at != NONE:
                if self.compiled[at]:
                    found[place] = at
                at = int(self.parent[at])
        return found


def _covered(spans: tuple[Ints, Ints], moment: int) -> bool:
    at = int(np.searchsorted(spans[0], moment, side="right")) - 1
    return at >= 0 and int(spans[1][at]) > moment


def _reduced(spent: Floats, added: Floats | float) -> Floats:
    return np.maximum(spent - added, spent * _LEAST_SHARE)


def outermost_sole(parents: Ints, ops: Ints) -> Ints:
    """For each op, the outermost one around it with no other of `ops` inside; NONE stays."""
    distinct = np.unique(ops[ops != NONE]).tolist()
    above = parents.tolist()
    below: dict[int, int] = {}
    for op in distinct:
        at = op
        while at != NONE:
            below[at] = below.get(at, 0) + 1
            at = above[at]
    found = {NONE: NONE}
    for op in distinct:
        at = op
        while below[op] == 1 and (parent := above[at]) != NONE and below[parent] == 1:
            at = parent
        found[op] = at
    return np.array([found[op] for op in ops.tolist()], dtype=np.int64)
