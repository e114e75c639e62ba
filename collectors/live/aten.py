"""ATen and prims in the words of the op table: one small handler for each way of spelling.

A handler returns False where the op, its dtype or an argument is outside the table; the node is
then opaque.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from advisor.model.graph import AttributeValue, literal, value_id
from collectors.live.copies import turned_copy
from collectors.live.draws import RANDOM, random_numbers
from collectors.live.fx_builder import GraphBuilder, Handler, graph_node
from collectors.live.reductions import REDUCTIONS

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
_ROUNDINGS = {f"aten.{name}.default": name for name in ("floor", "ceil", "round")}
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


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_DIRECT, _direct),
    **dict.fromkeys(_BITWISE, _bitwise),
    **dict.fromkeys(_ROUNDINGS, _rounding),
    **dict.fromkeys(_RESHAPES, _reshape),
    **REDUCTIONS,
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
