"""Operations and bytes of kernels: formulas counted one by one, and recorded steps."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.hardware.gpus import gpu_by_key
from advisor.model.report import KernelRow
from advisor.model.trace import Trace
from advisor.pipeline.analyze import analyze
from analyzers.dataflow import dataflow
from analyzers.kernel_work import group_work, with_work
from analyzers.matrix_work import OpWork, matrix_work
from analyzers.metrics import kernel_rows
from analyzers.pricing import Unit, price_list
from analyzers.recorded_ops import Operand, RecordedOp
from analyzers.subject import GraphFacts
from collectors import read_trace
from tests.builders.graph import Sketch
from tests.builders.trace import event, kineto

SAMPLES = Path(__file__).parents[2] / "sample_traces"
sizes = st.integers(1, 7)


def operand(*shape: int, dtype: str = "bfloat16") -> Operand:
    return Operand(dtype, shape, None)


def work(name: str, *arguments: Operand | str) -> OpWork | None:
    return matrix_work(RecordedOp(f"aten::{name}", arguments))


@given(sizes, sizes, sizes, sizes)
def test_products_count_a_multiply_and_an_add_for_every_term(
    b: int, m: int, n: int, k: int
) -> None:
    terms = sum(1 for _ in range(m) for _ in range(n) for _ in range(k))
    moved = 2 * (m * k + k * n + m * n)
    assert work("mm", operand(m, k), operand(k, n)) == OpWork(2 * terms, moved, "bfloat16", True)
    batched = work("bmm", operand(b, m, k), operand(b, k, n))
    assert batched == OpWork(2 * b * terms, b * moved, "bfloat16", True)
    added = work("addmm", operand(n), operand(m, k), operand(k, n))
    assert added == OpWork(2 * terms, moved + 2 * n, "bfloat16", True)


@given(st.integers(3, 12), st.integers(1, 3), st.integers(0, 2), st.integers(1, 3), sizes)
def test_convolutions_count_every_place_of_the_window(
    size: int, taps: int, pad: int, stride: int, channels: int
) -> None:
    places = len(range(0, size + 2 * pad - taps + 1, stride))
    found = work(
        "cudnn_convolution", operand(2, channels, size, size), operand(5, channels, taps, taps),
        f"[{pad}, {pad}]", f"[{stride}, {stride}]", "[1, 1]", "1",
    )  # fmt: skip
    assert found is not None
    assert found.flops == 2 * 2 * 5 * places**2 * channels * taps**2


@pytest.mark.parametrize(("causal", "pairs"), [("False", 9), ("True", 6)])
def test_attention_counts_the_pairs_that_are_seen(causal: str, pairs: int) -> None:
    heads = [operand(2, 4, 3, 8) for _ in range(3)]
    found = work("_cudnn_attention_forward", *heads, *[""] * 7, causal)
    assert found is not None
    assert found.flops == 2 * 4 * pairs * 4 * 8
    flash = [operand(2, 3, 4, 8) for _ in range(3)]
    assert work("_flash_attention_forward", *flash, *[""] * 5, causal) == found


def test_what_is_not_known_is_not_counted() -> None:
    a, b = operand(4, 8), operand(8, 2)
    assert work("mm", a, "") is None
    assert work("mm", a, operand(7, 2)) is None
    assert work("mm", operand(4, 8, dtype="float8_e4m3fn"), b) is None
    assert work("mm", operand(0, 8), b) is None
    assert work("my_mm", a, b) is None
    assert matrix_work(RecordedOp("mine::mm", (a, b))) is None
    heads = [operand(2, 4, 3, 8) for _ in range(3)]
    assert work("_cudnn_attention_forward", *heads) is None, "causal or not is unknown"
    ragged = [*heads, "", operand(3), operand(3), *[""] * 4, "False"]
    assert work("_cudnn_attention_forward", *ragged) is None, "lengths differ"
    window = [*heads, *[""] * 5, "False", "", "", "128", "0"]
    assert work("_flash_attention_forward", *window) is None
    assert work("cudnn_convolution", operand(1, 1, 4, 4), operand(1, 1, 2, 2), "") is None


def test_a_kernel_reads_its_operands_once_and_writes_what_others_read() -> None:
    s = Sketch()
    x, row = s.input(4, 8), s.input(1, 8)
    y = s.op("add", x, s.expand(row, 4, 8))
    z = s.op("mul", s.op("exp", y), y)
    flow = dataflow(s.build(z))
    fused = frozenset(flow.index) - {"in0", "in1"}
    members = frozenset(n for n in fused if flow.nodes[n].op != "opaque")
    found = group_work(flow, members)
    assert found is not None
    assert found.bytes == 4 * (4 * 8 + 8 + 4 * 8), "the repeated row once, y never"
    assert found.flops == 3 * 32
    assert not found.matrix


def test_unknown_ops_sizes_and_types_have_no_work() -> None:
    s = Sketch()
    foreign = s.opaque("my::op", s.input(4))
    counted = s.op("add", s.input(4, dtype="int64"), s.input(4, dtype="int64"))
    double = s.op("exp", s.input(4, dtype="float64"))
    grown = s.op("exp", s.input("s0"))
    flow = dataflow(s.build(foreign, counted, double, grown))
    for value in (foreign, counted, double, grown):
        assert group_work(flow, frozenset({value[1:]})) is None


def test_a_generated_kernel_computes_also_what_no_kernel_is_said_to() -> None:
    s = Sketch()
    x = s.input(4, 8)
    inlined, kept = s.op("neg", x), s.op("exp", x)
    last = s.op("mul", s.op("add", inlined, kept), x)
    flow = dataflow(s.build(last))
    units = [
        Unit("first", frozenset({kept[1:]}), 1, 1, (0,)),
        Unit("second", frozenset({last[1:]}), 1, 1, (1,)),
    ]
    facts = GraphFacts(flow.graph, flow, price_list(units, fused=True))
    trace = step(("my::op", [], [("first", 5), ("second", 5)]))
    steps = trace.steps()
    rows = with_work(kernel_rows(trace, steps), trace, steps, (facts,))
    works = {row.name: row.work for row in rows}
    assert works["second"] is not None
    assert works["second"].flops == 3 * 32, "neg and add are in it, exp is read"
    assert works["second"].bytes == 3 * 4 * 32


def step(*ops: tuple[str, list[list[int]], list[tuple[str, float]]]) -> Trace:
    """One step of ops: name, shapes of its bfloat16 operands, kernels with their times."""
    events, at, number = [event("user_annotation", "ProfilerStep#0", 1, 900)], 10.0, 0
    for place, (name, shapes, kernels) in enumerate(ops):
        dims: dict[str, Any] = {
            "External id": place + 1, "Input Dims": shapes,
            "Input type": ["c10::BFloat16"] * len(shapes),
        }  # fmt: skip
        events.append(event("cpu_op", name, at, 50, **dims))
        for kernel, length in kernels:
            number += 1
            common = {"External id": place + 1, "correlation": number}
            events.append(event("cuda_runtime", "cudaLaunchKernel", at + 1, 1, **common))
            events.append(event("kernel", kernel, at + 5, length, device=0, stream=7, **common))
            at += 20
        at += 60
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(kineto(events))
        return read_trace(path)


def rows_of(trace: Trace) -> dict[str, KernelRow]:
    steps = trace.steps()
    return {row.name: row for row in with_work(kernel_rows(trace, steps), trace, steps, ())}


def test_the_longest_kernel_of_a_product_does_it() -> None:
    product = [[64, 32], [32, 16]]
    rows = rows_of(
        step(
            ("aten::mm", product, [("gemm", 9), ("splitKreduce", 2)]),
            ("aten::mm", product, [("gemm", 8)]),
            ("aten::mm", product, [("other_gemm", 8)]),
            ("aten::mul", product, [("other_gemm", 8)]),
        )
    )
    found = rows["gemm"].work
    assert found is not None
    assert found.flops == 2 * 2 * 64 * 32 * 16
    assert found.matrix
    assert rows["splitKreduce"].work is None
    assert rows["other_gemm"].work is None, "of one of its executions nothing is known"


@functools.cache
def sample(name: str) -> tuple[KernelRow, ...]:
    return analyze([SAMPLES / f"{name}.json.gz"]).kernels


@pytest.mark.parametrize("name", ["llama_prefill.eager", "llama_prefill.inductor", "unet.eager"])
def test_no_recorded_kernel_computes_faster_than_its_gpu(name: str) -> None:
    h200 = gpu_by_key("h200")
    known = [row for row in sample(name) if row.work is not None]
    assert sum(row.time_ns for row in known) > 0.5 * sum(row.time_ns for row in sample(name))
    for row in known:
        assert row.work is not None
        peak = h200.bfloat16_flops if row.work.matrix else h200.float32_flops
        assert row.work.flops / row.time_ns * 1e9 < (peak or math.inf), row.name


def test_the_products_of_a_model_are_those_of_its_layers() -> None:
    """Four layers of width 2,048 and a head of 32,000 over 4,096 tokens."""
    gemms = [row for row in sample("llama_prefill.eager") if row.work and row.work.matrix]
    linear = 4096 * (4 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 5632) + 2048 * 32000)
    attention = 4 * 2 * 64 * 1024 * 1024 * 128
    total = sum(row.work.flops for row in gemms if row.work)
    assert total == pytest.approx(2 * (linear + attention), rel=1e-4)
