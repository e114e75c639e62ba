"""Reductions of ATen and prims in the words of the op table, those with several results too."""

from __future__ import annotations

import math
import operator

from msgspec.structs import replace
from torch import fx

from advisor.model.graph import AttributeValue, TensorMeta
from advisor.model.optable import FLOAT_DTYPES
from collectors.live.fx_builder import GraphBuilder, Handler

_OPS: dict[str, str] = {
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
# Integers up to here are float32 numbers.
MAX_EXACT_COUNT = 2**24


def _reduce(builder: GraphBuilder, node: fx.Node) -> bool:
    op = _OPS[str(node.target)]
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


REDUCTIONS: dict[str, Handler] = {
    **dict.fromkeys(_OPS, _reduce),
    **{f"aten.any.{overload}": _any for overload in ("default", "dim", "dims")},
}
MULTI_OUTPUT: dict[str, Handler] = {
    "aten.var_mean.correction": _var_mean,
    "aten.max.dim": _extreme,
    "aten.min.dim": _extreme,
    "prims.prepare_softmax_online.default": _online_softmax,
}
