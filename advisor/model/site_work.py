"""What a plan's program does at one site: bytes, arithmetic, and each op as a formula."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.model.gathers import elements_read
from advisor.model.gemm import product_flops, product_rows
from advisor.model.members import parts
from advisor.model.optable import item_bytes, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, Site
from advisor.model.spaces import Space

# What the memory of every GPU in the table moves at least.
SECTOR_BYTES = 32
# Steps of a lane whose sectors are read once, where one step is taken after the other.
CACHED_STEPS = 8
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


def sector_bytes(
    plan: FusionPlan, site: Site, block_rows: int, block_columns: int | None = None
) -> int:
    """Bytes of all sectors of memory that the programs touch, each program on its own.

    A program has `block_rows` rows, whole or, where `block_columns` says so, a part of each; of a
    scan, lanes and steps, few of which are in cache until they are needed.

    More than `site_bytes` where a program reads or writes runs that are short or begin anywhere:
    what one leaves of a sector others take, but from L2.
    """
    total = site_bytes(plan, site)
    limits = _limits(plan, site, block_rows, block_columns)
    for position, item in enumerate(plan.inputs):
        if item.gathered is not None:  # a row begins anywhere in the table
            row = site.columns * item_bytes(item.dtype)
            rows = elements_read(plan, site, position) // max(site.columns, 1)
            total += rows * _beside(row, item_bytes(item.dtype))
    for dtype, along, strides in _strided_tiles(plan, site):
        held = [
            (stride, most, size)
            for stride, most, size, spans in zip(strides, limits, site.sizes, along, strict=True)
            if spans and size > 1
        ]
        width, elements = item_bytes(dtype), math.prod(size for _, _, size in held)
        run = _run(held) * width
        total += elements * width * _beside(run, width) // run
    return total


def _limits(
    plan: FusionPlan, site: Site, block_rows: int, block_columns: int | None
) -> tuple[int, ...]:
    """How many elements a program holds along each axis at most."""
    if plan.states:
        *outer, lanes, steps = (*(1 for _ in site.row_sizes[:-2]), *site.row_sizes[-2:])
        held = (*outer, min(lanes, block_rows), min(steps, block_columns or CACHED_STEPS))
        return (*held, *site.column_axes)
    return (
        *(min(size, block_rows) for size in site.row_sizes),
        *(min(size, block_columns or size) for size in site.column_axes),
    )


def _strided_tiles(
    plan: FusionPlan, site: Site
) -> Iterator[tuple[str, tuple[bool, ...], Sequence[int]]]:
    """(dtype, whether it varies along each axis, strides) of the large tensors with strides."""
    for item, given in zip(plan.inputs, site.input_strides, strict=True):
        is_tile = item.traffic == "tile" or (plan.states and item.spans[-2])
        if item.gathered is None and is_tile and not item.dense:
            yield item.dtype, plan.along(item), given
    for output, given in zip(plan.outputs, site.output_strides, strict=False):
        is_tile = output.space == "tile" or bool(plan.states)
        if output.strided and is_tile and not output.last:
            yield output.dtype, output.along(plan.row_axes, plan.column_axes), given


def writes_along_rows(plan: FusionPlan, site: Site) -> bool:
    """Whether a tile is written without gaps along the last row axis, and not along the columns."""
    last = plan.row_axes - 1
    return any(
        output.strided and output.space == "tile" and strides[last] == 1 < site.row_sizes[last]
        for output, strides in zip(plan.outputs, site.output_strides, strict=False)
        if not output.unit_stride
    )


def _beside(run: int, width: int) -> int:
    """Bytes of the sectors of a run that are not its own, on average; 0 where it fills sectors."""
    return 0 if run % SECTOR_BYTES == 0 else SECTOR_BYTES - width


def _run(axes: list[tuple[int, int, int]]) -> int:
    """Neighbouring elements that one program takes; axes as (stride, how far it goes, size)."""
    run = 1
    for stride, most, size in sorted(axes):
        if stride != run:
            break
        run *= most
        if most < size:
            break
    return run


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
