"""Overlapping groups: the set that is worth most; values that several kernels need."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.graph import Graph, node_of
from analyzers.choice import MAX_ORDERED, group_bytes, traffic_saved
from analyzers.dataflow import Dataflow, dataflow
from analyzers.exposure import Situation
from analyzers.growth import Group
from analyzers.opportunities import PricedGraph, advise, saved_time
from analyzers.prediction import PricedFlow
from analyzers.pricing import Unit, price_list
from analyzers.row_programs import RowPrograms, find_row_programs, row_programs
from tests.builders.graph import Sketch, assert_legal

GPU = gpu_by_key("h200")
EAGER = Situation(GPU, default_calibration(GPU), eager=True)


def wanted_by(widths: Sequence[int], tail: int = 0) -> tuple[Graph, str]:
    """One chain that groups over rows of several widths want; the last has more to gain from it."""
    s = Sketch()
    x, z = s.input(512, 64), s.input(512, 64)
    shared = s.op("add", s.op("exp", s.op("mul", x, z)), z)
    outputs = []
    for width in widths:
        value = s.reshape(shared, 512 * 64 // width, width)
        out = s.op("sub", value, s.mean(value))
        outputs.append(s.op("mul", out, 2.0))
    for _ in range(tail):
        outputs[-1] = s.op("neg", outputs[-1])
    return s.build(*outputs), shared


def owner_of(found: RowPrograms, value: str) -> list[Group]:
    return [group for group in found.whole if node_of(value)[0] in group.members]


def test_the_set_that_saves_most_is_taken_not_the_first() -> None:
    """Two groups want the chain; what the caller says it is worth decides, not the order."""
    graph, shared = wanted_by([64, 32])
    flow = dataflow(graph)

    def only(width: int) -> RowPrograms:
        def worth(_: Dataflow, groups: Sequence[Group]) -> float:
            mine = [g for g in groups if node_of(shared)[0] in g.members]
            return sum(flow.hint(g.space.axes[-1]) == width for g in mine)

        return row_programs(flow, worth)

    for width in (64, 32):
        found = only(width)
        (holder,) = [
            g for g in found.every_group() if g in found.whole and node_of(shared)[0] in g.own
        ]
        assert flow.hint(holder.space.axes[-1]) == width
        assert found.others
        assert_legal(graph, [p or w for w, p in zip(found.whole, found.plain, strict=True)])


@pytest.mark.parametrize("seeds", [2, MAX_ORDERED, MAX_ORDERED + 2])
def test_however_many_want_it_every_set_is_legal(seeds: int) -> None:
    graph, _ = wanted_by([64 >> n for n in range(seeds)])
    found = find_row_programs(graph)
    assert len(found.whole) == min(seeds, 6)
    assert_legal(graph, found.whole)
    own = [name for group in found.whole for name in group.own]
    assert len(own) == len(set(own))


def test_in_a_priced_step_a_set_is_worth_the_kernel_time_that_it_saves() -> None:
    s = Sketch()
    x = s.input(4096, 1024)
    graph = s.build(s.rms_norm(x, s.input(1024)))
    nodes = [node.id for node in graph.nodes if node.args]
    prices = price_list([Unit(f"k{n}", frozenset((n,)), 20_000, 1) for n in nodes])
    (plan,) = advise([PricedGraph(graph, prices)], EAGER).plans
    assert plan.prediction is not None
    flow = dataflow(graph)
    worth = saved_time(PricedFlow(flow, prices, "inference"), EAGER)
    assert worth(flow, row_programs(flow).whole) == plan.prediction.saving_ns.mid
    assert worth(flow, ()) == 0


def half_read_by_two() -> Graph:
    """A cast that widens: writing it costs more than reading its operand again."""
    s = Sketch()
    wide = s.cast(s.input(512, 64, dtype="bfloat16"), "float32")
    first = s.op("sub", wide, s.mean(wide))
    other = s.reshape(wide, 1024, 32)
    second = s.op("sub", other, s.mean(other))
    return s.build(first, second)


def test_what_is_cheaper_to_compute_again_is_not_written() -> None:
    graph = half_read_by_two()
    found = find_row_programs(graph)
    assert [len(group.members) for group in found.whole] == [3, 3]
    assert [group.space.outputs for group in found.whole] == [("%sub3",), ("%sub6",)]
    (decision,) = found.fan_outs
    assert decision.computed_again
    assert decision.again_bytes == group_bytes(found.flow, found.whole[1])
    plain = [p or w for w, p in zip(found.whole, found.plain, strict=True)]
    both = sum(group_bytes(found.flow, group) for group in found.whole)
    assert sum(group_bytes(found.flow, group) for group in plain) > both
    assert_legal(graph, found.whole)


def test_both_ways_are_priced_and_told() -> None:
    advice = advise([PricedGraph(half_read_by_two())], EAGER)
    texts = [e.text for f in advice.findings for e in f.evidence]
    assert any("needed by another kernel too" in t and "it is computed again" in t for t in texts)
    priced = [a for f in advice.findings for a in f.alternatives if a.plan_ids]
    assert len(priced) > len(advice.findings)


def test_a_value_that_is_overwritten_later_is_not_computed_again() -> None:
    s = Sketch()
    x = s.input(512, 64, dtype="bfloat16")
    wide = s.cast(x, "float32")
    first = s.op("sub", wide, s.mean(wide))
    other = s.reshape(wide, 1024, 32)
    second = s.op("sub", other, s.mean(other))
    s.opaque("aten.copy_.default", x, s.input(512, 64), mutates=(x,), alias_of=x)
    found = find_row_programs(s.build(first, second))
    assert not found.fan_outs
    assert not any(group.shares.again for group in found.whole)


def test_a_matrix_product_is_never_computed_again() -> None:
    s = Sketch()
    product = s.opaque("aten.mm.default", s.input(64, 64), s.input(64, 64))
    first = s.op("sub", product, s.mean(product))
    other = s.reshape(product, 128, 32)
    second = s.op("sub", other, s.mean(other))
    found = find_row_programs(s.build(first, second))
    assert not found.fan_outs
    assert traffic_saved(found.flow, found.whole) > 0
