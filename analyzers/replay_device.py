"""What binds the device in a recorded step: pauses between activities, and who waits for whom.

None of it is recorded as such; it is inferred where the recorded times allow it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from analyzers.replay import GRAPH_GAP_NS, NONE
from analyzers.replay_calls import Calls
from analyzers.starvation import BLOCKING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Floats: TypeAlias = NDArray[np.float64]

_WAITING = (*BLOCKING, "blocking")
# A blocking call returns so soon after what it waited for has ended (Kineto: 1 to 20 µs).
_RETURN_NS = 50_000
# Used where a step shows none (H200: 1.0 to 1.7 µs between queued kernels).
_GAP_NS, _MOST_GAP_NS = 1_200.0, 5_000
_LATENCY_NS = 4_000.0
# A step's host is taken to have waited for the device, not worked, if so much more time passed.
_LONG_WAIT = 10
# So many launches ahead of the device, a slow one is held up by the queue (it holds about 1,000).
_DEEP_QUEUE = 200
# An activity whose call began so long before the stream was free did not wait for the host.
_QUEUED_NS = 10_000


def device_delays(calls: Calls, stream: Ints) -> tuple[Floats, Floats]:
    """(pause behind the stream's activity before, begin of the call to start on an idle stream).

    One figure each for the whole step: the median of the pauses before activities that were queued,
    and the lower quartile of what an idle stream took to start. Graphs have their own.
    """
    gap, latency = np.zeros(len(calls.start)), np.zeros(len(calls.start))
    pauses, starts = [], []
    held = np.flatnonzero(stream != NONE)
    for one in np.unique(stream[held]).tolist():
        mine = held[stream[held] == one]
        free = np.maximum.accumulate(calls.ended[mine])[:-1]
        begun, called = calls.begun[mine][1:], calls.start[mine][1:]
        single = ~calls.graphed[mine][1:]
        queued = single & (called + _QUEUED_NS < free)
        pauses.append(np.clip((begun - free)[queued], 0, _MOST_GAP_NS))
        starts.append((begun - called)[single & (free < called)])
    pause, start = (np.concatenate(p) if p else np.zeros(0) for p in (pauses, starts))
    usual = float(np.median(pause)) if len(pause) else _GAP_NS
    gap[held] = np.where(calls.graphed[held], GRAPH_GAP_NS, usual)
    idle = max(float(np.quantile(start, 0.25)) if len(start) else _LATENCY_NS, 0.0)
    latency[held] = np.where(calls.graphed[held], 0.0, idle)
    return gap, latency


def host_waits(calls: Calls, stream: Ints) -> Ints:
    """For each blocking call, the activity that ended last within it, of those called before.

    A call that waits for the whole device waits for all of them; a blocking copy for itself too.
    """
    waits = np.full(len(calls.start), NONE, dtype=np.int64)
    held = np.flatnonzero(stream != NONE)
    for index in np.flatnonzero(np.isin(calls.kind.astype(str), _WAITING)).tolist():
        # A blocking copy is its own activity: what it has to wait for is before it on its stream.
        before = held[: np.searchsorted(held, index, side="left")]
        if calls.kind[index] != "device":
            before = before[calls.ended[before] <= calls.end[index] + _RETURN_NS]
        if calls.kind[index] == "blocking" and stream[index] != NONE:
            before = np.array([index])
        if len(before):
            waits[index] = before[np.argmax(calls.ended[before])]
    return waits


def waited_at_the_end(calls: Calls) -> int:
    """The activity with which the step ended, if the host seems to have waited for it; else NONE.

    Its end then comes long after the host's last call, right before the end of the step.
    """
    if len(calls.start) < 2:
        return NONE
    last = int(np.argmax(calls.ended))
    since, after = calls.end[-1] - calls.end[:-1].max(), calls.end[-1] - calls.ended[last]
    waited = since > _LONG_WAIT * after >= 0
    return last if waited and calls.row[last] != NONE else NONE


def queue_waits(calls: Calls) -> tuple[Ints, Ints]:
    """(launches that a full queue held up, the activity whose end let each of them go on).

    The driver takes about a thousand launches ahead of the device; then each call lasts until an
    activity has ended, and that time is the device's, not the host's.
    """
    launching = calls.first & np.isin(calls.kind.astype(str), ("kernel", "copy", "set"))
    length = calls.end - calls.start
    # Most calls of a long step may be held up: the quick ones are what a call takes by itself.
    usual = float(np.quantile(length[launching], 0.05)) if launching.any() else 0.0
    slow = launching & (length > max(_LONG_WAIT * usual, _QUEUED_NS))
    held, ends = [], []
    active = np.flatnonzero(calls.row != NONE)
    for index in np.flatnonzero(slow).tolist():
        before = active[: np.searchsorted(active, index)]
        ended = calls.ended[before]
        inside = (ended >= calls.start[index]) & (ended <= calls.end[index])
        pending = int((calls.begun[before] > calls.start[index]).sum())
        if pending >= _DEEP_QUEUE and inside.any():
            held.append(index)
            ends.append(int(before[inside][np.argmax(ended[inside])]))
    return np.array(held, dtype=np.int64), np.array(ends, dtype=np.int64)


def device_waits(calls: Calls, stream: Ints, latency_ns: Floats) -> Ints:
    """For each activity, the one of another stream that it had to wait for.

    A stream-wait call between the two launches, or one graph launch for both, makes it possible,
    and so does a begin long after the launch on a stream that was free. An end before the other's
    begin, later than the own stream's, makes it likely.
    """
    after = np.full(len(calls.start), NONE, dtype=np.int64)
    if len(np.unique(stream[stream != NONE])) < 2:
        return after
    done: dict[int, _Ended] = {}
    heard: dict[int, int] = {}
    waits = 0
    graphed = calls.graphed
    for index, own in enumerate(stream.tolist()):
        waits += calls.kind[index] == "stream_wait"
        if own == NONE:
            continue
        begun, ended = int(calls.begun[index]), int(calls.ended[index])
        mine = done.setdefault(own, _Ended([], []))
        free = mine.ended[-1] if mine.ended else 0
        late = begun > max(int(calls.start[index] + latency_ns[index]), free) + _QUEUED_NS
        if graphed[index] or late or heard.get(own, 0) < waits:
            heard[own] = waits
            after[index] = _likely(done, own, begun)
        mine.ended.append(max(ended, free))
        mine.place.append(index)
    return after


class _Ended(NamedTuple):
    """When the activities of a stream ended, in order, and which they are."""

    ended: list[int]
    place: list[int]


def _likely(done: dict[int, _Ended], own: int, begun: int) -> int:
    """The activity of another stream that ended last before the moment, if later than the own."""
    best, chosen = done[own].ended[-1] if done[own].ended else 0, NONE
    for stream, other in done.items():
        at = bisect_right(other.ended, begun) - 1
        if stream != own and at >= 0 and other.ended[at] > best:
            best, chosen = other.ended[at], other.place[at]
    return chosen
