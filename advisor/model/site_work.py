"""What a plan's program does at one site: bytes, arithmetic, and each op as a formula."""

from __future__ import annotations

from advisor.model.optable import item_bytes, spec_of
from advisor.model.plan import FusionPlan, PlanOp, Site, Space

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def site_bytes(plan: FusionPlan, site: Site) -> int:
    """External inputs read once and outputs written once."""
    sizes = (*site.row_sizes, site.columns)
    total = 0
    for item in plan.inputs:
        elements = 1
        for size, span in zip(sizes, item.spans, strict=True):
            elements *= size if span else 1
        total += elements * item_bytes(item.dtype)
    for output in plan.outputs:
        total += _elements(output.space, site) * item_bytes(output.dtype)
    return total


def site_arithmetic(plan: FusionPlan, site: Site) -> tuple[int, int]:
    """(operations on the arithmetic pipe, special-function instructions), by the op table."""
    flops = special = 0
    for op in plan.ops:
        spec = spec_of(op.op)
        # A reduction works on every element of its operand, whatever the size of its result.
        space: Space = "tile" if spec.kind == "reduction" else op.space
        flops += spec.flops * _elements(space, site)
        special += spec.special * _elements(space, site)
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


def _elements(space: Space, site: Site) -> int:
    return {
        "tile": site.rows * site.columns,
        "row": site.rows,
        "column": site.columns,
        "scalar": 1,
    }[space]
