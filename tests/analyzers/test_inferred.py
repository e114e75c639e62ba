"""From recorded ops to a graph: what is bound to what, and what is left unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.model.base import Location
from advisor.model.graph import Node, TensorMeta, node_of
from advisor.model.optable import spec_of
from analyzers.inferred import InferredGraph, infer_graph
from analyzers.inferred_ops import HANDLERS
from analyzers.inferred_values import FORGET_AFTER, ValuePool, row_major
from analyzers.recorded_ops import Operand, recorded_op
from analyzers.row_programs import find_row_programs
from analyzers.rules import find_all
from collectors import read_trace
from tests.builders.eager import Eager, Tensor
from tests.builders.trace import SHARED


def inferred(eager: Eager) -> InferredGraph:
    trace = eager.trace()
    return infer_graph(trace, trace.steps())


def computing(found: InferredGraph) -> list[Node]:
    """The nodes that are ops of the trace, without inputs and views."""
    return [
        n
        for n in found.graph.nodes
        if n.origin is not None and n.alias_of is None and spec_of(n.op).kind != "view"
    ]


def test_an_rms_norm_in_pieces_is_one_row_program_that_reads_the_input_again() -> None:
    eager = Eager()
    x, weight = eager.tensor(4, 64, 256, dtype="bfloat16"), eager.tensor(256, dtype="bfloat16")
    eager.rms_norm(x, weight)
    found = inferred(eager)
    nodes = computing(found)
    ops = [n.op for n in nodes]
    assert ops == ["cast", "mul", "mean", "add", "rsqrt", "mul", "cast", "mul"]
    wide, square, scaled = nodes[0], nodes[1], nodes[5]
    assert square.args == (wide.value(), wide.value())
    assert scaled.args == (wide.value(), nodes[4].value())
    (group,) = find_row_programs(found.graph).whole
    assert list(group.members) == [n.id for n in nodes]
    assert found.graph.source == "inferred"


def test_prices_are_the_kernels_of_each_op() -> None:
    eager = Eager()
    x = eager.tensor(64, 64)
    eager.op("aten::silu", x, us=7)
    eager.op("aten::native_group_norm", x, us=3, kernels=3)
    found = inferred(eager)
    assert [(u.name, u.time_ns, u.launches) for u in found.prices.units] == [
        ("aten::silu", 7_000, 1),
        ("aten::native_group_norm", 9_000, 3),
    ]
    # One kernel computes sigmoid and product: the two nodes share a unit.
    assert len(found.prices.units[0].nodes) == 2


def test_an_op_with_children_that_launch_is_one_node() -> None:
    eager = Eager()
    x = eager.tensor(8, 8)
    start = eager.host
    eager.line.op("aten::native_batch_norm", start, 20.0)
    eager.op("aten::copy_", x, x, False)
    call = eager.line.launch(start + 12)
    eager.line.kernel(start + 40, 5, correlation=call)
    eager.host, eager.device = start + 25, start + 150
    assert [n.target for n in computing(inferred(eager))] == ["aten.native_batch_norm"]


def test_residual_stream_is_of_unknown_origin_past_a_product() -> None:
    eager = Eager()
    x, w = eager.tensor(32, 64), eager.tensor(64, 64)
    hidden = eager.op("aten::relu", x)
    product = eager.matmul(hidden, w)
    eager.op("aten::add", hidden, product, 1)
    found = inferred(eager)
    add = computing(found)[-1]
    by_id = found.graph.by_id()
    sources = [by_id[v.lstrip("%")].target for v in add.value_args]
    assert sorted(sources) == ["aten.mm", "placeholder"]


def test_sibling_projections_read_one_value() -> None:
    eager = Eager()
    hidden = eager.op("aten::relu", eager.tensor(32, 64))
    for _ in range(3):
        eager.matmul(hidden, eager.tensor(64, 64).view(64, 64, strides=(1, 64)))
    relu, *products = computing(inferred(eager))
    assert {p.args[0] for p in products} == {relu.value()}


def test_permuted_reads_are_no_reshapes_and_cuts_belong_to_the_whole() -> None:
    eager = Eager()
    y = eager.op("aten::relu", eager.tensor(8, 16))
    eager.op("aten::neg", y.view(8, 8, strides=(16, 1)))
    eager.op("aten::exp", y.view(16, 8, strides=(1, 16)))
    found = inferred(eager)
    by_id = found.graph.by_id()
    relu, neg, exp = computing(found)
    views = [by_id[n.value_args[0].lstrip("%")] for n in (neg, exp)]
    assert [v.target for v in views] == ["aten.slice", "aten.permute"]
    assert {v.alias_of for v in views} == {relu.value()}
    assert not find_row_programs(found.graph).whole


def test_independent_updates_in_place_are_no_chain() -> None:
    eager = Eager()
    for _ in range(4):
        eager.op("aten::add_", eager.tensor(512), 1.0, 1)
    nodes = computing(inferred(eager))
    assert not {n.value() for n in nodes} & {arg for n in nodes for arg in n.args}


def test_results_written_to_a_callers_buffer_are_not_read_on() -> None:
    eager = Eager()
    a = eager.tensor(512)
    eager.op("aten::mul", a, a, a)
    eager.op("aten::mul", a, a, a)
    first, second = computing(inferred(eager))
    assert first.value() not in second.args


def test_kernels_of_graphs_compiled_regions_and_early_launches_are_opaque() -> None:
    eager = Eager()
    x = eager.tensor(64, 64)
    eager.op("triton_poi_fused_mul_0", x, kernel="triton_poi_fused_mul_0")
    call = eager.line.launch(eager.host, kind="graph", name="cudaGraphLaunch")
    for place in range(2):
        eager.line.kernel(eager.device + 10 * place, 5, correlation=call)
    eager.line.kernel(1, 2, name="early")
    eager.host += 5
    eager.device += 30
    found = inferred(eager)
    assert [n.op for n in found.graph.nodes] == ["opaque"] * 3
    assert not any(n.args or n.outputs for n in found.graph.nodes)
    assert {w.code: w.count for w in found.warnings} == {"inferred-opaque": 3}


def test_without_recorded_shapes_nothing_is_guessed() -> None:
    eager = Eager()
    eager.op("aten::add")
    eager.op("aten::mul")
    found = inferred(eager)
    assert [n.target for n in found.graph.nodes] == ["aten.add", "aten.mul"]
    assert not any(n.args for n in found.graph.nodes)


def test_malformed_arguments_make_an_op_opaque() -> None:
    for shapes in ('[["x"]]', "[[-1]]", "[", "{}", "[[1e300]]", "[" * 5_000):
        op = recorded_op("aten::add", shapes, '["float"]', "[[1]]", '[""]', Location())
        assert op is None or op.tensors == ()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_a_dense_permutation_has_the_extent_of_its_elements(
    sizes: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    strides = row_major(tuple(sizes))
    operand = Operand("float32", tuple(sizes[i] for i in order), tuple(strides[i] for i in order))
    total = 1
    for size in sizes:
        total *= size
    assert operand.extent() == operand.elements == total


def test_the_pool_prefers_unread_and_forgets() -> None:
    pool = ValuePool()
    meta = TensorMeta(dtype="float32", shape=(8,), strides=(1,))
    operand = Operand("float32", (8,), (1,))
    pool.add("%a", meta)
    pool.tick(library_call=False)
    pool.add("%b", meta)
    pool.tick(library_call=False)
    pool.read("%b")
    first = pool.find(operand, set())
    assert first is not None
    assert first.name == "%a"
    pool.read("%a")
    pool.tick(library_call=True)
    assert pool.find(operand, set()) is None  # both were read, and a library call lies between
    pool.add("%c", meta)
    for _ in range(FORGET_AFTER + 1):
        pool.tick(library_call=False)
    assert pool.find(operand, set()) is None


_CALLS = ("mm", "addmm", "bmm", "cat", "index_select", "gather", "cudnn_convolution", "convolution")
_OTHERS = ("native_batch_norm", "native_layer_norm", "_softmax", "_foreach_add_", "copy_", "fill_")
_NAMES = (*HANDLERS, *_CALLS, *_OTHERS)
_SIZES = st.lists(st.integers(0, 5), max_size=4)
_TENSORS = st.builds(
    lambda shape, dtype, strides: Tensor(tuple(shape), dtype, tuple(strides[: len(shape)])),
    _SIZES,
    st.sampled_from(["float32", "bfloat16", "int64", "bool"]),
    st.lists(st.integers(0, 30), min_size=4, max_size=4),
)
_SCALARS = st.sampled_from([0, 2, 0.5, -1, True, None, "inf", "nan", "x", [], [0], [-9], [1, 1]])
_ARGUMENTS = st.lists(_TENSORS | _SCALARS | st.lists(_TENSORS, min_size=1, max_size=3), max_size=6)
_OPS = st.tuples(st.sampled_from(_NAMES), _ARGUMENTS, st.booleans())


@settings(deadline=None, max_examples=60)
@given(st.lists(_OPS, max_size=12))
def test_any_recorded_arguments_make_a_graph_that_rules_can_read(
    ops: list[tuple[str, list[Any], bool]],
) -> None:
    eager = Eager()
    for name, arguments, in_place in ops:
        eager.op(f"aten::{name.removeprefix('aten::')}" + "_" * in_place, *arguments)
    if ops:
        subject = eager.subject()
        subject.graphs[0].graph.check()
        for match in find_all(subject):
            match.finding.check()


def summed(found: InferredGraph) -> str:
    """What the only sum adds up, views left out."""
    nodes = found.graph.by_id()
    (at,) = (node for node in nodes.values() if node.op == "sum")
    while at.op in ("sum", "reshape"):
        at = nodes[node_of(at.value_args[0])[0]]
    return at.target


def test_a_matrix_is_not_read_with_its_sizes_exchanged() -> None:
    """The sum of a bias's gradient is of the activations, not of the weight's gradient beside."""
    for read, target in (((2048, 8192), "placeholder"), ((4, 2048, 2048), "aten.tanh")):
        eager = Eager()
        made = eager.op("aten::tanh", eager.tensor(8192, 2048))
        eager.op("aten::sum", made.view(*read), [0], True)
        assert summed(inferred(eager)) == target


SHARED_BERT = SHARED / "traces" / "h200" / "bert.eager.json.gz"


@pytest.mark.skipif(not SHARED_BERT.exists(), reason=f"no {SHARED_BERT}")
def test_queries_keys_and_values_are_told_apart_by_how_they_lie() -> None:
    """Each of the three copies of a layer reads a product of its own, its transposition or not."""
    trace = read_trace(SHARED_BERT)
    nodes = infer_graph(trace, trace.steps()).graph.by_id()
    copies = [
        n for n in nodes.values() if n.target == "aten.copy_" and len(n.outputs[0].shape) == 4
    ]
    layer = copies[:3]
    read = [nodes[node_of(nodes[node_of(c.value_args[0])[0]].value_args[0])[0]] for c in layer]
    assert [n.target for n in read] == ["aten.addmm"] * 3
    assert len({n.id for n in read}) == 3


DDP = SHARED / "traces" / "h200" / "ddp_onebucket.rank0.json.gz"


@pytest.mark.skipif(not DDP.exists(), reason=f"no {DDP}")
def test_what_the_reducer_does_to_gradients_is_no_op_of_the_program() -> None:
    """DDP scales every gradient into its bucket: no compiler of the model fuses that."""
    trace = read_trace(DDP)
    found = infer_graph(trace, trace.steps())
    assert not [n for n in found.graph.nodes if n.op == "mul" and n.label == "aten::mul"][3:]
    assert not find_row_programs(found.graph).whole
