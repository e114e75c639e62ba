"""How an eager elementwise kernel walks its tensors: one flat loop, or an index for every element.

PyTorch's `TensorIterator` orders the axes by stride, joins those that all operands lay out alike,
and picks the kernel by what is left: one axis without gaps runs vectorised; with a conversion of
dtypes it loads element by element; otherwise every element's offset is computed, one division an
axis and one multiply-add an operand (ATen `TensorIterator.cpp`, `cuda/CUDALoops.cuh`). The result
says which, from shapes and strides alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Literal

from analyzers.recorded_ops import Operand

Path = Literal["vector", "cast", "index"]

WARP_LANES = 32


@dataclass(frozen=True)
class Walk:
    """The loop over `elements` positions in `axes` joined axes.

    `strides` hold, for each operand (the result first), the elements between neighbours along the
    innermost axis and the size of one element in bytes.
    """

    path: Path
    axes: int
    elements: int
    strides: tuple[tuple[int, int], ...]

    @property
    def operands(self) -> int:
        """Tensors that are read or written."""
        return len(self.strides)


def walk(
    inputs: Sequence[Operand],
    sizes: Sequence[int],
    *,
    result_bytes: int,
    result: Operand | None = None,
    converts: bool = False,
) -> Walk:
    """The loop of an elementwise kernel over `inputs`, whose elements have `sizes` bytes.

    `result` is a given output (in place, or `copy_`); without one the output is laid out like the
    inputs. `converts`: operands differ in dtype from what the function computes in.
    """
    shape = _broadcast([item.shape for item in (*inputs, *((result,) if result else ()))])
    given = [_strides(item, len(shape)) for item in inputs]
    leader = [_strides(result, len(shape))] if result is not None else []
    order = _order(shape, [*leader, *given])
    written = leader[0] if leader else _dense(shape, order)
    columns = [written, *given]
    joined = _joined(shape, order, columns)
    flat = len(joined) <= 1 and all(
        stride == 1 for size, strides in joined for stride in strides if size > 1
    )
    inner = joined[0][1] if joined else (1,) * len(columns)
    return Walk(
        path="index" if not flat else "cast" if converts else "vector",
        axes=max(len(joined), 1),
        elements=math.prod(shape),
        strides=tuple(zip(inner, (result_bytes, *sizes), strict=True)),
    )


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(
        next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True)
    )


def _strides(item: Operand, rank: int) -> tuple[int, ...]:
    """Strides over `rank` axes, 0 where the operand is repeated; without strides, dense."""
    own = item.strides if item.strides is not None else _dense(item.shape, _row_major(item.shape))
    repeated = [0 if size == 1 else step for size, step in zip(item.shape, own, strict=True)]
    return (0,) * (rank - len(repeated)) + tuple(repeated)


def _row_major(shape: Sequence[int]) -> list[int]:
    return list(range(len(shape)))[::-1]


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, axes from the innermost in `order`."""
    found = [0] * len(shape)
    step = 1
    for axis in order:
        found[axis] = step
        step *= shape[axis]
    return tuple(found)


def _order(shape: Sequence[int], columns: Sequence[Sequence[int]]) -> list[int]:
    """Axes from the innermost: by the strides of the first operand that tells two apart."""

    def compare(left: int, right: int) -> int:
        for strides in columns:
            if not strides[left] or not strides[right]:
                continue
            if strides[left] != strides[right]:
                return -1 if strides[left] < strides[right] else 1
        return 0

    return sorted(_row_major(shape), key=cmp_to_key(compare))


def _joined(
    shape: Sequence[int], order: Sequence[int], columns: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...]]]:
    """(size, strides by operand) of the axes that are left once neighbours are joined."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for axis in order:
        size, steps = shape[axis], tuple(strides[axis] for strides in columns)
        if size == 1:
            continue
        if found:
            inner, below = found[-1]
            if all(inner * low == high for low, high in zip(below, steps, strict=True)):
                found[-1] = (inner * size, below)
                continue
        found.append((size, steps))
    return found
