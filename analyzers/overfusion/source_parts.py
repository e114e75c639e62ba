"""Parts of walking through a kernel that need no state: constants, shapes, arithmetic."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from analyzers.overfusion.tile_values import Tile, joined, scaled

Value: TypeAlias = Any  # a Tile, a number, a string, a tuple of values, or None
UNKNOWN = Tile()
MOST_STEPS, DEEPEST, MOST_UNROLLED = 60_000, 12, 512
# Source is anybody's: no number and no tuple of it grows without end.
MOST_BITS, MOST_ITEMS = 128, 256
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
DTYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "int1": "i1",
}  # fmt: skip
REDUCTIONS = ("sum", "max", "min", "reduce", "argmax", "argmin", "xor_sum", "max2", "sum2")
SAME = ("multiple_of", "max_contiguous", "promote_to_tensor", "abs", "round", "floor", "debarrier")


def as_tile(value: Value) -> Tile:
    """Any value as a tile; what is none is an unknown scalar."""
    if isinstance(value, Tile):
        return value
    return joined(*map(as_tile, value)) if isinstance(value, tuple) else UNKNOWN


def blank(tiles: list[Tile]) -> Tile:
    """A tile like the first of these, of nothing."""
    return Tile(shape=tiles[0].shape) if tiles else UNKNOWN


def sizes_of(shape: tuple[Value, ...]) -> tuple[int, ...]:
    """A shape; what is not known counts as one."""
    return tuple(size if isinstance(size, int) else 1 for size in shape)


def product_of(left: Value, right: Value) -> Tile:
    """A product of which one side is a tile."""
    if isinstance(left, Tile) and isinstance(right, Tile):
        # A scalar that is the same for all programs and lanes scales by an unknown number.
        for a, b in ((left, right), (right, left)):
            if not b.steps and not b.loaded and not b.shape:
                return scaled(a, None)
        return joined(left, right)
    tile, number = (left, right) if isinstance(left, Tile) else (right, left)
    return scaled(tile, number)


def computed(op: ast.operator, left: Value, right: Value) -> Value:
    """The result for two constants; unknown where it cannot be had."""
    compute = ARITHMETIC.get(type(op))
    if compute is None or not is_cheap(left, right):
        return UNKNOWN
    if isinstance(op, ast.Pow) and not is_small(left, right):
        return UNKNOWN
    try:
        return compute(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return UNKNOWN


def is_cheap(*values: Value) -> bool:
    """Whether these are numbers that no chain of products has made long."""
    return all(
        isinstance(v, float) or (isinstance(v, int) and v.bit_length() <= MOST_BITS) for v in values
    )


def short(values: tuple[Value, ...]) -> Value:
    """A tuple, unknown where it has too many parts, counted with those of its tuples."""
    return values if _parts(values) <= MOST_ITEMS else UNKNOWN


def _parts(value: Value) -> int:
    return sum(map(_parts, value)) + 1 if isinstance(value, tuple) else 1


def is_small(left: Value, right: Value) -> bool:
    """Whether a power of two constants is cheap."""
    return all(isinstance(v, (int, float)) and abs(v) <= 64 for v in (left, right))


def unary(op: ast.unaryop, value: Value) -> Value:
    """The result for one value."""
    if isinstance(value, Tile):
        return scaled(value, -1) if isinstance(op, ast.USub) else joined(value)
    if isinstance(op, ast.Not):
        return not value
    if isinstance(value, (int, float)) and isinstance(op, ast.USub):
        return -value
    return value


def compared(node: ast.Compare, sides: list[Value]) -> Value:
    """A comparison of constants, or what it depends on."""
    if any(isinstance(side, Tile) for side in sides):
        return joined(*map(as_tile, sides))
    if len(sides) != 2:
        return UNKNOWN
    if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return (sides[0] is sides[1]) == isinstance(node.ops[0], ast.Is)
    compare = COMPARE.get(type(node.ops[0]))
    try:
        return UNKNOWN if compare is None else bool(compare(sides[0], sides[1]))
    except TypeError:
        return UNKNOWN


def bounds_of(values: list[Value]) -> tuple[Value, Value, Value]:
    """(first, last, step) of a range."""
    if len(values) == 1:
        return 0, values[0], 1
    return (*values, 1, 1)[:3] if len(values) >= 2 else (0, None, 1)


def called(node: ast.Call) -> str:
    """The last part of the name that is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def carried(body: list[ast.stmt]) -> set[str]:
    """Names that a body assigns."""
    found = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found
