"""What people who profile ran into, as comparisons and reports of small built traces.

Cases that one rule answers stand beside that rule's tests (tests/analyzers/rules); here are those
that need two reports, or a whole one.
"""

from __future__ import annotations

from typing import Any

import pytest

from advisor.model.report import KernelRow
from advisor.pipeline.analyze import analyze
from advisor.report.compare_kernels import kernel_changes, role_changes
from tests.builders.eager import Eager, Tensor
from tests.builders.trace import event, kineto


def kernel(name: str, role: str, **more: Any) -> KernelRow:
    return KernelRow(name=name, role=role, library="pytorch", count=1.0, **more)


def test_one_fused_kernel_stands_beside_the_sum_of_those_it_replaced() -> None:
    """pytorch#121857: the fused AdamW took longer than the eight foreach kernels."""
    before = tuple(kernel(f"foreach_{i}", "optimizer", time_ns=6_000_000) for i in range(8))
    after = (kernel("fused_adamw", "optimizer", time_ns=126_648_000, registers_per_thread=126),)
    (change,) = role_changes(before, after)
    assert (change.role, change.count_before, change.count_after) == ("optimizer", 8, 1)
    assert change.time.before == 48_000_000
    assert change.time.change == 126_648_000 - 48_000_000


def test_fewer_kernels_and_a_slower_reduction_are_both_told() -> None:
    """jax#18424: the epilogue went into the reduction, which fell back to a plain loop."""
    call = {"reduce [[4096, 4096]]": 1.0}
    before = (
        kernel("reduce_fusion", "reduction", time_ns=50_000, calls=call),
        kernel("epilogue", "pointwise", time_ns=5_000),
    )
    after = (kernel("loop_fusion", "reduction", time_ns=170_000, calls=call),)
    changes = {c.before: c for c in kernel_changes(before, after)}
    assert changes["reduce_fusion"].after == "loop_fusion"
    assert changes["reduce_fusion"].time.change == 120_000
    assert changes["epilogue"].after is None


def test_a_kernel_that_only_changed_its_name_is_the_same_kernel() -> None:
    """NVIDIA/cutlass#3389: a word in the symbol changed the registers, and took 31 % more time."""
    call = {"aten::mm [[4096, 4096], [4096, 4096]]": 1.0}
    before = kernel("cutlass_sm100_gemm", "gemm", time_ns=100_000, calls=call)
    after = kernel("my_sm100_gemm", "gemm", time_ns=131_000, calls=call, registers_per_thread=80)
    (change,) = kernel_changes((before,), (after,))
    assert (change.before, change.after, change.basis) == (before.name, after.name, "calls")
    assert change.time.change == 31_000


def test_an_epilogue_of_many_operands_is_not_put_into_the_product() -> None:
    """pytorch PR 108193: four sigmoid(x + c) g branches, six more inputs as large as the result."""
    eager = Eager()
    x = eager.matmul(Tensor((1024, 5098), "float16"), Tensor((5098, 1024), "float16"))
    branches = []
    for _ in range(4):
        moved = eager.op("aten::add", x, Tensor((1024, 1), "float16"), 1)
        gate = eager.op("aten::sigmoid", moved)
        branches.append(eager.op("aten::mul", gate, Tensor((1024, 1024), "float16")))
    for left, right in (branches[:2], branches[2:]):
        eager.op("aten::add", left, right, 1)
    found = [match.finding for match in eager.found().values()]
    assert found, "the branches are a chain"
    assert not any("aten::mm" in {m.name for m in finding.members} for finding in found)


def test_an_estimated_occupancy_of_zero_is_a_small_grid(tmp_path: Any) -> None:
    """kineto PR 1330: the field is estimated from the grid; registers of 255 prove nothing."""
    path = tmp_path / "t.json"
    arguments = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]}
    arguments |= {"est. achieved occupancy %": 0, "registers per thread": 255}
    events = [event("kernel", "cutlass_gemm", 10 * i, 9, **arguments) for i in range(50)]
    path.write_bytes(kineto(events))
    report = analyze([path])
    assert report.kernels[0].occupancy_estimated == 0
    assert report.kernels[0].local_bytes_per_thread is None
    assert not [f for f in report.findings if f.kind != "note"]
    assert not any("spill" in e.text for f in report.findings for e in f.evidence)


def test_seven_events_that_outran_their_successors_take_no_time(tmp_path: Any) -> None:
    """TraceLens#669: 7 of 55,423 events became 62 % of the time."""
    path = tmp_path / "t.json"
    where = {"device": 0, "stream": 7}
    events = [event("kernel", "k", 10 * i, 9, **where) for i in range(1000)]
    for place in range(0, 700, 100):
        events[place]["dur"] = 2_300_000
    path.write_bytes(kineto(events))
    report = analyze([path])
    assert {w.code: w.count for w in report.warnings}["duration_clipped"] == 7
    assert report.metrics["gpu_busy_ns"].value == pytest.approx(9_000_000, rel=0.01)
