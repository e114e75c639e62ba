"""The replay engine: against the definition, call by call; and what must hold of any step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.replay import NONE, Step, replay

US = 1_000.0


def step_of(count: int, **columns: Any) -> Step:
    """A step of `count` actions; columns not given are zero, references absent."""
    times = ("outside_ns", "before_ns", "call_ns", "tail_ns", "device_ns", "gap_ns", "latency_ns")
    filled: dict[str, Any] = {name: np.zeros(count) for name in times}
    for name in ("follows", "waits", "after", "region"):
        filled[name] = np.full(count, NONE, dtype=np.int64)
    for name in ("thread", "stream"):
        filled[name] = np.zeros(count, dtype=np.int64)
    filled["row"] = np.arange(count, dtype=np.int64)
    filled |= {name: np.asarray(values) for name, values in columns.items()}
    return Step(**filled)


@st.composite
def steps(draw: st.DrawFn, most: int = 60) -> Step:
    """Any legal step: several threads and streams, references to earlier actions."""
    count = draw(st.integers(1, most))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dependent = draw(st.sampled_from([0.0, 0.05, 0.4]))
    threads = (
        np.sort(random.integers(0, 3, count)) if dependent < 0.4 else random.integers(0, 3, count)
    )

    def references() -> Any:
        earlier = np.array([random.integers(0, max(place, 1)) for place in range(count)])
        given_ = (random.random(count) < dependent) & (np.arange(count) > 0)
        return np.where(given_, earlier, NONE)

    def times(most: int) -> Any:
        return random.integers(0, most, count).astype(np.float64)

    return step_of(
        count,
        thread=threads,
        stream=random.integers(-1, 3, count),
        outside_ns=times(9),
        before_ns=times(9),
        call_ns=times(5),
        tail_ns=times(4),
        device_ns=times(draw(st.sampled_from([5, 60]))),
        gap_ns=times(3),
        latency_ns=times(6),
        follows=references(),
        waits=references(),
        after=references(),
    )


def by_definition(step: Step, scale: float) -> tuple[list[float], list[float], float]:
    """The rules of the module's docstring, word by word."""
    host: dict[int, float] = {}
    device: dict[int, float] = {}
    returned: list[float] = []
    ended: list[float] = []
    for i in range(len(step)):
        thread, stream = int(step.thread[i]), int(step.stream[i])
        begin = max(
            host.get(thread, 0.0), returned[step.follows[i]] if step.follows[i] != NONE else 0.0
        )
        launch = begin + scale * (step.outside_ns[i] + step.before_ns[i])
        back = launch + scale * step.call_ns[i]
        if step.waits[i] != NONE:
            back = max(back, ended[step.waits[i]])
        host[thread] = back + scale * step.tail_ns[i]
        returned.append(host[thread])
        if stream == NONE:
            ended.append(launch)
            continue
        start = max(launch + step.latency_ns[i], device.get(stream, 0.0) + step.gap_ns[i])
        if step.after[i] != NONE:
            start = max(start, ended[step.after[i]])
        device[stream] = start + step.device_ns[i]
        ended.append(device[stream])
    return returned, ended, max((*host.values(), *device.values()))


@given(steps(), st.sampled_from([0.3, 1.0, 1.7]), st.sampled_from([2, 5, 1_000]))
def test_both_ways_of_replaying_follow_the_definition(step: Step, scale: float, run: int) -> None:
    returned, ended, length = by_definition(step, scale)
    found = replay(step, scale, long_run=run)
    np.testing.assert_allclose(found.returned_ns, returned)
    np.testing.assert_allclose(found.ended_ns, ended)
    assert found.step_ns == pytest.approx(length)


@given(steps(), st.integers(0, 2**32 - 1))
def test_less_work_never_makes_a_step_longer(step: Step, seed: int) -> None:
    random = np.random.default_rng(seed)
    before = replay(step).step_ns
    few = random.random(len(step)) < 0.3
    more = few | (random.random(len(step)) < 0.3)
    shorter = step.device_ns * random.random(len(step))
    one = replay(step.without(few, step.device_ns)).step_ns
    two = replay(step.without(more, shorter)).step_ns
    assert two <= one + 1e-6 <= before + 2e-6
    assert replay(step.without(np.zeros(len(step), dtype=bool), step.device_ns)).step_ns == before
    assert replay(step, 0.5).step_ns <= before + 1e-6


def test_a_device_bound_step_loses_the_kernel_time() -> None:
    step = step_of(10, call_ns=np.full(10, US), device_ns=np.full(10, 20 * US))
    gone = np.arange(10) == 4
    after = step.without(gone, step.device_ns)
    assert replay(step).step_ns - replay(after).step_ns == pytest.approx(20 * US)


def test_a_host_bound_step_loses_only_host_time() -> None:
    step = step_of(
        10, call_ns=np.full(10, 5 * US), before_ns=np.full(10, 15 * US), device_ns=np.full(10, US)
    )
    shorter = step.without(np.zeros(10, dtype=bool), np.where(np.arange(10) == 4, 0.0, US))
    assert replay(shorter).step_ns == replay(step).step_ns
    gone = step.without(np.arange(10) == 4, step.device_ns)
    assert replay(step).step_ns - replay(gone).step_ns == pytest.approx(20 * US)


def test_a_kernel_under_another_stream_saves_nothing() -> None:
    step = step_of(
        3,
        stream=[0, 1, 0],
        call_ns=[US, US, US],
        device_ns=[50 * US, 20 * US, 50 * US],
        after=[NONE, NONE, 1],
    )
    hidden = step.without(np.array([False, True, False]), step.device_ns)
    assert replay(hidden).step_ns == replay(step).step_ns
    long = dataclasses.replace(step, device_ns=np.array([50 * US, 80 * US, 50 * US]))
    hidden = long.without(np.array([False, True, False]), long.device_ns)
    assert replay(long).step_ns - replay(hidden).step_ns == pytest.approx(31 * US)


def test_the_host_waits_where_it_blocks_and_another_thread_goes_on_after_it() -> None:
    step = step_of(
        3,
        thread=[0, 0, 1],
        stream=[0, NONE, 0],
        call_ns=[US, US, US],
        device_ns=[40 * US, 0, 10 * US],
        waits=[NONE, 0, NONE],
        follows=[NONE, NONE, 1],
    )
    # Launched at 0 and waited for until 40; the other thread launches then.
    assert replay(step).returned_ns.tolist() == [US, 40 * US, 41 * US]
    assert replay(step).step_ns == 50 * US


def test_a_graph_takes_the_host_out_of_the_step() -> None:
    step = step_of(
        100,
        before_ns=np.full(100, 20 * US),
        call_ns=np.full(100, 5 * US),
        device_ns=np.full(100, US),
    )
    graphed = replay(step.graphed()).step_ns
    # What leads to the first launch, the graph launch, then kernels with the pauses of a graph.
    assert 100 * US < graphed < 200 * US
    assert replay(step).step_ns > 2_400 * US


def test_only_compiled_regions_become_graphs_where_there_are_any() -> None:
    region = np.array([7] * 50 + [NONE] * 50)
    step = step_of(100, call_ns=np.full(100, 10 * US), device_ns=np.full(100, US), region=region)
    assert 500 * US < replay(step.graphed()).step_ns < 600 * US


def test_streams_begin_with_their_backlog() -> None:
    step = step_of(1, device_ns=[10 * US], backlog_ns=np.array([30 * US]))
    assert replay(step).step_ns == 40 * US
