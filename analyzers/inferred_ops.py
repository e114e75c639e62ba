"""ATen as an eager trace spells it, in the words of the op table: one small handler for each way.

A handler emits the nodes of one recorded op and returns their result, or None where an argument it
needs was not recorded; the op is then opaque, with an output of guessed shape. An op that one
kernel computes may be several nodes (`silu` is a sigmoid and a product): they share an origin, and
with it a price.
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.model.comparisons import COMPARISONS
from advisor.model.graph import TensorMeta
from analyzers.inferred_builder import InferredBuilder, is_float
from analyzers.inferred_values import row_major
from analyzers.recorded_ops import Operand, RecordedOp

Handler = Callable[[InferredBuilder, RecordedOp], str | None]

_UNARY = (
    "neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tanh", "sigmoid", "erf", "relu", "floor", "ceil", "sign", "logical_not",
    "isnan", "isinf",
)  # fmt: skip
_BINARY = ("mul", "maximum", "minimum", "logical_and", "logical_or")
_BOOLEAN = ("logical_not", "isnan", "isinf", "logical_and", "logical_or", *COMPARISONS)
_REDUCTIONS = ("sum", "mean", "amax", "amin")


def _unary(b: InferredBuilder, op: RecordedOp) -> str | None:
    item, name = op.tensor(0), _plain(op.name)
    if item is None or not item.shape:
        return None
    dtype = "bool" if name in _BOOLEAN else None
    value = b.pointwise(name, b.operand(item), dtype=dtype)
    if name == "abs":
        b.once_reduced.add(value)
    return value


def _binary(b: InferredBuilder, op: RecordedOp) -> str | None:
    name = _plain(op.name)
    if not _has_axes(op, 2):
        return None
    left, right = b.either(0), b.either(1)
    return b.pointwise(name, left, right, dtype="bool" if name in _BOOLEAN else None)


def _divide(b: InferredBuilder, op: RecordedOp) -> str | None:
    if not _has_axes(op, 2) or (len(op.arguments) > 2 and op.tensor(2) is None):
        return None
    left, right = b.either(0), b.either(1)
    item = next(t for t in op.tensors if t.shape)
    return b.pointwise("div", left, right, dtype=None if is_float(item.dtype) else "float32")


def _add_sub(b: InferredBuilder, op: RecordedOp) -> str | None:
    if not _has_axes(op, 2):
        return None
    left, right = b.either(0), b.either(1)
    alpha = op.number(2) if len(op.arguments) > 2 else 1.0
    if alpha not in (1.0, None):
        right = b.pointwise("mul", right, alpha) if isinstance(right, str) else right
    name = _plain(op.name)
    if name == "rsub":
        left, right = right, left
    return b.pointwise("add" if name == "add" else "sub", left, right)


def _power(b: InferredBuilder, op: RecordedOp) -> str | None:
    item, exponent = op.tensor(0), op.number(1)
    if item is None or not item.shape or exponent is None:
        return None
    base = b.operand(item)
    if exponent in (2, 3):
        square = b.pointwise("mul", base, base)
        b.once_reduced.add(square)
        return square if exponent == 2 else b.pointwise("mul", square, base)
    simple = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent)
    return b.pointwise(simple, base) if simple else b.pointwise("pow", base, exponent)


def _square(b: InferredBuilder, op: RecordedOp) -> str | None:
    item = op.tensor(0)
    if item is None or not item.shape:
        return None
    base = b.operand(item)
    square = b.pointwise("mul", base, base)
    b.once_reduced.add(square)
    return square


def _copy(b: InferredBuilder, op: RecordedOp) -> str | None:
    """A copy between dtypes is a cast; one that only moves elements is left opaque."""
    target, source = op.tensor(0), op.tensor(1)
    if target is None or source is None or target.dtype == source.dtype or not source.shape:
        return None
    if not {target.dtype, source.dtype} <= {
        "bool",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int64",
        "int32",
    }:
        return None
    value = b.operand(source)
    return b.emit("cast", (value,), meta_of(target), dtype=target.dtype)


def _clamp_min(b: InferredBuilder, op: RecordedOp) -> str | None:
    item, low = op.tensor(0), op.number(1)
    if item is None or not item.shape:
        return None
    value = b.operand(item)
    return b.pointwise("relu", value) if low == 0 else b.pointwise("maximum", value, b.scalar(1))


def _clamp(b: InferredBuilder, op: RecordedOp) -> str | None:
    item = op.tensor(0)
    low, high = op.number(1), op.number(2)
    if item is None or not item.shape or (low is None and high is None):
        return None
    value = b.operand(item)
    if low is not None:
        value = b.pointwise("maximum", value, low)
    return value if high is None else b.pointwise("minimum", value, high)


def _where(b: InferredBuilder, op: RecordedOp) -> str | None:
    if not _has_axes(op, 3):
        return None
    condition, left, right = b.either(0), b.either(1), b.either(2)
    metas = [b.meta(a) for a in (left, right) if isinstance(a, str)]
    return b.pointwise(
        "where", condition, left, right, dtype=b.result(metas).dtype if metas else None
    )


def _masked_fill(b: InferredBuilder, op: RecordedOp) -> str | None:
    item, mask = op.tensor(0), op.tensor(1)
    if item is None or mask is None or not item.shape:
        return None
    value, condition = b.operand(item), b.operand(mask)
    return b.pointwise("where", condition, b.scalar(2), value, dtype=item.dtype)


def _silu(b: InferredBuilder, op: RecordedOp) -> str | None:
    item = op.tensor(0)
    if item is None or not item.shape:
        return None
    value = b.operand(item)
    return b.pointwise("mul", value, b.pointwise("sigmoid", value))


def _silu_backward(b: InferredBuilder, op: RecordedOp) -> str | None:
    """grad σ (1 + x (1 − σ)), σ = sigmoid(x)."""
    grad, item = op.tensor(0), op.tensor(1)
    if grad is None or item is None or not item.shape:
        return None
    upstream, value = b.operand(grad), b.operand(item)
    gate = b.pointwise("sigmoid", value)
    slope = b.pointwise("mul", value, b.pointwise("sub", 1.0, gate))
    slope = b.pointwise("mul", gate, b.pointwise("add", slope, 1.0))
    return b.pointwise("mul", upstream, slope)


def _gelu(b: InferredBuilder, op: RecordedOp) -> str | None:
    """x/2 (1 + erf(x/√2)); the tanh form differs in arithmetic only, not in what it reads."""
    item = op.tensor(0)
    if item is None or not item.shape:
        return None
    value = b.operand(item)
    inner = b.pointwise("erf", b.pointwise("mul", value, 0.7071067811865476))
    half = b.pointwise("mul", value, 0.5)
    return b.pointwise("mul", half, b.pointwise("add", inner, 1.0))


def _threshold_backward(b: InferredBuilder, op: RecordedOp) -> str | None:
    grad, item = op.tensor(0), op.tensor(1)
    if grad is None or item is None or not item.shape:
        return None
    upstream, value = b.operand(grad), b.operand(item)
    positive = b.pointwise("gt", value, b.scalar(2), dtype="bool")
    return b.pointwise("where", positive, upstream, 0.0, dtype=grad.dtype)


def _addcmul(b: InferredBuilder, op: RecordedOp) -> str | None:
    if any(op.tensor(i) is None for i in range(3)) or not _has_axes(op, 3):
        return None
    base, left, right = b.either(0), b.either(1), b.either(2)
    return b.pointwise("add", base, b.pointwise("mul", left, right))


def _reduce(b: InferredBuilder, op: RecordedOp) -> str | None:
    item, name = op.tensor(0), _plain(op.name)
    if item is None or not item.shape or not is_float(item.dtype):
        return None
    rank = len(item.shape)
    dims = op.integers(1)
    if dims is None or any(not -rank <= d < rank for d in dims):
        return None
    axes = tuple(sorted({d % rank for d in dims})) or tuple(range(rank))
    keep = (op.number(2) or 0) == 1
    shape = tuple(
        1 if axis in axes else size
        for axis, size in enumerate(item.shape)
        if keep or axis not in axes
    )
    value = b.operand(item)
    if value in b.once_reduced:
        b.pool.finish(value)
    meta = TensorMeta(dtype=item.dtype, shape=shape, strides=row_major(shape))
    return b.emit(name, (value,), meta, axes=axes)


def _extreme(b: InferredBuilder, op: RecordedOp) -> str | None:
    """The largest or smallest of all elements; with a dimension it also returns indices: opaque."""
    item = op.tensor(0)
    if len(op.arguments) != 1 or item is None or not item.shape or not is_float(item.dtype):
        return None
    value = b.operand(item)
    if value in b.once_reduced:
        b.pool.finish(value)
    meta = TensorMeta(dtype=item.dtype, shape=(), strides=())
    name = "amax" if op.name == "aten::max" else "amin"
    return b.emit(name, (value,), meta, axes=tuple(range(len(item.shape))))


def _plain(name: str) -> str:
    """`aten::mul_` → `mul`."""
    return name.rpartition("::")[2].rstrip("_")


def _has_axes(op: RecordedOp, count: int) -> bool:
    return len(op.arguments) >= count and any(t.shape for t in op.tensors[:count])


def meta_of(item: Operand) -> TensorMeta:
    """A value laid out as an operand was read."""
    strides = item.strides if item.strides is not None else row_major(item.shape)
    return TensorMeta(dtype=item.dtype or "float32", shape=item.shape, strides=strides)


HANDLERS: dict[str, Handler] = {
    **{f"aten::{name}": _unary for name in _UNARY},
    **{f"aten::{name}": _binary for name in (*_BINARY, *COMPARISONS)},
    **{f"aten::{name}": _reduce for name in _REDUCTIONS},
    **{f"aten::{name}": _add_sub for name in ("add", "sub", "rsub")},
    "aten::div": _divide,
    "aten::pow": _power,
    "aten::square": _square,
    "aten::copy": _copy,
    "aten::clamp_min": _clamp_min,
    "aten::clamp": _clamp,
    "aten::where": _where,
    "aten::masked_fill": _masked_fill,
    "aten::silu": _silu,
    "aten::silu_backward": _silu_backward,
    "aten::gelu": _gelu,
    "aten::threshold_backward": _threshold_backward,
    "aten::addcmul": _addcmul,
    "aten::max": _extreme,
    "aten::min": _extreme,
}


def writes_elsewhere(op: RecordedOp) -> bool:
    """Whether this is an `out=` variant: the tensor after the operands is the caller's buffer.

    An empty buffer is none of the caller's: ATen made it a moment ago to hold the result of the
    functional op (`abs` calls `abs.out` that way).
    """
    name = _plain(op.name)
    arity = 1 if name in _UNARY else 2 if name in (*_BINARY, *COMPARISONS, "div") else 0
    buffer = op.tensor(arity) if arity else None
    return buffer is not None and buffer.shape != (0,)


def translate(b: InferredBuilder, op: RecordedOp) -> str | None:
    """The result of an op of the table, or None: the op is opaque.

    An in-place op is its functional twin whose result replaces the operand: what is overwritten
    cannot be read again.
    """
    in_place = op.name.endswith("_") and not op.name.endswith("__")
    handler = HANDLERS.get(op.name.rstrip("_") if in_place else op.name)
    if handler is None:
        return None
    mark = len(b.nodes)
    value = handler(b, op)
    if value is None:
        b.rollback(mark)
        return None
    if in_place and op.name != "aten::copy_":
        b.overwrite()
    return value
