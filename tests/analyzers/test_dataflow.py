"""Dataflow: views are edges, writes are ordered, and what lies between two nodes is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import IllegalFusionError
from advisor.model.graph import Graph, node_of
from advisor.model.sizes import parse
from analyzers.dataflow import Dataflow, Use, dataflow
from tests.builders.graph import Sketch, tensor


def ids(*values: str) -> frozenset[str]:
    return frozenset(node_of(value)[0] for value in values)


def waits_for(flow: Dataflow, value: str) -> frozenset[str]:
    mask = flow.ancestors[node_of(value)[0]]
    return frozenset(name for name, bit in flow.index.items() if mask >> bit & 1)


def test_views_are_paths_between_the_nodes_that_compute() -> None:
    s = Sketch()
    x = s.op("exp", s.input(4, 8))
    flat = s.reshape(x, 32)
    wide = s.expand(s.reshape(flat, 1, 32), 4, 32)
    y = s.op("neg", wide)
    flow = dataflow(s.build(y, flat))
    path = tuple(node_of(v)[0] for v in (flat, "%reshape3", wide))
    assert flow.uses[x] == (Use(node_of(y)[0], path),)
    assert flow.base(wide) == x
    assert flow.base(x) == x
    assert set(flow.index) == ids("%in0", x, y)
    assert flow.escapes_graph == {x, y}
    assert waits_for(flow, y) == ids("%in0", x)


def test_a_value_read_twice_by_one_node_is_one_use() -> None:
    s = Sketch()
    x = s.input(4)
    y = s.op("mul", x, x)
    assert dataflow(s.build(y)).uses[x] == (Use(node_of(y)[0], ()),)


def test_outputs_of_one_node_are_told_apart() -> None:
    s = Sketch()
    two = s.opaque("aten.sort.default", s.input(4), outputs=(tensor(4), tensor(4, dtype="int64")))
    name = node_of(two)[0]
    y = s.op("neg", f"%{name}#1")
    flow = dataflow(s.build(y))
    assert set(flow.uses) == {"%in0", f"%{name}#1"}
    meta = flow.meta(f"%{name}#1")
    assert meta is not None
    assert meta.dtype == "int64"
    assert flow.meta(f"%{name}#2") is None


def test_a_write_waits_for_earlier_readers_and_later_readers_for_it() -> None:
    s = Sketch()
    x, y = s.input(4), s.input(4)
    before = s.op("exp", s.reshape(x, 2, 2))
    write = s.opaque("aten.copy_.default", x, y, mutates=(x,), alias_of=x)
    after = s.op("neg", x)
    through = s.op("abs", write)
    flow = dataflow(s.build(before, after, through))
    assert ids(before) <= waits_for(flow, write)
    assert ids(write) <= waits_for(flow, after)
    assert ids(write) <= waits_for(flow, through)
    assert flow.between(ids(before, after)) == ids(write)


def test_a_write_through_an_alias_is_a_write_to_its_storage() -> None:
    s = Sketch()
    x = s.input(4, 4)
    part = s.opaque("aten.slice.Tensor", x, alias_of=x)
    before = s.op("exp", x)
    write = s.opaque("aten.zero_.default", part, mutates=(part,), alias_of=part)
    after = s.op("neg", s.reshape(x, 16))
    unrelated = s.op("neg", s.input(4))
    flow = dataflow(s.build(before, after, unrelated))
    assert ids(before) <= waits_for(flow, write)
    assert ids(write) <= waits_for(flow, after)
    assert not ids(write) & waits_for(flow, unrelated)


def test_two_writes_stay_in_order() -> None:
    s = Sketch()
    x, y = s.input(4), s.input(4)
    first = s.opaque("aten.copy_.default", x, y, mutates=(x,), alias_of=x)
    second = s.opaque("aten.zero_.default", x, mutates=(x,), alias_of=x)
    assert ids(first) <= waits_for(dataflow(s.build(second)), second)


def chain(length: int) -> tuple[Graph, list[str]]:
    s = Sketch()
    values = [s.input(4)]
    for _ in range(length):
        values.append(s.op("neg", values[-1]))
    return s.build(values[-1]), values


def test_between_is_what_a_group_would_leave_and_reenter() -> None:
    graph, values = chain(5)
    flow = dataflow(graph)
    assert flow.between(ids(values[1], values[4])) == ids(values[2], values[3])
    assert flow.between(ids(values[1], values[2])) == frozenset()


def test_a_contracted_group_is_waited_for_as_a_whole() -> None:
    """p -> a1, a2 -> q with {a1, a2} one step: q waits for p, and {p, q} would re-enter."""
    s = Sketch()
    p = s.op("exp", s.input(4))
    first = s.op("neg", p)
    second = s.op("abs", s.input(4))
    q = s.op("cos", second)
    flow = dataflow(s.build(first, q))
    assert flow.between(ids(p, q)) == frozenset()
    joint = flow.contracted(ids(first, second))
    assert joint.between(ids(p, q)) == ids(first, second)
    assert ids(p, first, second) <= waits_for(joint, q)
    assert flow.between(ids(p, q)) == frozenset()


@st.composite
def random_dags(draw: st.DrawFn) -> Graph:
    s = Sketch()
    values = [s.input(4)]
    for _ in range(draw(st.integers(1, 12))):
        values.append(s.op("add", draw(st.sampled_from(values)), draw(st.sampled_from(values))))
    return s.build(values[-1])


@given(random_dags())
def test_reachability_is_the_transitive_closure(graph: Graph) -> None:
    flow = dataflow(graph)
    reach: dict[str, set[str]] = {}
    for node in graph.nodes:
        above = {node_of(v)[0] for v in node.value_args}
        reach[node.id] = above | {far for name in above for far in reach[name]}
        assert waits_for(flow, node.value()) == reach[node.id]
    for name, mask in flow.descendants.items():
        below = {other for other, bit in flow.index.items() if mask >> bit & 1}
        assert below == {other for other, above in reach.items() if name in above}


@given(random_dags(), st.data())
def test_groups_that_became_steps_are_reached_as_a_whole(graph: Graph, data: st.DataObject) -> None:
    """Whatever reaches a member reaches all, and all that they reach: node by node."""
    flow = dataflow(graph)
    above, below = dict(flow.ancestors), dict(flow.descendants)
    left = sorted(flow.index)
    while left:
        members = frozenset(data.draw(st.sets(st.sampled_from(left), min_size=1, max_size=3)))
        left = [name for name in left if name not in members]
        if flow.between(members):
            continue
        own, before, after = flow.mask(members), 0, 0
        for name in members:
            before, after = before | above[name], after | below[name]
        for masks, reached in ((above, own | before), (below, own | after)):
            touched = [name for name, mask in masks.items() if mask & own or name in members]
            masks.update({name: masks[name] | reached for name in touched})
        flow = flow.contracted(members)
        asked = data.draw(st.sets(st.sampled_from(sorted(flow.index))))
        assert all(flow.ancestors[name] == above[name] for name in asked)
        assert all(flow.descendants[name] == below[name] for name in asked)
    assert dict(flow.ancestors) == above
    assert dict(flow.descendants) == below


def test_sizes_have_the_value_they_had_at_capture() -> None:
    flow = dataflow(Sketch(s0=6).build())
    assert flow.hint(parse("4*s0")) == 24
    assert flow.hint(parse("u0*3"), unknown=1) == 3
    with pytest.raises(IllegalFusionError, match="size u0 is unknown"):
        flow.hint(parse("u0"))
