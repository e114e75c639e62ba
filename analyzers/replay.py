"""Replay of one step: when each host call returns and each device activity ends.

A step is a list of *actions* in the order in which the host began them. Each takes host time on its
thread and may start one activity on a stream:

    begin  = the later of: the thread's last end, the end of the call it was handed on by
    launch = begin + outside + before          (host work that leads up to the call)
    return = launch + call                     (a blocking call: not before what it waits for ends)
    start  = the later of: launch + latency, end of the stream's last activity + gap,
             end of the activity that it waits for
    end    = start + device time

The step ends when host and device have both finished. `before`, `call` and `tail` (host work after
the call) belong to the launched operator and go with it when it is removed; `outside` stays.

Two ways compute the same: call by call, and, where nothing but order binds many calls of one
thread, all of them at once: within a stream, with c the running sum of gap + device time,

    end_i = c_i + max(end before the run, max over j ≤ i of launch_j + latency_j + device_j − c_j).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Floats: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]

NONE = -1
# Shorter runs are faster call by call.
_LONG_RUN = 24
# A graph launch, and the pause between two kernels of a graph (H200: 0.25 to 0.45 µs).
GRAPH_CALL_NS, GRAPH_GAP_NS = 20_000.0, 400.0


@dataclass(frozen=True)
class Step:
    """The actions of a step, one element each, times in ns; `NONE` where a reference is absent.

    `thread` and `stream` count from 0. `follows` is the action of another thread whose return
    begins this one, `waits` the action whose activity the host waits for, `after` the action whose
    activity the device waits for; all of them come earlier. Host times are those of `stretch` 1:
    a replay may scale them. `row` numbers kernels, then copies, of the trace; `region` the compiled
    regions of the step. `backlog_ns` is how long each stream is still busy when the step begins.
    """

    thread: Ints
    stream: Ints
    outside_ns: Floats
    before_ns: Floats
    call_ns: Floats
    tail_ns: Floats
    device_ns: Floats
    gap_ns: Floats
    latency_ns: Floats
    follows: Ints
    waits: Ints
    after: Ints
    row: Ints
    region: Ints
    backlog_ns: Floats = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.thread)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """[first, last) of the actions between two that refer to others or change the thread."""
        breaks = (self.follows != NONE) | (self.waits != NONE) | (self.after != NONE)
        breaks[1:] |= np.diff(self.thread) != 0
        edges = np.flatnonzero(breaks)
        # What refers to another action stands alone; what follows it begins a run.
        cuts = np.unique(np.concatenate(([0], edges, edges + 1, [len(self)])))
        return tuple(pairwise(cuts.tolist()))

    def without(self, gone: Flags, device_ns: Floats) -> Step:
        """The step with other device times, and without the calls and activities of `gone`.

        What waited for one of them waits for what was before it on its stream.
        """
        zeros = {
            name: np.where(gone, 0.0, getattr(self, name))
            for name in ("before_ns", "call_ns", "tail_ns", "gap_ns", "latency_ns")
        }
        changed = replace(self, device_ns=np.where(gone, 0.0, device_ns), **zeros)
        changed.__dict__["runs"] = self.runs
        return changed

    def graphed(self, *, whole: bool = False) -> Step:
        """Each compiled region launched as one CUDA graph; without any, or `whole`, all the step.

        What leads to its first call stays; all other host time inside goes, blocking calls too.
        Threads meet at the graph: whatever another thread launched comes with the same call.
        """
        whole = whole or not self.has_regions
        group = np.where(self.closing, NONE, 0 if whole else self.region)
        inside = group != NONE
        first, lead = _leads(group)
        rest = inside & ~first
        thread = np.where(rest, self.thread[lead], self.thread)
        follows = np.where(rest, NONE, self.follows)
        # A thread whose calls went with another's goes on behind the graph.
        moved = rest & (thread != self.thread)
        for one in np.unique(self.thread[moved]).tolist():
            mine = np.flatnonzero(self.thread == one)
            behind = mine[1:][moved[mine][:-1] & ~inside[mine][1:]]
            before = mine[:-1][moved[mine][:-1] & ~inside[mine][1:]]
            follows[behind] = np.where(follows[behind] == NONE, lead[before], follows[behind])
        held = inside & (self.stream != NONE)
        return replace(
            self,
            thread=thread,
            outside_ns=np.where(rest, 0.0, self.outside_ns),
            # Its kernels begin when the call returns.
            before_ns=np.where(rest, 0.0, self.before_ns + np.where(first, GRAPH_CALL_NS, 0.0)),
            call_ns=np.where(inside, 0.0, self.call_ns),
            tail_ns=np.where(inside, 0.0, self.tail_ns),
            gap_ns=np.where(held, GRAPH_GAP_NS, self.gap_ns),
            latency_ns=np.where(inside, 0.0, self.latency_ns),
            follows=follows,
            waits=np.where(inside, NONE, self.waits),
        )

    @property
    def has_regions(self) -> bool:
        """Whether any action lies in a compiled region."""
        return bool((self.region != NONE).any())

    @property
    def closing(self) -> Flags:
        """The last action of a recorded step: what the host does behind its last call."""
        last = np.zeros(len(self), dtype=bool)
        last[-1:] = self.stream[-1:] == NONE
        return last


def _leads(group: Ints) -> tuple[Flags, Ints]:
    """(whether an action is the first of its group, the first of its group or itself)."""
    lead = np.arange(len(group))
    first = np.zeros(len(group), dtype=bool)
    _, starts, which = np.unique(group, return_index=True, return_inverse=True)
    inside = group != NONE
    lead[inside] = starts[which[inside]]
    first[inside] = lead[inside] == np.flatnonzero(inside)
    return first, lead


class Replay(NamedTuple):
    """When each action's call returned (with its tail) and its activity ended; the step's end."""

    returned_ns: Floats
    ended_ns: Floats
    step_ns: float


def replay(step: Step, host_scale: float = 1.0, *, long_run: int = _LONG_RUN) -> Replay:
    """The step with all host times scaled; activities that do not exist end at their launch."""
    state = _State(step, host_scale)
    done = 0
    for first, last in step.runs:
        if last - first >= max(long_run, 2):  # one alone may refer to others
            state.one_by_one(done, first)
            state.together(first, last)
            done = last
    state.one_by_one(done, len(step))
    return state.result()


class _State:
    """Clocks of threads and streams while actions are taken in order."""

    def __init__(self, step: Step, scale: float) -> None:
        self.step = step
        self.lead = (step.outside_ns + step.before_ns) * scale
        self.call, self.tail = step.call_ns * scale, step.tail_ns * scale
        self.returned, self.ended = np.zeros(len(step)), np.zeros(len(step))
        self.host = [0.0] * (int(step.thread.max(initial=NONE)) + 1)
        streams = int(step.stream.max(initial=NONE)) + 1
        self.device = [0.0] * streams
        for stream, until in enumerate(step.backlog_ns[:streams].tolist()):
            self.device[stream] = until

    def one_by_one(self, first: int, last: int) -> None:
        """Actions in order; as Python's numbers, since reading single elements is slow."""
        step, run = self.step, slice(first, last)
        arrays = (
            step.thread, step.stream, self.lead, self.call, self.tail, step.latency_ns,
            step.gap_ns, step.device_ns, step.follows, step.waits, step.after,
        )  # fmt: skip
        columns = [array[run].tolist() for array in arrays]
        for index, action in enumerate(zip(*columns, strict=True), first):
            self.one(index, *action)

    def one(
        self,
        index: int,
        thread: int,
        stream: int,
        lead: float,
        call: float,
        tail: float,
        latency: float,
        gap: float,
        length: float,
        follows: int,
        waits: int,
        after: int,
    ) -> None:
        """One action."""
        begin = self.host[thread]
        if follows != NONE:
            begin = max(begin, float(self.returned[follows]))
        launch = begin + lead
        back = launch + call
        if waits != NONE:
            back = max(back, float(self.ended[waits]))
        end = launch
        if stream != NONE:
            start = max(launch + latency, self.device[stream] + gap)
            if after != NONE:
                start = max(start, float(self.ended[after]))
            end = self.device[stream] = start + length
        self.ended[index] = end
        self.returned[index] = self.host[thread] = back + tail

    def together(self, first: int, last: int) -> None:
        """A run of actions of one thread that refer to no other action."""
        step, run = self.step, slice(first, last)
        thread = int(step.thread[first])
        spent = self.lead[run] + self.call[run] + self.tail[run]
        returned = self.host[thread] + np.cumsum(spent)
        launch = returned - self.call[run] - self.tail[run]
        self.returned[run] = returned
        self.host[thread] = float(returned[-1])
        self.ended[run] = launch
        streams = step.stream[run]
        for stream in np.unique(streams[streams != NONE]).tolist():
            mine = np.flatnonzero(streams == stream)
            length = step.device_ns[run][mine]
            done = np.cumsum(step.gap_ns[run][mine] + length)
            ready = launch[mine] + step.latency_ns[run][mine] + length - done
            ready[0] = max(ready[0], self.device[stream])
            ended = done + np.maximum.accumulate(ready)
            self.ended[first + mine] = ended
            self.device[stream] = float(ended[-1])

    def result(self) -> Replay:
        """Where everything has come to."""
        return Replay(self.returned, self.ended, max((*self.host, *self.device), default=0.0))
