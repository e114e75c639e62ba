"""Counters joined to a trace: by kind and order, per step; what does not fit is counted."""

from __future__ import annotations

import pandas as pd
import pytest

from advisor.model.counters import CounterFile, KernelCounters
from advisor.model.trace import Trace
from analyzers.counters import bare_name, counter_metrics, join_counters
from analyzers.metrics import kernel_rows
from collectors import read_trace
from collectors.ncu import read_ncu
from tests.builders.trace import SHARED, Timeline

H200 = SHARED / "traces/h200"
MODEL = H200 / "ncu_model_raw.csv.gz"
needs_files = pytest.mark.skipif(not MODEL.is_file(), reason="no recorded counter files here")


def counted(name: str, read: int, *, grid: int = 1) -> KernelCounters:
    return KernelCounters(
        name=f"void at::{name}<8>(int, T2)",
        grid=(grid, 1, 1),
        block=(128, 1, 1),
        dram_read_bytes=read,
        dram_write_bytes=1,
        occupancy_measured=0.5,
    )


def recorded(steps: list[list[tuple[str, int]]]) -> Trace:
    """Steps of kernels (name, grid), 10 µs each, launched in order but run by name, late."""
    line = Timeline()
    at = 0.0
    for number, kernels in enumerate(steps):
        line.range(f"ProfilerStep#{number}", at, 100)
        calls = [line.launch(at + 1 + 2 * i) for i in range(len(kernels))]
        for i, (name, grid) in enumerate(kernels):
            line.kernel(
                at + 50 + 10 * i,
                10,
                name=f"void at::native::{name}<4, (anonymous namespace)::F>(int)",
                correlation=calls[i],
                **{f"{part}_{axis}": 1 for part in ("grid", "block") for axis in "yz"},
                grid_x=grid,
                block_x=128,
            )
        at += 1_000
    return line.build()


def test_the_kth_of_a_kind_is_the_kth_of_each_step() -> None:
    trace = recorded([[("add", 1), ("mul", 1), ("add", 1), ("add", 9)]] * 2)
    file = CounterFile(
        source="x",
        kernels=(
            counted("add", 10),
            counted("add", 99, grid=9),
            counted("add", 20),
            counted("mul", 30),
        ),
    )
    joined = join_counters(trace, file, trace.steps())
    assert joined.trace.kernels["dram_read_bytes"].tolist() == [10, 30, 20, 99] * 2
    assert joined.time_fraction == 1.0
    assert joined.warnings == ()
    joined.trace.check()
    assert joined.trace.provenance["kernels.dram_read_bytes"] == "measured"
    metrics = counter_metrics(joined, file)
    assert metrics["dram_bytes"].value == 10 + 30 + 20 + 99 + 4
    assert metrics["occupancy_measured"].value == 0.5
    assert metrics["spill_load_bytes"].value is None
    assert metrics["spill_load_bytes"].provenance == "unknown"


def test_another_number_of_executions_is_not_joined() -> None:
    trace = recorded([[("add", 1), ("mul", 1)]])
    file = CounterFile(source="x", kernels=(counted("add", 1), counted("mul", 1)) * 3)
    assert join_counters(trace, file, trace.steps()).time_fraction == 1.0
    file = CounterFile(source="x", kernels=(counted("add", 1),))
    joined = join_counters(trace, file, trace.steps())
    assert joined.rows.tolist() == [0, -1]
    assert joined.trace.kernels["dram_read_bytes"].isna().tolist() == [False, True]
    assert [(w.code, w.count) for w in joined.warnings] == [("counters-missing", 1)]
    assert counter_metrics(joined, file)["dram_bytes"].value is None
    three = CounterFile(source="x", kernels=(counted("add", 1),) * 3)
    twice = recorded([[("add", 1), ("add", 1)]])
    joined = join_counters(twice, three, twice.steps())
    assert joined.time_fraction == 0.0
    assert joined.trace is twice


@needs_files
def test_names_agree_between_the_two_profilers() -> None:
    """Every kernel of the recorded BERT step has a namesake in the counters of a BERT step."""
    trace = read_trace(H200 / "bert.eager.json.gz")
    counters = read_ncu(MODEL)
    known = {bare_name(kernel.name) for kernel in counters.kernels}
    assert {bare_name(str(name)) for name in trace.kernels["name"].cat.categories} <= known
    joined = join_counters(trace, counters, trace.steps())
    # Another batch: most launches differ, and what differs gets no counters.
    assert joined.time_fraction < 0.1
    assert {w.code for w in joined.warnings} == {"counters-missing", "counters-unused"}


@needs_files
def test_a_step_of_the_recorded_kernels_gets_its_exact_traffic() -> None:
    counters = read_ncu(MODEL)
    trace = _as_trace(counters)
    joined = join_counters(trace, counters, trace.steps())
    assert joined.time_fraction == 1.0
    metrics = counter_metrics(joined, counters)
    assert metrics["dram_bytes"].value == 1_012_688_384 + 160_178_176
    assert metrics["spill_store_bytes"].value == 0
    assert metrics["spill_store_bytes"].provenance == "estimated"
    rows = kernel_rows(joined.trace, joined.trace.steps())
    assert sum(row.dram_bytes or 0 for row in rows) == 1_012_688_384 + 160_178_176
    assert {row.occupancy_limiter for row in rows} >= {"registers", "warps"}


def _as_trace(counters: CounterFile) -> Trace:
    line = Timeline()
    line.range("ProfilerStep#0", 0, 1_000)
    for i, kernel in enumerate(counters.kernels):
        assert kernel.grid is not None
        assert kernel.block is not None
        sizes = zip("xyz", kernel.grid, kernel.block, strict=True)
        line.kernel(
            2_000 + 100 * i,
            1,
            name=kernel.name,
            correlation=line.launch(2 * i),
            registers_per_thread=kernel.registers_per_thread,
            **{k: v for a, g, b in sizes for k, v in ((f"grid_{a}", g), (f"block_{a}", b))},
        )
    return line.build()


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("void at::native::(anonymous namespace)::f<int, (B)1>(T*)", "f"),
        ("void at::<unnamed>::f<int>(T)", "f"),
        ("nvjet_sm90_hsh_TNN", "nvjet_sm90_hsh_TNN"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void cutlass::Kernel2<cutlass_80_s16816gemm>(Params)", "Kernel2"),
        ("std::enable_if<true>::type internal::g(int)", "enable_if"),
    ],
)
def test_bare_names(name: str, bare: str) -> None:
    assert bare_name(name) == bare


def test_a_trace_without_kernels_joins_nothing() -> None:
    trace = Timeline().build()
    file = CounterFile(source="x", kernels=(counted("add", 1),))
    joined = join_counters(trace, file, trace.steps())
    assert joined.time_fraction == 0.0
    assert isinstance(joined.trace.kernels, pd.DataFrame)
