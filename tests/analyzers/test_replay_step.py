"""Recorded steps as actions: what is inferred of threads, waits and streams; recorded traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.model.range_names import STEP_PREFIX
from advisor.model.trace import Trace
from analyzers.exposure import replay_window
from analyzers.replay import NONE, Step, replay
from analyzers.replay_calls import Window
from analyzers.replay_step import Overhead, outermost_sole, recorded_step
from collectors import read_trace
from tests.builders.trace import SHARED, Timeline

H200 = SHARED / "traces" / "h200"
AS_RECORDED = Overhead(0, 0, 0)


def actions(line: Timeline, start: float = 0, end: float = 1_000) -> Step:
    window = Window(round(start * 1_000), round(end * 1_000), 0)
    return recorded_step(line.build(), window, AS_RECORDED)


def test_host_time_is_the_operators_or_between_them() -> None:
    line = Timeline()
    line.op("aten::a", 10, 20)
    call = line.launch(15)
    line.kernel(20, 5, correlation=call)
    line.op("aten::b", 40, 20)
    call = line.launch(50)
    line.kernel(60, 5, correlation=call)
    step = actions(line, end=100)
    assert step.outside_ns.tolist() == [10_000, 10_000, 40_000]
    assert step.before_ns.tolist() == [5_000, 10_000, 0]
    assert step.call_ns.tolist() == [1_000, 1_000, 0]
    assert step.tail_ns.tolist() == [14_000, 9_000, 0]
    assert replay(step).returned_ns[-1] == 100_000


def test_what_recording_operators_costs_is_taken_off() -> None:
    line = Timeline()
    line.op("aten::a", 10, 20)
    line.op("aten::b", 12, 10)
    call = line.launch(15)
    line.kernel(20, 5, correlation=call)
    trace = line.build()
    step = recorded_step(trace, Window(0, 100_000, 0), Overhead(1_000, 9_000, 500))
    assert step.before_ns[0] == 5_000 - 2_000
    assert step.call_ns[0] == 500


def test_a_blocking_call_waits_for_what_ended_in_it() -> None:
    line = Timeline()
    first, second = line.launch(10), line.launch(12)
    line.kernel(20, 30, correlation=first)
    line.kernel(21, 500, stream=8, correlation=second)
    line.sync(15, 40)
    step = actions(line)
    (waiting,) = np.flatnonzero(step.waits != NONE)
    assert step.row[step.waits[waiting]] == 0


def test_a_launch_that_a_full_queue_held_up_waited_for_the_device() -> None:
    line = Timeline()
    count, deep, length = 400, 250, 20
    for place in range(count):
        # Once the queue is full, each call lasts until one more kernel has ended.
        late = place >= deep
        start = 10 + 2 * deep + length * (place - deep) if late else 10 + 2 * place
        call = line.launch(start, length=length if late else 1)
        line.kernel(15 + length * place, length, correlation=call)
    step = actions(line, end=15 + length * count)
    assert (step.waits != NONE).sum() > 100
    # The device is what takes the time: a faster host changes nothing.
    assert replay(step, 0.5).step_ns == pytest.approx(replay(step).step_ns, rel=0.01)
    shorter = step.without(np.zeros(len(step), dtype=bool), step.device_ns / 2)
    assert replay(shorter).step_ns < 0.6 * replay(step).step_ns


@pytest.mark.parametrize(("end", "waited"), [(515, True), (1_000, False), (400, False)])
def test_a_step_that_ends_with_its_device_has_waited_for_it(end: float, waited: bool) -> None:
    """Without a call on record; otherwise the host had work to do."""
    line = Timeline()
    line.kernel(20, 490, correlation=line.launch(10))
    step = actions(line, end=end)
    assert (step.waits[-1] == 0) == waited
    assert step.outside_ns[-1] == (5_000 if waited else end * 1_000 - 11_000)


def test_the_backward_thread_begins_where_the_main_thread_stopped_and_hands_back() -> None:
    line = Timeline()
    for at, thread in ((10, 1), (100, 2), (120, 2), (300, 1)):
        line.op("aten::op", at - 2, 6, thread=thread)
        line.kernel(at + 5, 3, correlation=line.launch(at, thread=thread))
    step = actions(line, end=310)
    assert step.follows.tolist() == [NONE, 0, NONE, 2, NONE]
    # Its wait is no work: from the hand-over to its own operator.
    assert step.outside_ns[3] == 298_000 - 121_000


def test_threads_that_work_at_the_same_time_hand_nothing_on() -> None:
    line = Timeline()
    line.op("aten::long", 5, 400, thread=1)
    for at, thread in ((10, 1), (100, 2), (120, 2), (300, 1)):
        line.kernel(at + 5, 3, correlation=line.launch(at, thread=thread))
    step = actions(line, end=500)
    assert step.follows[3] == NONE


@pytest.mark.parametrize(
    ("end", "wait", "begin", "expected"),
    [
        (20, True, 21, True),
        # Nothing says that it had to wait, and it began as soon as it could.
        (20, False, 21, False),
        # It began before the other one ended.
        (40, True, 21, False),
        # It began long after its launch, right after the other one: it has waited for it.
        (45, False, 46, True),
    ],
)
def test_a_stream_waits_for_another_where_something_says_so_and_times_allow_it(
    end: float, wait: bool, begin: float, expected: bool
) -> None:
    line = Timeline()
    line.kernel(15, end - 15, correlation=line.launch(10), stream=7)
    if wait:
        line.builder.event(
            "syncs", name="cudaStreamWaitEvent", kind="stream_wait", start_ns=12_000,
            duration_ns=1_000, thread=line.builder.thread(1, 1),
        )  # fmt: skip
    line.kernel(begin, 5, correlation=line.launch(14), stream=8)
    assert bool((actions(line).after != NONE).any()) == expected


def test_kernels_launched_before_the_recording_are_ready_from_the_start() -> None:
    line = Timeline()
    line.kernel(10, 50)
    line.kernel(70, 5, correlation=line.launch(20))
    step = actions(line, end=100)
    assert sorted(step.row[step.row != NONE].tolist()) == [0, 1]
    assert replay(step).ended_ns[step.row == 0][0] < 60_000


def test_the_outermost_operator_without_another_launching_one() -> None:
    parents = np.array([NONE, 0, 1, 0, NONE])
    ops = np.array([2, 3, 4, NONE])
    assert outermost_sole(parents, ops).tolist() == [1, 3, 4, NONE]
    assert outermost_sole(parents, np.array([2])).tolist() == [0]


def test_a_trace_without_steps_is_replayed_whole() -> None:
    line = Timeline()
    line.kernel(15, 30, correlation=line.launch(10))
    trace = line.build()
    window = replay_window(trace, trace.steps(STEP_PREFIX))
    assert window == Window(10_000, 11_001, 0)


TRACES = sorted(H200.glob("*.json.gz"))


def stepped(path: Path) -> Trace:
    trace = read_trace(path)
    if not len(trace.steps()):
        pytest.skip("the file marks no steps")
    return trace


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_the_recorded_step_replays_as_it_was_recorded(path: Path) -> None:
    """Nothing is fitted: host times as recorded, device order and waits as inferred."""
    trace = stepped(path)
    window = replay_window(trace, trace.steps())
    assert window is not None
    step = recorded_step(trace, window, AS_RECORDED, backlog=True)
    held = step.stream != NONE
    kernels = trace.kernels.iloc[step.row[held & (step.row < len(trace.kernels))]]
    recorded = int((kernels["start_ns"] + kernels["duration_ns"]).max()) - window.start_ns
    assert replay(step).ended_ns[held].max() == pytest.approx(recorded, rel=0.02)
