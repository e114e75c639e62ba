"""The host's time of a step: kinds told apart, parts that add up, threads of gradients counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import host_time
from analyzers.host_time import KINDS, host_metrics, host_split
from collectors import read_trace
from tests.builders.trace import SHARED, Timeline

H200 = SHARED / "traces/h200"
US = 1_000


def split(line: Timeline) -> dict[str, int]:
    trace = line.build()
    (found,) = host_split(trace, trace.steps())
    return {kind: ns // US for kind, ns in found.items() if ns}


def test_each_moment_belongs_to_the_innermost_event() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 0, 100)
    line.op("TorchDynamo Cache Lookup", 5, 5)
    line.op("Torch-Compiled Region: 0/0", 10, 50)
    line.range("## Call CompiledFxGraph f ##", 20, 30)
    line.op("aten::mm", 30, 10)
    line.launch(35)
    line.sync(90, 10)
    assert split(line) == {
        "guards": 5,
        "compiled_region": 40,
        "dispatch": 9,
        "launch": 1,
        "wait": 10,
        "python": 35,
    }


def test_gradients_on_a_thread_of_their_own_are_no_python() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 0, 100)
    line.op("aten::mm", 0, 20)
    line.op("autograd::engine::evaluate_function: MmBackward0", 10, 50, thread=2)
    line.op("MmBackward0", 20, 30, thread=2)
    line.op("aten::mm", 30, 10, thread=2)
    assert split(line) == {"dispatch": 30, "autograd": 30, "python": 40}


def test_what_lies_outside_the_step_is_cut() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 10, 20)
    line.op("aten::mm", 0, 15)
    line.op("aten::mm", 25, 15)
    assert split(line) == {"dispatch": 10, "python": 10}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ("aten::a", "TorchDynamo Cache Lookup", "MmBackward0", "CompiledFunction")
            ),
            st.integers(0, 200),
            st.integers(0, 120),
            st.integers(1, 3),
        ),
        max_size=20,
    )
)
def test_the_parts_add_up_to_the_step(events: list[tuple[str, int, int, int]]) -> None:
    """Whatever overlaps, on whichever thread: no moment is lost or counted twice."""
    line = Timeline()
    line.range("ProfilerStep#0", 50, 100)
    for name, start, length, thread in events:
        line.op(name, start, length, thread=thread)
    assert sum(split(line).values()) == 100


def test_too_many_events_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_time, "MOST_EVENTS", 1)
    line = Timeline()
    line.range("ProfilerStep#0", 0, 10)
    line.op("aten::a", 1, 1)
    line.op("aten::a", 3, 1)
    trace = line.build()
    assert host_metrics(trace, trace.steps()) == {}


@pytest.mark.parametrize("name", ["llama_train.eager", "llama_train.inductor", "bert.eager"])
def test_recorded_steps(name: str) -> None:
    path = H200 / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip("no recorded traces here")
    trace = read_trace(path)
    steps = trace.steps()
    metrics = host_metrics(trace, steps)
    values = np.array([metrics[f"host_{kind}_per_step_ns"].per_step for kind in KINDS])
    assert values.sum(axis=0).tolist() == steps["duration_ns"].tolist()
    shares = dict(zip(KINDS, values.sum(axis=1) / values.sum(), strict=True))
    compiled = "inductor" in name
    assert (shares["compiled_region"] > 0.05) == compiled
    assert (shares["guards"] > 0) == compiled
    assert (shares["autograd"] > 0.01) == ("train" in name)
    assert shares["launch"] > 0.02
