"""Each metric on the smallest trace that tells its definition from a neighbouring one."""

from __future__ import annotations

import pytest

from advisor.model.report import Metric
from analyzers.kernel_roles import TABLE, classify
from analyzers.metrics import gpu_busy_by_range, kernel_rows, trace_metrics
from tests.builders.trace import US, Timeline


def metrics_of(line: Timeline, prefix: str = "ProfilerStep#") -> dict[str, Metric]:
    return trace_metrics(line.build(), prefix)


def test_overlapping_kernels_count_once_as_busy_and_twice_as_sum() -> None:
    line = Timeline()
    line.kernel(0, 10, stream=1)
    line.kernel(5, 10, stream=2)
    line.kernel(0, 10, device=1)
    found = metrics_of(line)
    assert found["gpu_busy_ns"].value == 25 * US
    assert found["kernel_time_sum_ns"].value == 30 * US
    assert found["gpu_span_ns"].value == 15 * US


def test_idle_counts_copies_as_work_but_only_inside_the_span() -> None:
    line = Timeline()
    line.copy(-5, 5)
    line.kernel(0, 10)
    line.copy(10, 5)
    line.kernel(20, 20)
    assert metrics_of(line)["gpu_idle_fraction"].value == pytest.approx(5 / 40)
    assert metrics_of(line_without_kernels())["gpu_idle_fraction"].value is None


def line_without_kernels() -> Timeline:
    line = Timeline()
    line.op("aten::add", 0, 5)
    return line


def test_a_trace_without_any_kernel_gives_unknowns_not_zeros_of_time() -> None:
    found = metrics_of(line_without_kernels())
    assert found["kernels"].value == 0
    assert found["gpu_span_ns"].provenance == "unknown"


def test_an_activity_belongs_to_the_step_that_holds_its_launch() -> None:
    line = Timeline()
    line.range("ProfilerStep#1", 0, 100)
    line.range("ProfilerStep#2", 100, 100)
    line.kernel(150, 30, correlation=line.launch(90))  # runs in step 2, launched in step 1
    line.kernel(180, 10, correlation=line.launch(110))
    line.kernel(50, 1)  # launched before the window
    found = metrics_of(line)
    assert found["gpu_busy_per_step_ns"].per_step == (30 * US, 10 * US)
    assert found["gpu_busy_per_step_ns"].value == 20 * US
    assert found["kernels_per_step"].per_step == (1, 1)
    assert found["kernel_launches_per_step"].per_step == (1, 1)
    assert found["kernels"].value == 3


def test_another_prefix_chooses_other_steps() -> None:
    line = Timeline()
    line.range("ProfilerStep#1", 0, 100)
    line.range("iteration 1", 0, 10)
    line.range("iteration 2", 10, 10)
    line.kernel(20, 5, correlation=line.launch(12))
    trace = line.build()
    assert trace_metrics(trace, "iteration ")["kernels_per_step"].per_step == (0, 1)
    assert trace_metrics(trace, "none")["kernels_per_step"].value is None


def test_a_graph_launch_is_one_launch_of_many_kernels() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 0, 100)
    graph = line.launch(5, kind="graph", name="cudaGraphLaunch")
    for i in range(5):
        line.kernel(10 + 2 * i, 1, correlation=graph)
    found = metrics_of(line)
    assert found["kernel_launches_per_step"].value == 1
    assert found["kernels_per_step"].value == 5
    assert found["starved_ns"].value == 0
    assert found["gpu_idle_fraction"].provenance == "measured"


def test_idle_is_unreliable_when_replays_left_no_kernels() -> None:
    line = Timeline()
    line.kernel(10, 1, correlation=line.launch(5, kind="graph"))
    for at in (20, 40, 60):
        line.launch(at, kind="graph")
    line.kernel(90, 1, correlation=line.launch(80))
    found = metrics_of(line)
    assert found["gpu_idle_fraction"].provenance == "estimated"
    assert "3 of 4 graph launches" in found["gpu_idle_fraction"].definition
    assert found["starved_ns"].provenance == "estimated"
    assert found["gpu_busy_ns"].provenance == "measured"


def test_idle_is_unreliable_when_a_step_has_no_kernels() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 0, 50)
    line.range("ProfilerStep#1", 50, 50)
    line.kernel(10, 1, correlation=line.launch(5))
    assert "1 of 2 steps" in metrics_of(line)["gpu_idle_fraction"].definition


def test_attribution_is_stated() -> None:
    line = Timeline()
    line.op("aten::mm", 0, 10)
    line.kernel(20, 30, correlation=line.launch(5))
    line.kernel(50, 10, correlation=line.launch(15))
    line.kernel(60, 60)
    found = metrics_of(line)
    assert found["attributed_time_fraction"].value == pytest.approx(0.3)
    assert found["kernels_without_launch"].value == 1
    assert metrics_of(line_without_kernels())["attributed_time_fraction"].value is None


def test_starved_is_what_lies_before_the_launch() -> None:
    line = Timeline()
    line.kernel(0, 10, correlation=line.launch(-5))
    line.kernel(40, 10, correlation=line.launch(25))  # gap 10..40: starved until 25
    line.kernel(60, 10, correlation=line.launch(30))  # launched in time: gap not the host's fault
    line.kernel(80, 10)  # no launch recorded
    found = metrics_of(line)
    assert found["starved_ns"].value == 15 * US
    assert found["starved_dispatch_ns"].value == 15 * US
    assert found["starved_unattributed_ns"].value == 10 * US


def test_a_gap_that_opens_inside_a_synchronisation_is_its_fault() -> None:
    line = Timeline()
    line.kernel(0, 10, correlation=line.launch(-5))
    line.sync(2, 9)  # the device runs dry at 10 while the host waits
    line.kernel(40, 10, correlation=line.launch(30))
    line.sync(51, 2)  # begins after the device ran dry at 50
    line.kernel(70, 10, correlation=line.launch(60))
    line.sync(79, 5, thread=2)  # another thread waits
    line.kernel(95, 5, correlation=line.launch(90))
    found = metrics_of(line)
    assert found["starved_synchronisation_ns"].value == 20 * US
    assert found["starved_dispatch_ns"].value == 20 * US
    assert found["starved_ns"].value == 40 * US


def test_a_copy_keeps_the_device_from_starving() -> None:
    line = Timeline()
    line.kernel(0, 10, correlation=line.launch(-5))
    line.copy(10, 20, correlation=line.launch(5, kind="copy"))
    line.kernel(40, 10, correlation=line.launch(35))
    assert metrics_of(line)["starved_ns"].value == 5 * US


def test_exposed_communication_is_what_no_kernel_hides() -> None:
    line = Timeline()
    line.kernel(0, 20, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", stream=2)
    line.kernel(10, 5, name="ncclDevKernel_AllGather_RING_LL(x)", stream=3)
    line.kernel(5, 3, name="gemm", stream=1)
    line.kernel(18, 10, name="gemm", stream=1)
    found = metrics_of(line)
    assert found["comm_union_ns"].value == 20 * US
    assert found["exposed_comm_ns"].value == 15 * US


def test_busy_time_by_interleaved_variants() -> None:
    line = Timeline()
    for i, (variant, length) in enumerate([("a", 4), ("b", 2), ("a", 6), ("b", 3)]):
        at = 100 * i
        line.range(f"ab:{variant}", at, 20)
        line.kernel(at + 30, length, correlation=line.launch(at + 5))
        line.kernel(at + 30, length, correlation=line.launch(at + 6), stream=8)
        line.copy(at + 60, 1, correlation=line.launch(at + 7, kind="copy"))
        line.kernel(at + 80, 9, correlation=line.launch(at + 50))  # launched between the ranges
    assert gpu_busy_by_range(line.build(), "ab:") == {
        "a": [5 * US, 7 * US],
        "b": [3 * US, 4 * US],
    }


def test_kernel_rows_are_per_step_and_name_their_ops() -> None:
    line = Timeline()
    for step in range(2):
        at = step * 100
        line.range(f"ProfilerStep#{step}", at, 100)
        line.op("aten::mm", at + 1, 10)
        for i in range(3):
            call = line.launch(at + 2 + i)
            line.kernel(
                at + 20 + 4 * i, 4, name="sgemm", correlation=call, registers_per_thread=90 + i
            )
    line.kernel(500, 50, name="outside")
    trace = line.build()
    (row,) = kernel_rows(trace, trace.steps())
    assert (row.name, row.role, row.count, row.time_ns) == ("sgemm", "gemm", 3, 12 * US)
    assert (row.registers_per_thread, row.local_bytes_per_thread) == (92, None)
    assert row.ops == ("aten::mm",)
    assert row.calls == {"aten::mm": 3.0}
    assert row.time_per_step_ns == (12 * US, 12 * US)
    assert row.first_execution == 0
    assert {r.name for r in kernel_rows(trace, trace.steps("none"))} == {"sgemm", "outside"}


def test_every_definition_is_printed_with_its_metric() -> None:
    line = Timeline()
    line.kernel(0, 1)
    for name, metric in metrics_of(line).items():
        assert len(metric.definition) > 20, name
        assert metric.unit in ("ns", "count", "fraction"), name


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "communication",
        ),
        ("void vllm::cross_device_reduce_1stage<__half, 2>(...)", "communication"),
        ("multimem_all_reduce_kernel", "communication"),
        ("nvjet_sm90_hsh_96x128_64x7_2x1_v_bz_bias_TNN", "gemm"),
        ("triton_poi_fused_gelu_view_6", "pointwise"),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "reduction"),
        (
            "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float>",
            "softmax",
        ),
        ("something_nobody_knows", "other"),
    ],
)
def test_roles(name: str, role: str) -> None:
    assert classify(name).role == role


def test_every_row_of_the_role_table_has_a_source() -> None:
    assert all(row.source and row.library for row in TABLE)
