"""Sizes that may be symbolic: products of an integer and named symbols.

A `Dim` is an integer, or text for a size known only at run time (`"s0"`). Sums of symbols are kept
as one opaque symbol, so equality and divisibility are decided only where they are certain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from advisor.model.base import Record

Dim = int | str
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


class Size(Record, frozen=True, kw_only=True, order=False):
    """`coefficient × product(symbols)`; symbols are sorted, so equal sizes are equal records."""

    coefficient: int
    symbols: tuple[str, ...] = ()

    def times(self, other: Size) -> Size:
        """The product of two sizes."""
        symbols = tuple(sorted((*self.symbols, *other.symbols)))
        return Size(coefficient=self.coefficient * other.coefficient, symbols=symbols)

    def over(self, other: Size) -> Size | None:
        """The exact quotient, or None where it is not certain to be one."""
        if other.coefficient == 0 or self.coefficient % other.coefficient:
            return None
        left = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in left:
                return None
            left.remove(symbol)
        return Size(coefficient=self.coefficient // other.coefficient, symbols=tuple(left))

    @property
    def is_one(self) -> bool:
        """Certain to be 1."""
        return self.coefficient == 1 and not self.symbols


ONE = Size(coefficient=1)
# The stride of what does not vary.
NONE = Size(coefficient=0)


class RunTimeSizes(Record, frozen=True, kw_only=True):
    """The sizes of a site, some of which are known at run time only, as its graph has them.

    `row_sizes`, `column_sizes` one an axis; strides, in elements, as those of the site: 0 where a
    tensor does not vary, of outputs only where one is strided.
    """

    row_sizes: tuple[Size, ...]
    column_sizes: tuple[Size, ...]
    input_strides: tuple[tuple[Size, ...], ...]
    output_strides: tuple[tuple[Size, ...], ...] = ()

    @property
    def every(self) -> tuple[Size, ...]:
        """All sizes and strides."""
        strides = (*self.input_strides, *self.output_strides)
        return (*self.row_sizes, *self.column_sizes, *(one for own in strides for one in own))


def parse(dim: Dim) -> Size:
    """A dimension as a size: `4*s0` is 4 times s0; what is no product is one opaque symbol."""
    if isinstance(dim, int):
        return Size(coefficient=dim)
    factors = [part.strip() for part in dim.split("*")]
    if not all(part.isdecimal() or _SYMBOL.fullmatch(part) for part in factors):
        return Size(coefficient=1, symbols=(dim,))
    numbers = [int(part) for part in factors if part.isdecimal()]
    names = sorted(part for part in factors if not part.isdecimal())
    return Size(coefficient=math.prod(numbers), symbols=tuple(names))


def product(dims: Iterable[Dim]) -> Size:
    """The number of elements of a shape."""
    total = ONE
    for dim in dims:
        total = total.times(parse(dim))
    return total


def dense_steps(sizes: Sequence[Size], along: Sequence[bool]) -> tuple[Size, ...]:
    """Row-major strides, in elements, of a value without gaps; 0 where it does not vary.

    `sizes` and `along` have one entry an axis, the outermost first.
    """
    steps, step = [], ONE
    for size, spans in zip(reversed(sizes), reversed(along), strict=True):
        steps.append(step if spans else NONE)
        step = step.times(size) if spans else step
    return tuple(reversed(steps))
