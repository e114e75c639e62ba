"""Op by op: what ATen and prims compute, however spelled, the table's words compute as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._inductor.inductor_prims import fma, prepare_softmax_online

from advisor.model.graph import Graph
from advisor.model.optable import spec_of
from analyzers.dataflow import dataflow
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


def test_every_handler_yields_ops_of_the_table() -> None:
    for ops, function, inputs in (param.values for param in SPELLINGS):  # type: ignore[union-attr]
        for node in traced(function, *inputs).graph.nodes:
            spec_of(node.op)
        assert isinstance(ops, list)


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
