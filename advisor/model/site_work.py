"""What a plan's program does at one site: bytes, arithmetic, and each op as a formula."""

from __future__ import annotations

import math
from collections.abc import Iterable

from advisor.model.gathers import elements_read
from advisor.model.gemm import product_flops, product_rows
from advisor.model.members import parts
from advisor.model.optable import item_bytes, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, Site
from advisor.model.spaces import Space

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def site_bytes(plan: FusionPlan, site: Site) -> int:
    """External inputs read once and outputs written once; of a table at most what indices name."""
    if plan.members:
        return sum(site_bytes(part, own) for part, own in parts(plan, site))
    total = 0
    for position, item in enumerate(plan.inputs):
        if item.counts is None:
            total += elements_read(plan, site, position) * item_bytes(item.dtype)
    for output in plan.outputs:
        total += math.prod(output.shape(site.row_sizes, site.column_axes)) * item_bytes(
            output.dtype
        )
    return total


def bytes_share(
    some: Iterable[tuple[FusionPlan, Site]], every: Iterable[tuple[FusionPlan, Site]]
) -> float:
    """What share of a step's bytes kernels at some of all their sites move, from 0 to 1."""
    moved, whole = (
        sum(site_bytes(plan, site) * site.executions for plan, site in sites)
        for sites in (some, every)
    )
    return moved / max(whole, 1.0)


def site_arithmetic(plan: FusionPlan, site: Site) -> tuple[int, int]:
    """(operations on the arithmetic pipe, special-function instructions), by the op table.

    A matrix product counts two operations for each of its multiply-adds.
    """
    if plan.members:
        counted = [site_arithmetic(part, own) for part, own in parts(plan, site)]
        return sum(flops for flops, _ in counted), sum(special for _, special in counted)
    flops = special = 0
    rows = site.rows
    if plan.product is not None:
        flops, rows = product_flops(site), product_rows(site)
    for op in plan.ops:
        spec = spec_of(op.op)
        # A reduction works on every element of its operand, whatever the size of its result.
        space: Space = "tile" if spec.kind == "reduction" else op.space
        flops += spec.flops * _elements(space, rows, site.columns)
        special += spec.special * _elements(space, rows, site.columns)
    return flops, special


def equation(op: PlanOp) -> str:
    """The right-hand side of an op: `v0 * v1`, `rsqrt(v3)`, `bfloat16(v5)`."""
    args = ", ".join(str(arg) for arg in op.args)
    infix = _INFIX.get(op.op)
    if infix:
        return f"{op.args[0]} {infix} {op.args[1]}"
    if op.op == "cast":
        return f"{op.dtype}({args})"
    correction = f", correction {op.attributes['correction']}" if op.op == "var" else ""
    over = " over the rows" if op.over_rows else ""
    return f"{op.op}({args}){correction}{over}"


def computed(item: PlanInput) -> str:
    """What is said behind what an input is: of one that counts, or that is rows of a table."""
    if item.gathered is not None:
        return f", the row of a table that {item.gathered} numbers"
    return ", counted from {} by {}, not read".format(*item.counts) if item.counts else ""


def _elements(space: Space, rows: int, columns: int) -> int:
    return {"tile": rows * columns, "row": rows, "column": columns, "scalar": 1}[space]
