"""Attribution, clipping and self-checks of the trace model."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import InvalidRecordError
from advisor.model.frames import Place, place
from advisor.model.growing import MISSING
from advisor.model.linking import innermost
from advisor.model.trace import TraceBuilder
from tests.builders.trace import US, Timeline


def names(frame: pd.DataFrame, rows: Any) -> list[str | None]:
    return [None if pd.isna(row) else str(frame["name"].iloc[int(row)]) for row in rows]


def test_a_kernel_goes_to_the_innermost_op_around_its_launch() -> None:
    line = Timeline()
    line.op("linear", 0, 20)
    line.op("addmm", 5, 10)
    line.op("other thread", 0, 50, thread=2)
    for at in (6, 16, 30):
        line.kernel(100 + at, 1, correlation=line.launch(at))
    trace = line.build()
    assert names(trace.ops, trace.kernels["op"]) == ["addmm", "linear", None]
    assert names(trace.ops, trace.ops["parent"]) == [None, None, "linear"]


def test_an_op_that_starts_with_its_child_is_its_parent() -> None:
    line = Timeline()
    line.op("child", 0, 5)
    line.op("parent", 0, 9)
    trace = line.build()
    assert names(trace.ops, trace.ops["parent"]) == [None, "parent"]


def test_a_recurring_correlation_id_means_the_last_launch_before_the_kernel() -> None:
    line = Timeline()
    for at in (0, 50):
        line.next_id = 41
        line.launch(at)
    for at in (10, 60, -5):
        line.kernel(at, 1, correlation=42)
    trace = line.build()
    assert trace.kernels["launch"].tolist() == [0, 0, 1]


def test_external_ids_name_an_op_only_if_they_are_not_the_correlation_id() -> None:
    line = Timeline()
    line.op("aten::mm", 0, 5, external_id=7)
    line.kernel(20, 1, correlation=3, external_id=7)
    line.kernel(30, 1, correlation=7, external_id=7)
    line.kernel(-9, 1, correlation=4, external_id=7)  # before the op began
    trace = line.build()
    assert names(trace.ops, trace.kernels["op"]) == [None, "aten::mm", None]


nested = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 1)), max_size=12)


@given(nested, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), max_size=6))
def test_innermost_is_the_last_begun_that_has_not_ended(
    ops: list[tuple[int, int, int]], calls: list[tuple[int, int]]
) -> None:
    ops = sorted(ops, key=lambda o: (o[0], -o[1]))
    table = {
        "start_ns": np.array([o[0] for o in ops], dtype=np.int64),
        "duration_ns": np.array([o[1] for o in ops], dtype=np.int64),
        "thread": np.array([o[2] for o in ops], dtype=np.int64),
    }
    queries = {
        "start_ns": np.array([c[0] for c in calls], dtype=np.int64),
        "thread": np.array([c[1] for c in calls], dtype=np.int64),
    }
    parents, around = innermost(table, queries, MISSING)

    def last(moment: int, thread: int, before: int) -> int:
        fits = [
            i
            for i, (start, length, t) in enumerate(ops[:before])
            if t == thread and start <= moment < start + length
        ]
        return fits[-1] if fits else MISSING

    assert parents.tolist() == [last(s, t, i) for i, (s, _, t) in enumerate(ops)]
    assert around.tolist() == [last(s, t, len(ops)) for s, t in calls]


def test_an_impossible_duration_is_cut_and_counted() -> None:
    line = Timeline()
    line.kernel(0, 5_000_000)
    for i in range(1, 5):
        line.kernel(10 * i, 5)
    trace = line.build()
    assert trace.kernels["duration_ns"].tolist() == [10 * US, 5 * US, 5 * US, 5 * US, 5 * US]
    (warning,) = trace.warnings
    assert (warning.code, warning.count) == ("duration_clipped", 1)
    assert str(5_000_000 * US - 10 * US) in warning.message


def test_small_overlaps_early_successors_streams_and_graphs_are_left_alone() -> None:
    line = Timeline()
    line.kernel(0, 30)  # programmatic dependent launch
    line.kernel(20, 10)
    line.kernel(31, 5000)  # its successor waits inside the device
    line.kernel(40, 5100)
    line.kernel(6000, 1)
    line.kernel(0, 9000, stream=8)
    graph = line.launch(0, kind="graph")
    for start, length in ((10_000, 9000), (10_001, 5), (10_010, 5)):
        line.kernel(start, length, correlation=graph)
    trace = line.build()
    assert not trace.warnings
    assert trace.kernels["duration_ns"].sum() == (30 + 10 + 5000 + 5100 + 1 + 9000 + 9010) * US


def test_absent_is_missing_and_its_provenance_unknown() -> None:
    line = Timeline()
    line.kernel(0, 1, registers_per_thread=0)
    trace = line.build()
    assert trace.kernels["registers_per_thread"].tolist() == [0]
    assert trace.kernels["shared_bytes"].isna().all()
    assert trace.provenance["kernels.registers_per_thread"] == "measured"
    assert trace.provenance["kernels.shared_bytes"] == "unknown"


def test_an_empty_trace_has_all_tables() -> None:
    trace = TraceBuilder(source="test").build()
    assert len(trace.kernels) == len(trace.steps()) == 0


def test_collectives_follow_their_kernel_through_sorting() -> None:
    line = Timeline()
    line.kernel(50, 1, name="ncclDevKernel_B")
    line.kernel(10, 1, name="ncclDevKernel_A")
    line.builder.event("comms", kernel=0, collective="allreduce", elements_in=8)
    trace = line.build()
    assert names(trace.kernels, trace.comms["kernel"]) == ["ncclDevKernel_B"]


def test_a_batch_that_does_not_fit_is_refused() -> None:
    builder = TraceBuilder(source="test")
    with pytest.raises(InvalidRecordError, match="unknown or unequal"):
        builder.add("kernels", {"start_ns": [1, 2], "duration_ns": [1]})
    with pytest.raises(InvalidRecordError, match="unknown or unequal"):
        builder.add("kernels", {"color": [1]})


def test_check_finds_each_broken_invariant() -> None:
    line = Timeline()
    line.kernel(0, 5, correlation=line.launch(0))
    line.kernel(10, 5)
    trace = line.build()
    kernels = trace.kernels
    broken = {
        "not sorted": kernels.iloc[::-1].reset_index(drop=True),
        "negative": kernels.assign(duration_ns=np.array([-1, 5])),
        "does not exist": kernels.assign(launch=pd.array([3, None], dtype="Int64")),
        "not int64": kernels.assign(start_ns=kernels["start_ns"].astype(float)),
        "columns differ": kernels.drop(columns="op"),
    }
    for message, frame in broken.items():
        with pytest.raises(InvalidRecordError, match=message):
            dataclasses.replace(trace, kernels=frame).check()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nn.Module: Mlp_0", Place("Mlp_0", None)),
        ("models/llama.py(12): forward", Place(None, "models/llama.py:12")),
        ("torch/nn/modules/module.py(1775): _call_impl", Place(None, None)),
        ("contextlib.py(79): inner", Place(None, None)),
        ("<built-in method silu of type object at 0x1>", Place(None, None)),
    ],
)
def test_places_of_frames(name: str, expected: Place) -> None:
    assert place(name) == expected
