"""Inputs that are rows of a table, one for each index that another input holds.

`table[index[row], column]`: the index is a value per row, read before; the table is two-dimensional
with its columns side by side. At a site the table's row stride stands on the first row axis that
the input spans, and `table_rows` says how many rows it has. What several indices name is read
again, so bytes are counted up to the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from advisor.model.spaces import space_of

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan, PlanInput, Site

INDEX_DTYPES = ("int32", "int64")
TABLE_DTYPES = ("float16", "bfloat16", "float32")


def gathers(plan: FusionPlan) -> bool:
    """Whether an input is rows of a table."""
    return any(item.gathered is not None for item in plan.inputs)


def index_names(plan: FusionPlan) -> frozenset[str]:
    """The inputs that number the rows of a table."""
    return frozenset(item.gathered for item in plan.inputs if item.gathered is not None)


def table_axis(item: PlanInput) -> int:
    """The axis that stands for a table's rows where a tensor has one dimension an axis."""
    return item.spans.index(True)


def with_indices(plan: FusionPlan, names: Iterable[str]) -> frozenset[str]:
    """Names of inputs, and of those that say which rows of a table are read."""
    found = frozenset(names)
    return found | {i.gathered for i in plan.inputs if i.gathered is not None and i.name in found}


def renamed_input(item: PlanInput, names: Mapping[str, str]) -> PlanInput:
    """The input with its own name and that of its index exchanged."""
    index = None if item.gathered is None else names.get(item.gathered, item.gathered)
    return msgspec.structs.replace(item, name=names[item.name], gathered=index)


def table_rows(site: Site, position: int) -> int | None:
    """How many rows the table of an input has; None for what is no table."""
    return (site.table_rows[position] or None) if site.table_rows else None


def kept_rows(site: Site, kept: Sequence[int], more: int = 0) -> tuple[int, ...]:
    """`table_rows` of a site with some of its inputs, and `more` that are no tables."""
    rows = tuple(site.table_rows[place] for place in kept) if site.table_rows else ()
    return (*rows, *(0,) * more) if any(rows) else ()


def elements_read(plan: FusionPlan, site: Site, position: int) -> int:
    """Elements of an input that are read from memory, each once: of a table its own at most."""
    item = plan.inputs[position]
    along = zip(site.sizes, plan.along(item), strict=True)
    elements = math.prod(size for size, spans in along if spans)
    rows = table_rows(site, position)
    return elements if rows is None else min(elements, rows * site.columns)


def misfit(plan: FusionPlan, position: int) -> str | None:
    """Why an input cannot be rows of a table as it says, or None."""
    item = plan.inputs[position]
    earlier = {other.name: other for other in plan.inputs[:position]}
    index = earlier.get(item.gathered or "")
    if plan.family != "row_program" or plan.column_axes != 1:
        return f"{item.name}: only a row program with one column axis reads rows of a table"
    if index is None:
        return f"{item.name}: no input before it holds its index"
    if index.dtype not in INDEX_DTYPES or space_of(index.spans) != "row":
        return f"{item.name}: its index is not one int32 or int64 a row"
    if index.gathered is not None or index.counts is not None or index.reverse:
        return f"{item.name}: its index is not read as it lies in memory"
    if item.dtype not in TABLE_DTYPES or item.spans != (*index.spans[:-1], True):
        return f"{item.name}: it is no table of floats with a row for every index"
    if not item.unit_stride or item.segments or item.counts is not None or item.reverse:
        return f"{item.name}: the columns of a table lie side by side"
    return None


def fits_site(plan: FusionPlan, site: Site, most: int) -> bool:
    """Whether a site says of every table, and of nothing else, how many rows it has and where."""
    if not gathers(plan):
        return not site.table_rows
    if len(site.table_rows) != len(plan.inputs):
        return False
    for item, rows, strides in zip(plan.inputs, site.table_rows, site.input_strides, strict=True):
        if item.gathered is None:
            if rows:
                return False
            continue
        if not 1 <= rows <= most or not _lies_in_rows(item, strides, site.columns):
            return False
    return True


def _lies_in_rows(item: PlanInput, strides: Sequence[int], columns: int) -> bool:
    axis = table_axis(item)
    rest = [stride for place, stride in enumerate(strides[:-1]) if place != axis]
    apart = strides[axis] == columns if item.dense else strides[axis] >= columns
    return apart and not any(rest) and strides[-1] == 1
