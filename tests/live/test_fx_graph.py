"""Lowering: what an FX graph of ATen computes, the lowered graph computes in the table's words."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._inductor.inductor_prims import prepare_softmax_online
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import has_side_effect

from analyzers.dataflow import dataflow
from analyzers.row_plans import canonical_program
from analyzers.row_programs import find_row_programs
from collectors.live.fx_builder import clean_module_path
from collectors.live.fx_graph import Lowered, lower
from tests.builders.torch_graph import ops_of, traced
from tests.live.test_aten import X, Y, double

aten = torch.ops.aten
prims = torch.ops.prims
Call = Callable[..., Any]


def test_a_view_outside_the_table_says_what_it_shares() -> None:
    graph = traced(lambda x: aten.permute.default(aten.exp.default(x), [1, 0]), X).graph
    exp, permuted = graph.nodes[1:]
    assert permuted.alias_of == exp.value()
    assert permuted.mutates == ()
    assert permuted.outputs[0].strides == (1, 6)


def test_a_write_says_what_it_writes() -> None:
    graph = traced(lambda x, y: aten.copy_.default(x, aten.exp.default(y)), X.clone(), Y).graph
    written = graph.nodes[-1]
    assert written.op == "opaque"
    assert written.mutates == (f"%{graph.inputs[0]}",)
    assert written.has_side_effect


class ByHand:
    """An FX graph written call by call: a write does not replace what is read afterwards."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def input(self, value: Any) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        node.meta["val"] = value
        return node

    def call(self, target: Call, *args: Any) -> fx.Node:
        node = self.graph.call_function(target, args)
        values = [a.meta["val"].clone() if isinstance(a, fx.Node) else a for a in args]
        node.meta["val"] = target(*values)
        return node

    def lower(self, *outputs: fx.Node) -> Lowered:
        self.graph.output(outputs)
        lowered = lower(self.graph, "by hand", "inference")
        lowered.graph.check()
        return lowered


def test_equal_nodes_are_one_and_both_are_remembered() -> None:
    hand = ByHand()
    x = hand.input(X)
    made = hand.lower(*(pair := (hand.call(aten.exp.default, x), hand.call(aten.exp.default, x))))
    first, second = made.graph.outputs
    assert first == second
    assert made.fx_node[first] is pair[0]
    assert made.fx_aliases[first] == list(pair)


def test_equal_nodes_are_two_if_something_was_written_in_between() -> None:
    hand = ByHand()
    x = hand.input(X)
    before = hand.call(aten.exp.default, x)
    hand.call(aten.copy_.default, x, hand.input(Y))
    made = hand.lower(before, hand.call(aten.exp.default, x)).graph
    assert ops_of(made) == ["exp", "opaque", "exp"]
    assert made.outputs[0] != made.outputs[1]


@has_side_effect
def scribble(x: torch.Tensor) -> torch.Tensor:
    return x.zero_()


def test_an_effect_without_a_schema_writes_whatever_it_is_given() -> None:
    hand = ByHand()
    x = hand.input(X)
    before = hand.call(aten.exp.default, x)
    hand.call(scribble, x)
    made = hand.lower(before, hand.call(aten.exp.default, x)).graph
    assert ops_of(made) == ["exp", "opaque", "exp"]
    assert made.nodes[2].mutates == (f"%{made.inputs[0]}",)


def test_a_constant_that_is_written_to_is_no_number_any_more() -> None:
    hand = ByHand()
    buffer = hand.graph.call_function(aten.full.default, ([4, 6], 0.0))
    buffer.meta["val"] = torch.zeros(4, 6, dtype=torch.float64)
    flat = hand.call(aten.view.default, buffer, [24])
    hand.call(aten.copy_.default, flat, hand.input(double(24)))
    made = hand.lower(hand.call(aten.mul.Tensor, hand.input(X), buffer)).graph
    full, view, copied = (
        n for n in made.nodes if n.target.startswith(("aten.full", "aten.view", "aten.copy"))
    )
    assert copied.mutates == (view.value(),)
    assert made.nodes[-1].args[1] == full.value()


def test_outputs_that_are_no_tensors_keep_the_others_apart() -> None:
    """Fused attention returns tensors and integers in turn: each element stays itself."""

    def attention(q: torch.Tensor) -> Any:
        out = aten._scaled_dot_product_flash_attention.default(q, q, q)
        return out[0], out[1], out[6]

    with FakeTensorMode():
        q = torch.empty(1, 2, 16, 8, dtype=torch.float16, device="cuda")
        graph = fx.symbolic_trace(attention).graph
        for node in graph.nodes:
            if node.op == "placeholder":
                node.meta["val"] = q
            elif node.op == "call_function":
                node.meta["val"] = node.target(
                    *(a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args)
                )
    made = lower(graph, "attention", "inference").graph
    made.check()
    flow = dataflow(made)
    shapes = [flow.meta(v).shape for v in made.outputs]  # type: ignore[union-attr]
    assert shapes[0] == (1, 2, 16, 8)
    assert shapes[1] == (1, 2, 16)
    seed = graph.find_nodes(op="output")[0].args[0][2].meta["val"]
    assert shapes[2] == tuple(seed.shape)


def test_dtypes_that_no_kernel_takes_are_still_described() -> None:
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn):
        graph = traced(aten.alias.default, torch.empty(8, 8, dtype=dtype)).graph
        assert graph.nodes[-1].outputs[0].dtype == str(dtype).removeprefix("torch.")


def test_two_spellings_of_softmax_have_one_signature() -> None:
    def pieces(x: torch.Tensor) -> torch.Tensor:
        weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [-1], True)))
        return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [-1], True))

    def online(x: torch.Tensor) -> torch.Tensor:
        top, total = prepare_softmax_online(x, 1)
        return aten.div.Tensor(aten.exp.default(aten.sub.Tensor(x, top)), total)

    signatures = {signature(traced(f, X.float())) for f in (pieces, online)}
    assert len(signatures) == 1


def signature(lowered: Lowered) -> str:
    (group,) = find_row_programs(lowered.graph).whole
    return canonical_program(dataflow(lowered.graph), group).signature()


def symbolic(*sizes: int | None) -> tuple[torch.Tensor, Call]:
    """A fake tensor whose sizes given as negative numbers are symbols of that value."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)

    def size(value: int, name: str) -> Any:
        symbol = shapes.create_symbol(value, ConstantSource(name))
        return shapes.create_symintnode(symbol, hint=value)

    with mode:
        dims = [size(-s, f"d{i}") if s is not None and s < 0 else s for i, s in enumerate(sizes)]
        return torch.empty(dims), lambda x: x


def test_sizes_known_at_run_time_are_text_with_the_value_they_had() -> None:
    x, _ = symbolic(-5, 8)
    graph = fx.Graph()
    source = graph.placeholder("x")
    source.meta["val"] = x
    with x.fake_mode:  # type: ignore[attr-defined]
        grown = torch.cat([x, x[:1]])
    node = graph.call_function(aten.cat.default, ([source, source],))
    node.meta["val"] = grown
    graph.output((node,))
    made = lower(graph, "symbolic", "inference").graph
    (plain, eight), (sum_text, _) = made.nodes[0].outputs[0].shape, made.nodes[1].outputs[0].shape
    assert eight == 8
    assert made.size_hints[str(plain)] == 5
    assert made.size_hints[str(sum_text)] == 6


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("L['self'].model.layers.slice(None)[0].norm", "model.layers.slice(None).0.norm"),
        ("L['fn'].__self__._modules['1']", "1"),
        ("L['fn'].__self__[1].norm", "1.norm"),
        ("L['self']._modules['layers'][3].norm", "layers.3.norm"),
        ("L['fn'].norm", "norm"),
        ("_orig_mod.layers.0.mlp", "layers.0.mlp"),
        ("L__self___layers", "layers"),
        ("L['self']", ""),
    ],
)
def test_module_paths_read_as_the_user_wrote_them(path: str, clean: str) -> None:
    assert clean_module_path(path) == clean


def test_nodes_that_a_pass_made_belong_to_the_op_of_their_consumer() -> None:
    """The compiler's own softmax step has no place in the program; its division has one."""
    import torch._inductor.inductor_prims

    with FakeTensorMode():
        full, row = torch.empty(64, 128), torch.empty(64, 1)
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = full
    made = graph.call_function(torch.ops.prims.prepare_softmax_online.default, (x, 1))
    made.meta |= {"val": (row, row), "original_aten": made.target}
    largest, total = (graph.call_function(operator.getitem, (made, k)) for k in (0, 1))
    shifted = graph.call_function(torch.ops.aten.sub.Tensor, (x, largest))
    shifted.meta |= {"val": full, "original_aten": shifted.target}
    power = graph.call_function(torch.ops.aten.exp.default, (shifted,))
    power.meta |= {"val": full, "original_aten": power.target}
    result = graph.call_function(torch.ops.aten.div.Tensor, (power, total))
    source = SimpleNamespace(name="softmax", from_node=[])
    result.meta |= {"val": full, "original_aten": torch.ops.aten._softmax.default}
    result.meta |= {"from_node": [source], "stack_trace": 'File "m.py", line 4, in f'}
    for node in (largest, total):
        node.meta["val"] = row
    graph.output((result,))
    nodes = [node for node in lower(graph, "g", "inference").graph.nodes if node.args]
    assert [node.op for node in nodes] == ["amax", "sub", "exp", "sum", "div"]
    assert {(node.label, node.origin) for node in nodes} == {("aten._softmax.default", "softmax")}
    assert {node.location.line for node in nodes} == {4}


def test_what_orders_streams_and_waits_for_other_gpus_is_a_boundary() -> None:
    """FX nodes as Dynamo writes them: the stream in `custom`, the op's namespace as its target."""
    from torch._dynamo.variables import streams  # noqa: F401 (registers the ops)

    graph = fx.Graph()
    with FakeTensorMode() as mode:
        x = graph.placeholder("x")
        x.meta["val"] = mode.from_tensor(torch.randn(4, 6))
        aside = graph.call_function(aten.exp.default, (x,))
        aside.meta.update(val=x.meta["val"].exp(), custom={"stream": 2})
        graph.call_function(torch.ops.streams.wait_event.default, (0, 2))
        total = graph.call_function(
            torch.ops._c10d_functional.all_reduce.default, (aside, "sum", "0")
        )
        total.meta["val"] = aside.meta["val"].clone()
        graph.output((total,))
    made = lower(graph, "streams", "inference").graph
    made.check()
    given = [(node.stream, node.boundary) for node in made.nodes]
    assert given == [(None, None), (2, None), (None, "stream"), (None, "communication")]
    flow = dataflow(made)
    wait = made.nodes[2].id
    assert flow.ancestors[wait] == flow.mask(frozenset(n.id for n in made.nodes[:2]))
    assert flow.ancestors[made.nodes[3].id] >> flow.index[wait] & 1


def test_a_copy_to_another_gpu_is_no_cast() -> None:
    graph = fx.Graph()
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(4, 6, device="cuda:0")
        moved = graph.call_function(
            aten._to_copy.default, (x,), {"device": torch.device("cuda:1"), "dtype": torch.float16}
        )
        moved.meta["val"] = torch.empty(4, 6, device="cuda:1", dtype=torch.float16)
        graph.output((moved,))
    made = lower(graph, "moved", "inference").graph
    assert ops_of(made) == ["opaque"]


def test_what_an_op_computes_on_the_way_is_hidden() -> None:
    graph = traced(lambda x, y: aten.addcmul.default(x, y, x, value=0.5), X, Y).graph
    assert [(node.op, node.hidden) for node in graph.nodes[2:]] == [("mul", True), ("fma", False)]
    open_graph = traced(
        lambda x, y: (aten.addcmul.default(x, y, x, value=0.5), aten.mul.Tensor(y, x)), X, Y
    ).graph
    assert not any(node.hidden for node in open_graph.nodes)
