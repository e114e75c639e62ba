"""Where a value of a plan lives in registers, from the axes along which it varies."""

from __future__ import annotations

from typing import Literal

Space = Literal["tile", "row", "column", "scalar"]
# The attribute of a reduction over the rows; one without it reduces the columns.
OVER, ROWS = "over", "rows"


def space_of(spans: tuple[bool, ...]) -> Space:
    """Where a value lives in registers, from the axes it varies along."""
    rows, column = any(spans[:-1]), spans[-1]
    return ("tile" if column else "row") if rows else ("column" if column else "scalar")


def join_space(first: Space, second: Space) -> Space:
    """The space of a pointwise result of two operands."""
    rows = "tile" in (first, second) or "row" in (first, second)
    columns = "tile" in (first, second) or "column" in (first, second)
    return ("tile" if columns else "row") if rows else ("column" if columns else "scalar")
