"""Operations and bytes of matrix products, convolutions and attention, by recorded operands.

A multiply-add is two operations. Products: 2 M N K. Convolutions: 2 times the results times the
weights of one result (the direct method, whichever the library chose). Attention: two products,
4 D operations for every pair of a query and a key that it sees (Dao et al., 2022, appendix).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from advisor.model.optable import ITEM_BYTES
from analyzers.recorded_ops import Operand, RecordedOp

# Types that matrix units multiply; their sums are kept in float32.
_ARITHMETIC = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class OpWork:
    """One execution: operations, least bytes, and the arithmetic they run in."""

    flops: int
    bytes: int
    arithmetic: str
    matrix: bool


def matrix_work(op: RecordedOp) -> OpWork | None:
    """The work of a product, convolution or attention; None for other ops and unknown operands."""
    namespace, _, name = op.name.rpartition("::")
    build = _BUILDERS.get(name) if namespace == "aten" else None
    return build(op) if build is not None else None


def _product(op: RecordedOp, first: int) -> OpWork | None:
    """[B,] M x K times [B,] K x N; what is added to it (`addmm`) is read as well."""
    left, right = op.tensor(first), op.tensor(first + 1)
    if left is None or right is None or len(left.shape) != len(right.shape):
        return None
    *batch, rows, inner = left.shape if len(left.shape) > 1 else (0, 0)
    if not rows or right.shape[:-1] != (*batch, inner):
        return None
    results = math.prod(batch) * rows * right.shape[-1]
    added = op.tensor(0) if first else None
    return _work([left, right, *([added] if added else [])], results, 2 * results * inner)


def _convolution(op: RecordedOp) -> OpWork | None:
    """`(input, weight, padding, stride, dilation, ...)`, weight [O, C / groups, taps]."""
    given, weight = op.tensor(0), op.tensor(1)
    if given is None or weight is None or len(given.shape) != len(weight.shape):
        return None
    sizes, taps = given.shape[2:], weight.shape[2:]
    listed = [op.integers(position) for position in (2, 3, 4)]
    known = [values for values in listed if values is not None and len(values) == len(sizes)]
    if not sizes or len(known) < len(listed) or 0 in known[1]:
        return None
    outer = [
        (size + 2 * pad - dilation * (tap - 1) - 1) // stride + 1
        for size, tap, pad, stride, dilation in zip(sizes, taps, *known, strict=True)
    ]
    results = given.shape[0] * weight.shape[0] * math.prod(outer)
    return _work([given, weight], results, 2 * results * math.prod(weight.shape[1:]))


@dataclass(frozen=True)
class _AttentionArguments:
    """Where a forward op of attention has the axes of its tensors, and its other arguments.

    Sequences of several lengths packed into one tensor (`packed`) and windows are not counted.
    """

    heads: int
    length: int
    causal: int
    packed: tuple[int, ...]
    windows: tuple[int, ...] = ()

    def work(self, op: RecordedOp) -> OpWork | None:
        """4 D operations for each pair, 2 (D + E) where values have E columns."""
        query, key, value = (op.tensor(place) for place in range(3))
        if query is None or key is None or value is None:
            return None
        shapes = (query.shape, key.shape, value.shape)
        masked = op.number(self.causal)
        if masked is None or any(len(shape) != 4 for shape in shapes) or self._is_partial(op):
            return None
        length, seen = shapes[0][self.length], shapes[1][self.length]
        if masked and length != seen:
            return None
        pairs = length * (length + 1) // 2 if masked else length * seen
        heads, wide = shapes[0][0] * shapes[0][self.heads], shapes[2][3]
        flops = 2 * heads * pairs * (shapes[0][3] + wide)
        return _work([query, key, value], heads * length * wide, flops)

    def _is_partial(self, op: RecordedOp) -> bool:
        packed = any(op.tensor(place) is not None for place in self.packed)
        return packed or any(op.number(place) not in (None, -1.0) for place in self.windows)


def _work(read: Sequence[Operand], results: int, flops: int) -> OpWork | None:
    """With the bytes of the operands and of as many results of their type."""
    dtype = read[0].dtype
    if dtype not in _ARITHMETIC or any(item.dtype != dtype for item in read[:2]) or results <= 0:
        return None
    sizes = [item.elements * ITEM_BYTES.get(item.dtype, 0) for item in read]
    return OpWork(flops, sum(sizes) + results * ITEM_BYTES[dtype], dtype, matrix=True)


_BUILDERS: dict[str, Callable[[RecordedOp], OpWork | None]] = {
    "mm": lambda op: _product(op, 0),
    "bmm": lambda op: _product(op, 0),
    "addmm": lambda op: _product(op, 1),
    "baddbmm": lambda op: _product(op, 1),
    "cudnn_convolution": _convolution,
    "_flash_attention_forward": _AttentionArguments(2, 1, 8, (3, 4), (11, 12)).work,
    "_efficient_attention_forward": _AttentionArguments(2, 1, 9, (4, 5)).work,
    "_cudnn_attention_forward": _AttentionArguments(1, 2, 10, (4, 5)).work,
}
MATRIX_OPS = tuple(f"aten::{name}" for name in _BUILDERS)
