"""Modelled cost: what a program moves and computes, and what a swap leaves behind."""

from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Range
from advisor.model.column_configs import workspace_bytes
from advisor.model.configs import default_config
from advisor.model.graph import Graph, node_of
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from analyzers.cost_model import kernel_time
from analyzers.dataflow import dataflow
from analyzers.pricing import Unit
from analyzers.program_cost import (
    modelled_before,
    nodes_bytes,
    program_time,
    residual_time,
    sum_of,
)
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from tests.builders.graph import Sketch
from tests.codegen.plans import bias_gradient, norm_gradient

H200 = gpu_by_key("h200")
CALIBRATION = default_calibration(H200)


def only_plan(graph: Graph) -> FusionPlan:
    (group,) = find_row_programs(graph).whole
    return plan_of([canonical_program(dataflow(graph), group)], "inference", "test")


def masked_softmax(batch: int = 2) -> Graph:
    s = Sketch()
    scores, mask = s.input(batch, 4, 64, 64, dtype="bfloat16"), s.input(batch, 1, 64, 64)
    total = s.op("add", s.cast(scores, "float32"), mask)
    out = s.softmax(total)
    return s.build(s.cast(out, "bfloat16"), s.reduce("amax", total))


def test_inputs_count_once_with_what_they_span_and_outputs_once() -> None:
    plan = only_plan(masked_softmax())
    tile = 2 * 4 * 64 * 64
    rows = 2 * 4 * 64
    assert site_bytes(plan, plan.sites[0]) == 2 * tile + 4 * 2 * 64 * 64 + 2 * tile + 4 * rows


def test_the_bytes_of_nodes_are_what_crosses_their_border() -> None:
    s = Sketch()
    x, weight = s.input(16, 32), s.input(32)
    a = s.op("exp", x)
    b = s.op("mul", s.op("add", a, x), s.expand(weight, 16, 32))
    c = s.op("neg", a)
    flow = dataflow(s.build(b, c))
    inside = {n.id for n in flow.graph.nodes if n.op in ("exp", "add", "mul")}
    # Reads x and the stored weight once; writes b and a, which `neg` reads.
    assert nodes_bytes(flow, inside) == 4 * (16 * 32 + 32 + 2 * 16 * 32)
    assert nodes_bytes(flow, {node_of(c)[0]}) == 4 * 2 * 16 * 32


def test_a_value_that_nobody_reads_costs_nothing_to_write() -> None:
    s = Sketch()
    x = s.input(16, 32)
    s.op("exp", x)
    flow = dataflow(s.build(s.op("neg", x)))
    assert nodes_bytes(flow, {"exp1"}) == 4 * 16 * 32


def test_program_time_is_the_kernel_times_its_executions() -> None:
    plan = only_plan(masked_softmax(batch=32))
    site = plan.sites[0]
    once = program_time(plan, site, H200, CALIBRATION)
    assert once.low < once.mid < once.high
    many = msgspec.structs.replace(site, executions=5.0)
    assert program_time(plan, many, H200, CALIBRATION) == once.scaled(5.0)
    # Memory-bound: not faster than its bytes at the calibrated bandwidth.
    moved = site_bytes(plan, site)
    floor = CALIBRATION.kernel_floor_ns + 1e9 * moved / CALIBRATION.bandwidth(moved)
    assert floor - 1 <= once.mid <= 1.5 * floor


def test_single_ops_are_modelled_only_where_asked_but_all_move_bytes() -> None:
    graph = masked_softmax(batch=32)
    flow = dataflow(graph)
    (group,) = find_row_programs(graph).whole
    every = frozenset(group.members)
    some = frozenset(list(group.members)[:2])
    all_time, moved = modelled_before(flow, group.members, H200, CALIBRATION, only=every)
    some_time, same = modelled_before(flow, group.members, H200, CALIBRATION, only=some)
    none_time, _ = modelled_before(flow, group.members, H200, CALIBRATION, only=frozenset())
    assert moved == same > 2 * site_bytes(only_plan(graph), only_plan(graph).sites[0])
    assert none_time == Range(low=0, mid=0, high=0)
    assert 0 < some_time.mid < all_time.mid


def test_results_without_elements_are_no_kernel() -> None:
    def modelled(rows: int) -> Range:
        s = Sketch()
        x = s.input(rows, 512)
        flow = dataflow(s.build(s.op("mul", s.op("exp", x), x)))
        names = frozenset(n.id for n in flow.graph.nodes if n.op != "opaque")
        return modelled_before(flow, names, H200, CALIBRATION, only=names)[0]

    assert modelled(0) == Range(low=0, mid=0, high=0)
    assert modelled(1).mid > 0


def test_what_a_shared_kernel_must_still_do_is_charged_once() -> None:
    s = Sketch()
    x = s.input(1024, 1024)
    a = s.op("exp", x)
    b = s.op("neg", a)
    c = s.op("abs", b)
    flow = dataflow(s.build(c))
    names = [node_of(v)[0] for v in (a, b, c)]
    gone = frozenset(names[:1])
    shared = [Unit("k", frozenset(names[:2]), 10, 1), Unit("l", frozenset(names[:3]), 10, 1)]
    one = kernel_time(H200, CALIBRATION, bytes_moved=4 * 2 * 1024 * 1024)
    assert residual_time(flow, shared[:1], gone, H200, CALIBRATION) == one
    # The second unit shares b with the first: only c is left of it.
    assert residual_time(flow, shared, gone, H200, CALIBRATION) == one.plus(one)
    assert residual_time(flow, shared[:1], frozenset(names), H200, CALIBRATION) is None
    assert residual_time(flow, [], gone, H200, CALIBRATION) is None


def test_views_and_opaque_leftovers_cost_nothing() -> None:
    s = Sketch()
    x = s.input(64, 64)
    a = s.op("exp", x)
    flat = s.reshape(a, 4096)
    sorted_ = s.opaque("aten.sort.default", flat)
    flow = dataflow(s.build(sorted_))
    unit = Unit("k", frozenset(node_of(v)[0] for v in (a, flat, sorted_)), 10, 1)
    assert residual_time(flow, [unit], frozenset({node_of(a)[0]}), H200, CALIBRATION) is None


def test_sizes_known_at_run_time_count_as_they_were() -> None:
    s = Sketch(s0=12)
    x = s.input("s0", 32)
    y = s.op("exp", x)
    flow = dataflow(s.build(y))
    assert nodes_bytes(flow, {node_of(y)[0]}) == 4 * 2 * 12 * 32


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_sum_of_times_adds_every_bound(count: int) -> None:
    part = Range(low=1, mid=2, high=4)
    assert sum_of([part] * count) == Range(low=count, mid=2 * count, high=4 * count)


def test_partial_sums_over_the_rows_cost_their_traffic_and_a_second_launch() -> None:
    plan = norm_gradient(sizes=(16_384,), columns=4096)
    site = plan.sites[0]
    alone = kernel_time(H200, CALIBRATION, bytes_moved=site_bytes(plan, site))
    found = program_time(plan, site, H200, CALIBRATION)
    assert alone.mid + 1_000 < found.mid < 1.5 * alone.mid
    walk = bias_gradient(sizes=(8,), columns=1 << 20)
    assert workspace_bytes(walk, default_config(walk, walk.sites[0]), walk.sites[0]) == 0
