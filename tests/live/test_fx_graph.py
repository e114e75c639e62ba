"""Lowering: what an FX graph of ATen computes, the lowered graph computes in the table's words."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._inductor.inductor_prims import fma, prepare_softmax_online
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import has_side_effect

from advisor.model.graph import Graph
from advisor.model.optable import spec_of
from analyzers.dataflow import dataflow
from analyzers.row_plans import canonical_program
from analyzers.row_programs import find_row_programs
from collectors.live.fx_builder import clean_module_path
from collectors.live.fx_graph import Lowered, lower
from tests.builders.torch_graph import ops_of, run, traced

aten = torch.ops.aten
prims = torch.ops.prims
Call = Callable[..., Any]


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y, POSITIVE, FLAGS = (
    double(4, 6),
    double(4, 6, seed=1),
    double(4, 6).abs() + 0.5,
    double(4, 6) > 0,
)
WHOLE = torch.arange(24).reshape(4, 6)
UNARY = (
    "neg", "abs", "exp", "exp2", "expm1", "sin", "cos", "tanh", "sigmoid", "erf", "relu", "floor",
    "ceil", "sign", "isnan", "isinf", "reciprocal", "square",
)  # fmt: skip
POSITIVE_ONLY = ("log", "log2", "log1p", "sqrt", "rsqrt")
BINARY = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")


def overload(name: str) -> Call:
    packet, _, kind = name.partition(".")
    found: Call = getattr(getattr(aten, packet), kind or "default")
    return found


def _with(function: Call, number: float, value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = function(value, number)
    return result


def case(name: str, ops: str, function: Call, *inputs: torch.Tensor) -> Any:
    return pytest.param(ops.split(), function, inputs, id=name)


def filled(number: float, *shape: int) -> torch.Tensor:
    made: torch.Tensor = aten.full.default(list(shape), number, dtype=torch.float64)
    return made


SPELLINGS = (
    *(case(n, "mul" if n == "square" else n, overload(n), X) for n in UNARY),
    *(case(n, n, overload(n), POSITIVE) for n in POSITIVE_ONLY),
    *(case(n, n, overload(f"{n}.Tensor"), X, Y) for n in BINARY),
    *(case(f"{n} 0.5", n, partial(_with, overload(f"{n}.Scalar"), 0.5), X) for n in BINARY),
    *(case(n, n, overload(n), X, Y) for n in ("maximum", "minimum")),
    *(case(n, n, overload(n), FLAGS, Y > 0) for n in ("logical_and", "logical_or")),
    case("logical_not", "logical_not", overload("logical_not"), FLAGS),
    case("bitwise_and of flags", "logical_and", aten.bitwise_and.Tensor, FLAGS, Y > 0),
    case("bitwise_or of flags", "logical_or", aten.bitwise_or.Tensor, FLAGS, Y > 0),
    case("bitwise_not of flags", "logical_not", aten.bitwise_not.default, FLAGS),
    case("where", "where", aten.where.self, FLAGS, X, Y),
    case("where with a number", "opaque where",
         lambda c, x: aten.where.ScalarOther(c, x, 0.0), FLAGS, X),
    case("add with alpha", "fma", lambda x, y: aten.add.Tensor(x, y, alpha=3), X, Y),
    case("sub with alpha", "fma", lambda x, y: aten.sub.Tensor(x, y, alpha=0.5), X, Y),
    case("broadcast with alpha", "fma",
         lambda x, y: aten.add.Tensor(x, y, alpha=2), X, double(6)),
    case("whole numbers with alpha", "mul add",
         lambda x, y: aten.add.Tensor(x, y, alpha=2), WHOLE, WHOLE),
    case("fma", "fma", fma, X, Y, X),
    case("addcmul", "fma", aten.addcmul.default, X, Y, X),
    case("addcmul with a value", "mul fma",
         lambda x, y: aten.addcmul.default(x, y, x, value=0.5), X, Y),
    case("addcdiv", "div add", lambda x, y: aten.addcdiv.default(x, x, y), X, POSITIVE),
    case("addcdiv with a value", "div fma",
         lambda x, y: aten.addcdiv.default(x, x, y, value=-2), X, POSITIVE),
    case("round", "round", aten.round.default, X),
    case("how many are true", "cast sum cast", lambda c: aten.sum.dim_IntList(c, [-1]), FLAGS),
    case("pow 2", "mul", lambda x: aten.pow.Tensor_Scalar(x, 2), X),
    case("pow 2.0", "mul", lambda x: aten.pow.Tensor_Scalar(x, 2.0), X),
    case("pow 3", "mul mul", lambda x: aten.pow.Tensor_Scalar(x, 3), X),
    case("pow 1", "reshape", lambda x: aten.pow.Tensor_Scalar(x, 1), X),
    case("pow 1/2", "sqrt", lambda x: aten.pow.Tensor_Scalar(x, 0.5), POSITIVE),
    case("pow -1/2", "rsqrt", lambda x: aten.pow.Tensor_Scalar(x, -0.5), POSITIVE),
    case("pow -1", "reciprocal", lambda x: aten.pow.Tensor_Scalar(x, -1), POSITIVE),
    case("pow 1.7", "pow", lambda x: aten.pow.Tensor_Scalar(x, 1.7), POSITIVE),
    case("pow of tensors", "pow", aten.pow.Tensor_Tensor, POSITIVE, Y),
    case("pow of a number", "pow", lambda x: aten.pow.Scalar(2.0, x), X),
    case("clamp", "maximum minimum", lambda x: aten.clamp.default(x, -0.5, 0.5), X),
    case("clamp from below", "maximum", lambda x: aten.clamp.default(x, -0.5), X),
    case("clamp from above", "minimum", lambda x: aten.clamp.default(x, None, 0.5), X),
    case("clamp_min", "maximum", lambda x: aten.clamp_min.default(x, 0.1), X),
    case("clamp_max", "minimum", lambda x: aten.clamp_max.default(x, 0.1), X),
    case("a widening cast", "cast",
         lambda x: prims.convert_element_type.default(x, torch.float64), FLAGS),
    case("_to_copy", "cast", lambda x: aten._to_copy.default(x, dtype=torch.float64), FLAGS),
    case("view", "reshape", lambda x: aten.view.default(x, [2, 12]), X),
    case("reshape", "reshape", lambda x: aten.reshape.default(x, [-1]), X),
    case("unsqueeze", "reshape", lambda x: aten.unsqueeze.default(x, 1), X),
    case("squeeze", "reshape", lambda x: aten.squeeze.dim(x, 0), double(1, 6)),
    case("squeeze all", "reshape", aten.squeeze.default, double(1, 6, 1)),
    case("expand", "expand", lambda x: aten.expand.default(x, [3, 4, 6]), X),
    case("clone", "reshape", aten.clone.default, X),
    case("sum", "sum", lambda x: aten.sum.dim_IntList(x, [-1], True), X),
    case("sum of two axes", "sum", lambda x: aten.sum.dim_IntList(x, [2, 1]), double(2, 3, 4)),
    case("sum of everything", "sum", aten.sum.default, X),
    case("sum of no axes is everything", "sum", lambda x: aten.sum.dim_IntList(x, []), X),
    case("mean", "mean", lambda x: aten.mean.dim(x, [0]), X),
    case("mean of everything", "mean", aten.mean.default, X),
    case("amax", "amax", lambda x: aten.amax.default(x, [1], True), X),
    case("amin of everything", "amin", aten.amin.default, X),
    case("var", "var", lambda x: aten.var.correction(x, [-1], correction=1, keepdim=True), X),
    case("var by default", "var", lambda x: aten.var.correction(x, [-1]), X),
    case("biased var", "var", lambda x: aten.var.correction(x, [-1], correction=0), X),
    case("var_mean", "var mean",
         lambda x: aten.var_mean.correction(x, [-1], correction=0, keepdim=True), X),
    case("online softmax", "amax sub exp sum", lambda x: prepare_softmax_online(x, 1), X),
    case("online softmax over the first axis", "amax sub exp sum",
         lambda x: prepare_softmax_online(x, 0), X),
    case("a number from full", "opaque where",
         lambda c, x: aten.where.self(c, x, filled(-3.5)), FLAGS, X),
    case("a number seen through a view", "opaque expand add",
         lambda x: aten.add.Tensor(x, aten.expand.default(filled(2.5, 1, 1), [4, 6])), X),
    case("minus infinity", "opaque where",
         lambda c, x: aten.where.self(c, x, filled(float("-inf"))), FLAGS, X),
    case("scalar_tensor", "opaque mul",
         lambda x: aten.mul.Tensor(x, aten.scalar_tensor.default(3.0, dtype=torch.float64)), X),
)  # fmt: skip


def tensor_inputs(graph: Graph, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    return {f"%{name}": value for name, value in zip(graph.inputs, inputs, strict=True)}


@pytest.mark.parametrize(("ops", "function", "inputs"), SPELLINGS)
def test_a_spelling_is_lowered_to_the_table_and_means_the_same(
    ops: list[str], function: Call, inputs: tuple[torch.Tensor, ...]
) -> None:
    graph = traced(function, *inputs).graph
    assert ops_of(graph) == ops
    values = run(graph, tensor_inputs(graph, inputs))
    want = function(*inputs)
    wanted = list(want) if isinstance(want, (tuple, list)) else [want]
    for value, tensor in zip(graph.outputs, wanted, strict=True):
        torch.testing.assert_close(values[value], tensor, rtol=1e-12, atol=1e-12)
        meta = dataflow(graph).meta(value)
        assert meta is not None
        assert (meta.shape, getattr(torch, meta.dtype)) == (tuple(tensor.shape), tensor.dtype)


OUTSIDE = (
    ("another rounding mode", lambda x: aten.div.Tensor_mode(x, 2.0, rounding_mode="floor"), (X,)),
    ("a transpose", lambda x: aten.permute.default(x, [1, 0]), (X,)),
    ("a slice", lambda x: aten.slice.Tensor(x, 0, 1, 3), (X,)),
    ("bits of integers", aten.bitwise_and.Tensor, (torch.ones(3, dtype=torch.int64),) * 2),
    ("a sum of integers",
     lambda x: aten.sum.dim_IntList(x, [0]), (torch.ones(3, dtype=torch.int64),)),
    ("an argmax", lambda x: aten.argmax.default(x, 1), (X,)),
    ("a scan", lambda x: aten.cumsum.default(x, 1), (X,)),
    ("a matmul", aten.mm.default, (X, double(6, 2))),
    ("a copy in another order",
     lambda x: aten.clone.default(aten.permute.default(x, [1, 0])), (X,)),
    ("dropout", lambda x: aten.native_dropout.default(x, 0.5, True)[0], (X,)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("function", "inputs"), [pytest.param(*rest, id=name) for name, *rest in OUTSIDE]
)
def test_what_is_outside_the_table_is_opaque(
    function: Call, inputs: tuple[torch.Tensor, ...]
) -> None:
    graph = traced(function, *inputs).graph
    assert set(ops_of(graph)) == {"opaque"}
    assert len(graph.outputs) == 1


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


def test_a_power_keeps_the_dtype_of_its_result() -> None:
    whole = torch.arange(4)
    for exponent in (1.0, 2.0, 3.0):
        graph = traced(partial(_with, aten.pow.Tensor_Scalar, exponent), whole).graph
        assert dataflow(graph).meta(graph.outputs[0]).dtype == "float32"  # type: ignore[union-attr]
        result = run(graph, tensor_inputs(graph, (whole,)))[graph.outputs[0]]
        torch.testing.assert_close(result.float(), whole**exponent)


def test_alpha_is_applied_in_the_dtype_of_the_result() -> None:
    x, whole = torch.ones(3, dtype=torch.float64), torch.tensor([1, 2, 3])
    graph = traced(lambda a, b: aten.add.Tensor(a, b, alpha=0.5), x, whole).graph
    result = run(graph, tensor_inputs(graph, (x, whole)))[graph.outputs[0]]
    torch.testing.assert_close(result, torch.add(x, whole, alpha=0.5))


def test_a_sum_in_another_dtype_casts_first() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return aten.sum.dim_IntList(x, [-1], True, dtype=torch.float32)

    graph = traced(total, X.to(torch.bfloat16)).graph
    assert ops_of(graph) == ["cast", "sum"]
    assert graph.nodes[1].attributes == {"dtype": "float32"}


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


def test_every_handler_yields_ops_of_the_table() -> None:
    for ops, function, inputs in (param.values for param in SPELLINGS):  # type: ignore[union-attr]
        for node in traced(function, *inputs).graph.nodes:
            spec_of(node.op)
        assert isinstance(ops, list)


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


def test_another_shape_of_a_whole_tensor_is_a_view() -> None:
    assert ops_of(traced(lambda x: aten.as_strided.default(x, [2, 12], [12, 1]), X).graph) == [
        "reshape"
    ]
    for size, stride, start in (([3, 6], [6, 1], 6), ([6, 4], [1, 6], 0), ([2, 6], [6, 1], 0)):
        window = traced(partial(_strided, size, stride, start), X).graph
        assert ops_of(window) == ["opaque"]


def _strided(size: list[int], stride: list[int], start: int, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = aten.as_strided.default(x, size, stride, start)
    return made
