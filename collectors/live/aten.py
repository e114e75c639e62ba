"""ATen and prims in the words of the op table: one small handler for each way of spelling.

A handler returns False where the op, its dtype or an argument is outside the table; the node is
then opaque.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from msgspec.structs import replace
from torch import fx

from advisor.model.graph import AttributeValue, TensorMeta, literal, value_id
from advisor.model.optable import FLOAT_DTYPES
from collectors.live.copies import turned_copy
from collectors.live.draws import RANDOM, random_numbers
from collectors.live.fx_builder import GraphBuilder, graph_node

# FX targets that are one op of the table with the same operands in the same order.
_DIRECT: dict[str, str] = {
    **{
        f"aten.{name}.default": name
        for name in (
            "neg",
            "abs",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log1p",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "sin",
            "cos",
            "tanh",
            "sigmoid",
            "erf",
            "relu",
            "sign",
            "logical_not",
            "isnan",
            "isinf",
            "maximum",
            "minimum",
            "logical_and",
            "logical_or",
        )
    },
    **{
        f"aten.{name}.{overload}": name
        for name in ("mul", "eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    "aten.div.Tensor": "div",
    "aten.div.Scalar": "div",
    "aten.pow.Tensor_Tensor": "pow",
    "aten.pow.Scalar": "pow",
    "aten.where.self": "where",
    "aten.where.ScalarSelf": "where",
    "aten.where.ScalarOther": "where",
    "aten.where.Scalar": "where",
    "aten.clamp_min.default": "maximum",
    "aten.clamp_max.default": "minimum",
    "prims.fma.default": "fma",
}
_RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "reshape.default",
        "_unsafe_view.default",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "alias.default",
        "flatten.using_ints",
    )
)
_REDUCTIONS: dict[str, str] = {
    "aten.sum.dim_IntList": "sum",
    "aten.sum.default": "sum",
    "aten.mean.dim": "mean",
    "aten.mean.default": "mean",
    "aten.amax.default": "amax",
    "aten.amin.default": "amin",
    "aten.max.default": "amax",
    "aten.min.default": "amin",
    "aten.var.correction": "var",
}
_ROUNDINGS = {f"aten.{name}.default": name for name in ("floor", "ceil", "round")}
# Integers up to here are float32 numbers.
MAX_EXACT_COUNT = 2**24
_BITWISE = {
    "aten.bitwise_and.Tensor": "logical_and",
    "aten.bitwise_or.Tensor": "logical_or",
    "aten.bitwise_not.default": "logical_not",
}


def _bind_op(
    builder: GraphBuilder, node: fx.Node, op: str, args: Iterable[Any], **attributes: AttributeValue
) -> bool:
    arguments = [builder.arg(item) for item in args]
    if any(item is None for item in arguments):
        return False
    meta = builder.tensor_meta(node.meta["val"])
    builder.bind(node, builder.emit(node, op, arguments, meta, **attributes))
    return True


def _direct(builder: GraphBuilder, node: fx.Node) -> bool:
    if node.kwargs:
        return False
    return _bind_op(builder, node, _DIRECT[str(node.target)], node.args)


def _rounding(builder: GraphBuilder, node: fx.Node) -> bool:
    if not _is_float(node):
        return False
    return _bind_op(builder, node, _ROUNDINGS[str(node.target)], node.args)


def _is_float(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


def _bitwise(builder: GraphBuilder, node: fx.Node) -> bool:
    if node.meta["val"].dtype != torch.bool:
        return False
    return _bind_op(builder, node, _BITWISE[str(node.target)], node.args)


def _add_sub(builder: GraphBuilder, node: fx.Node) -> bool:
    left, right = node.args[0], node.args[1]
    alpha = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
    op = "add" if ".add." in str(node.target) else "sub"
    if alpha == 1:
        return _bind_op(builder, node, op, (left, right))
    if not isinstance(right, fx.Node) or not isinstance(alpha, (int, float)):
        return False
    if _is_float(node):
        return _bind_op(builder, node, "fma", (right, alpha if op == "add" else -alpha, left))
    value, first = builder.arg(right), builder.arg(left)
    if not isinstance(value, str) or value not in builder.meta or first is None:
        return False
    meta = builder.tensor_meta(node.meta["val"])
    scaled = builder.emit(node, "mul", (value, literal(alpha)), builder.meta[value])
    builder.bind(node, builder.emit(node, op, (first, scaled), meta))
    return True


def _addc(builder: GraphBuilder, node: fx.Node) -> bool:
    """`addcmul`, `addcdiv`: self + scale (a b) or self + scale (a / b), as CUDA rounds them."""
    scale = node.kwargs.get("value", 1)
    if len(node.args) != 3 or not _is_float(node) or not isinstance(scale, (int, float)):
        return False
    start, first, second = node.args
    multiplies = "addcmul" in str(node.target)
    if multiplies and scale == 1:
        return _bind_op(builder, node, "fma", (first, second, start))
    left, right, added = (builder.arg(item) for item in (first, second, start))
    shapes = [item.meta["val"].shape for item in (first, second) if isinstance(item, fx.Node)]
    if left is None or right is None or added is None:
        return False
    if torch.broadcast_shapes(*shapes) != node.meta["val"].shape:
        return False  # the inner result would be smaller than anything that is described here
    meta = builder.tensor_meta(node.meta["val"])
    inner = builder.emit(node, "mul" if multiplies else "div", (left, right), meta)
    op, operands = (
        ("add", (added, inner)) if scale == 1 else ("fma", (literal(scale), inner, added))
    )
    builder.bind(node, builder.emit(node, op, operands, meta))
    return True


def _power(builder: GraphBuilder, node: fx.Node) -> bool:
    base, exponent = node.args[0], node.args[1]
    simple = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if not isinstance(base, fx.Node) or base.meta["val"].dtype != node.meta["val"].dtype:
        return _bind_op(builder, node, "pow", (base, exponent))
    if exponent == 1 and node.meta["val"].is_contiguous():
        return _view(builder, node, "reshape", shares=False)
    if exponent == 2:
        return _bind_op(builder, node, "mul", (base, base))
    if exponent == 3:
        meta, value = builder.tensor_meta(node.meta["val"]), builder.arg(base)
        if value is None:
            return False
        squared = builder.emit(node, "mul", (value, value), meta)
        builder.bind(node, builder.emit(node, "mul", (squared, value), meta))
        return True
    if isinstance(exponent, (int, float)) and exponent in simple:
        return _bind_op(builder, node, simple[exponent], (base,))
    return _bind_op(builder, node, "pow", (base, exponent))


def _clamp(builder: GraphBuilder, node: fx.Node) -> bool:
    bounds = [*node.args[1:], None, None][:2]
    low = node.kwargs.get("min", bounds[0])
    high = node.kwargs.get("max", bounds[1])
    value = builder.arg(node.args[0])
    meta = builder.tensor_meta(node.meta["val"])
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is None:
            continue
        limit = builder.arg(bound)
        if value is None or limit is None:
            return False
        value = builder.emit(node, op, (value, limit), meta)
    if not isinstance(value, str):
        return False
    builder.bind(node, value)
    return True


def _square(builder: GraphBuilder, node: fx.Node) -> bool:
    return _bind_op(builder, node, "mul", (node.args[0], node.args[0]))


def _cast(builder: GraphBuilder, node: fx.Node) -> bool:
    source = node.args[0]
    if isinstance(source, fx.Node) and source.meta["val"].device != node.meta["val"].device:
        return False
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if not _bind_op(builder, node, "cast", node.args[:1], dtype=dtype):
        return False
    builder.cast_values.add(str(builder.values[node]))
    return True


def _reshape(builder: GraphBuilder, node: fx.Node) -> bool:
    return _view(builder, node, "reshape")


def _expand(builder: GraphBuilder, node: fx.Node) -> bool:
    return _view(builder, node, "expand")


def _view(builder: GraphBuilder, node: fx.Node, op: str, *, shares: bool = True) -> bool:
    base = node.args[0]
    if not isinstance(base, fx.Node) or not isinstance(value := builder.values.get(base), str):
        return False
    if base in builder.literals:
        builder.literals[node] = builder.literals[base]
    node_id = builder.fresh(node.name)
    meta = builder.tensor_meta(node.meta["val"])
    builder.nodes.append(
        graph_node(node, node_id, op, (value,), (meta,), {}, alias_of=value if shares else None)
    )
    builder.meta[value_id(node_id)] = meta
    builder.bind(node, value_id(node_id))
    if shares and op == "reshape" and value in builder.cast_values:
        builder.cast_values.add(value_id(node_id))
    return True


def _as_strided(builder: GraphBuilder, node: fx.Node) -> bool:
    """Another shape of a whole tensor in row-major order."""
    source, result = node.args[0], node.meta["val"]
    if not isinstance(source, fx.Node) or not isinstance(held := source.meta["val"], torch.Tensor):
        return False
    start = node.args[3] if len(node.args) > 3 else None
    if start not in (None, 0) or held.storage_offset() != result.storage_offset():
        return False
    if not (held.is_contiguous() and result.is_contiguous() and held.numel() == result.numel()):
        return False
    return _view(builder, node, "reshape")


def _clone(builder: GraphBuilder, node: fx.Node) -> bool:
    """A copy into row-major order keeps the elements' linear order: free once fused."""
    if not node.meta["val"].is_contiguous():
        return False
    if turned_copy(builder, node):
        return True
    return _view(builder, node, "reshape", shares=False)


def _constant(builder: GraphBuilder, node: fx.Node) -> bool:
    """A tensor filled with one number is that number where ops of the table read it."""
    fill = node.args[-1] if str(node.target) != "aten.scalar_tensor.default" else node.args[0]
    if not isinstance(fill, (int, float, bool)):
        return False
    builder.literals[node] = literal(_as_dtype(fill, node.meta["val"].dtype))
    return False


def _as_dtype(fill: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return bool(fill)
    if dtype.is_floating_point:
        return float(torch.tensor(float(fill), dtype=dtype).item())
    return int(fill)


def _reduce(builder: GraphBuilder, node: fx.Node) -> bool:
    op = _REDUCTIONS[str(node.target)]
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    source, meta = builder.meta[value], builder.tensor_meta(node.meta["val"])
    if op == "sum" and source.dtype == "bool" and meta.dtype == "int64":
        return _count(builder, node, value)
    if meta.dtype not in FLOAT_DTYPES:
        return False
    if source.dtype != meta.dtype:
        wide = TensorMeta(
            dtype=meta.dtype, shape=source.shape, strides=source.strides, device=source.device
        )
        value = builder.emit(node, "cast", (value,), wide, dtype=meta.dtype)
    attributes: dict[str, AttributeValue] = {"axes": _axes(node, len(source.shape))}
    if op == "var":
        attributes["correction"] = _correction(node)
    builder.bind(node, builder.emit(node, op, (value,), meta, **attributes))
    return True


def _count(builder: GraphBuilder, node: fx.Node, value: str) -> bool:
    """How many of a row are true, added up in float32: exact as long as a row fits in registers."""
    source, meta = builder.meta[value], builder.tensor_meta(node.meta["val"])
    axes = _axes(node, len(source.shape))
    if any(not isinstance(source.shape[axis], int) for axis in axes):
        return False
    if math.prod(int(source.shape[axis]) for axis in axes) > MAX_EXACT_COUNT:
        return False
    wide, total = replace(source, dtype="float32"), replace(meta, dtype="float32")
    number = builder.emit(node, "cast", (value,), wide, dtype="float32")
    added = builder.emit(node, "sum", (number,), total, axes=axes)
    builder.bind(node, builder.emit(node, "cast", (added,), meta, dtype="int64"))
    return True


def _any(builder: GraphBuilder, node: fx.Node) -> bool:
    """Whether any element is not zero: the largest |x| is not."""
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    source, meta = builder.meta[value], builder.tensor_meta(node.meta["val"])
    wide = replace(source, dtype="float32")
    number = builder.emit(node, "cast", (value,), wide, dtype="float32")
    size = builder.emit(node, "abs", (number,), wide)
    largest = builder.emit(
        node, "amax", (size,), replace(meta, dtype="float32"), axes=_axes(node, len(source.shape))
    )
    builder.bind(node, builder.emit(node, "ne", (largest, 0.0), meta))
    return True


def _axes(node: fx.Node, rank: int) -> tuple[int, ...]:
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = dims if isinstance(dims, (list, tuple)) else (dims,)
    return tuple(sorted(int(d) % max(rank, 1) for d in listed))


def _correction(node: fx.Node) -> float:
    """The correction of a variance: 1 where none is given."""
    given = node.kwargs.get("correction")
    return float(given) if isinstance(given, (int, float)) else 1.0


def _var_mean(builder: GraphBuilder, node: fx.Node) -> bool:
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    axes = _axes(node, len(builder.meta[value].shape))
    metas = [builder.tensor_meta(tensor) for tensor in node.meta["val"]]
    variance = builder.emit(
        node, "var", (value,), metas[0], axes=axes, correction=_correction(node)
    )
    mean = builder.emit(node, "mean", (value,), metas[1], axes=axes)
    builder.values[node] = (variance, mean)
    return True


def _extreme(builder: GraphBuilder, node: fx.Node) -> bool:
    """`max(x, dim)` and `min`, where nobody asks for the place."""
    value = builder.arg(node.args[0])
    meta = builder.tensor_meta(node.meta["val"][0])
    asked = {user.args[1] for user in node.users if user.target is operator.getitem}
    if not isinstance(value, str) or value not in builder.meta or asked - {0}:
        return False
    if meta.dtype not in FLOAT_DTYPES or any(u.target is not operator.getitem for u in node.users):
        return False
    op = "amax" if "max" in str(node.target) else "amin"
    axes = _axes(node, len(builder.meta[value].shape))
    builder.values[node] = (builder.emit(node, op, (value,), meta, axes=axes),)
    return True


def _online_softmax(builder: GraphBuilder, node: fx.Node) -> bool:
    """`prepare_softmax_online(x, dim)`: the row maximum and sum(exp(x - maximum)), of size 1."""
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    source = builder.meta[value]
    axes = _axes(node, len(source.shape))
    metas = [builder.tensor_meta(tensor) for tensor in node.meta["val"]]
    wide = TensorMeta(
        dtype=metas[0].dtype, shape=source.shape, strides=source.strides, device=source.device
    )
    maximum = builder.emit(node, "amax", (value,), metas[0], axes=axes)
    shifted = builder.emit(node, "sub", (value, maximum), wide)
    exponent = builder.emit(node, "exp", (shifted,), wide)
    total = builder.emit(node, "sum", (exponent,), metas[1], axes=axes)
    builder.values[node] = (maximum, total)
    return True


Handler = Callable[[GraphBuilder, fx.Node], bool]
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_DIRECT, _direct),
    **dict.fromkeys(_BITWISE, _bitwise),
    **dict.fromkeys(_ROUNDINGS, _rounding),
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **{f"aten.any.{overload}": _any for overload in ("default", "dim", "dims")},
    **{f"aten.{n}.{o}": _add_sub for n in ("add", "sub") for o in ("Tensor", "Scalar")},
    "aten.addcmul.default": _addc,
    "aten.addcdiv.default": _addc,
    "aten.pow.Tensor_Scalar": _power,
    "aten.square.default": _square,
    "aten.clamp.default": _clamp,
    "prims.convert_element_type.default": _cast,
    "aten._to_copy.default": _cast,
    "aten.expand.default": _expand,
    "aten.clone.default": _clone,
    "aten.as_strided.default": _as_strided,
    "aten.full.default": _constant,
    "aten.scalar_tensor.default": _constant,
    RANDOM: random_numbers,
}
# Handlers of what computes nothing: another shape, or one number everywhere.
VIEWS: tuple[Handler, ...] = (_reshape, _expand, _as_strided, _constant)
MULTI_OUTPUT: dict[str, Handler] = {
    "aten.var_mean.correction": _var_mean,
    "aten.max.dim": _extreme,
    "aten.min.dim": _extreme,
    "prims.prepare_softmax_online.default": _online_softmax,
}
