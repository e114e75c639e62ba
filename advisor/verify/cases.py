"""What a kernel is tried on: shapes around the plan's, values that break careless code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from advisor.model.gathers import table_axis, table_rows
from advisor.model.gemm import operands, unit_axis
from advisor.model.members import alone
from advisor.model.plan import FusionPlan, PlanInput

Values = Literal["normal", "small", "large", "zeros", "special"]
# Beside the ordinary ones.
VALUES: tuple[Values, ...] = ("small", "zeros", "large", "special")
POISON_FLOAT, POISON_INT, POISON_BITS = 6.3e4, 77, 0x7F
# Of a case on a GPU: its float64 reference and its random numbers take seconds, not minutes.
MOST_ELEMENTS = 1 << 24
# Of a table: few enough that rows are named again, and some never.
MOST_TABLE_ROWS = 50


@dataclass(frozen=True)
class Case:
    """One shape with one kind of values; `block_rows` is the tile height of the launch."""

    name: str
    row_sizes: tuple[int, ...]
    column_sizes: tuple[int, ...]
    values: Values
    block_rows: int = 1

    @property
    def columns(self) -> int:
        """The number of columns."""
        return math.prod(self.column_sizes)


def cases(plan: FusionPlan, *, small: bool, block_rows: int) -> Iterator[Case]:
    """The neighbourhood of the plan's shapes: its own columns and odd ones; few, many and no rows.

    `small` keeps the number of rows and columns within what an interpreter can run in seconds.
    """
    if plan.states:
        yield from _scan_cases(plan, block_rows, small=small)
        return
    if plan.product is not None:
        yield from _gemm_cases(plan, block_rows, small=small)
        return
    own = plan.sites[0].column_axes if plan.sites else (1024,) * plan.column_axes
    near = _at_most(own, 1024) if small else own
    many = max(min(64, MOST_ELEMENTS // (3 * max(math.prod(near), 1))), 2)
    rows = _row_sizes(plan, 2 if small else many)
    *outer, inner = near
    widths = (near, (*outer, max(inner - 1, 1)), (*outer, inner // 2 + 1), _at_most(near, 5))
    for width in dict.fromkeys(widths):
        yield Case(f"columns {_text(width)}", rows, width, "normal", block_rows)
    yield Case("one row", _row_sizes(plan, 1, first=1), near, "normal", 1)
    ragged = _row_sizes(plan, 3, first=5)
    yield Case("ragged rows", ragged, _at_most(near, 257), "normal", max(block_rows, 2))
    if plan.late_values():
        yield from _column_cases(plan, near, block_rows, small=small)
    if not any(op.over_rows and op.op in ("amax", "amin") for op in plan.ops):  # nothing is largest
        yield Case("no rows", _row_sizes(plan, 1, first=0), near, "normal", block_rows)
    for values in VALUES:
        yield Case(f"{values} values", rows, _at_most(near, 513), values, block_rows)


def group_cases(plan: FusionPlan, *, small: bool) -> Iterator[tuple[Case, ...]]:
    """Rounds with a case for every member of a horizontal plan, until each had all of its own.

    They are shifted against each other: in one launch, members have different rows and values.
    """
    each = [list(cases(member, small=small, block_rows=1)) for member in alone(plan)]
    for round_number in range(max(len(own) for own in each)):
        yield tuple(own[(round_number + shift) % len(own)] for shift, own in enumerate(each))


def _scan_cases(plan: FusionPlan, block_rows: int, *, small: bool) -> Iterator[Case]:
    """The steps of the plan's site, few, one and none, more than a block; ragged lanes.

    Values are no larger than ordinary: what a step multiplies by leaves float32 soon.
    """
    site = plan.sites[0] if plan.sites else None
    columns = (min(site.columns if site else 16, 64 if small else 1024),)
    own = max(min(site.row_sizes[-1] if site else 64, 40 if small else 1 << 10), 1)
    lanes = _lane_sizes(plan, 1 if small else max(min(512 // columns[0], 64), 2))
    for steps in dict.fromkeys((own, 7, 1, 0, *(() if small else (128, 1000)))):
        yield Case(f"{steps} steps", (*lanes, steps), columns, "normal", block_rows)
    odd = (max(columns[0] - 1, 1),)
    yield Case(f"{odd[0]} columns", (*lanes, 9), odd, "normal", max(block_rows, 2))
    yield Case("no lanes", (*(0 for _ in lanes), 7), columns, "normal", block_rows)
    for values in ("small", "zeros", "special"):
        yield Case(f"{values} values", (*lanes, min(own, 12)), columns, values, block_rows)


def _gemm_cases(plan: FusionPlan, block_rows: int, *, small: bool) -> Iterator[Case]:
    """Rows, columns and depths that fill no block, one of each, none; a few blocks of all.

    As many rows as a block has are several blocks of an interpreter's, and a ragged one on a GPU.
    Never a single element: it may vanish, and with it the scale of its error.
    """
    site = plan.sites[0] if plan.sites else None
    wide = min(site.columns if site else 512, 70 if small else 2048)
    deep = min(site.row_sizes[-1] if site else 512, 50 if small else 4096)
    outer = _lane_sizes(plan, 1)[1:]
    tall = max((block_rows + block_rows // 2 + 1) // math.prod(outer), 1)

    def case(name: str, rows: int, depth: int, columns: int, values: Values = "normal") -> Case:
        return Case(name, (rows, *outer, depth), (columns,), values, block_rows)

    yield case(f"{tall} rows, depth {deep}, {wide} columns", tall, deep, wide)
    yield case("odd sizes", tall + 2, deep - 1 if deep > 1 else 3, wide - 1 if wide > 1 else 5)
    yield case("one row", 1, deep, wide)
    yield case("one column", tall, deep, 1)
    yield case("depth 1", 5, 1, min(wide, 33))
    yield case("no depth", 3, 0, min(wide, 33))
    yield case("no rows", 0, deep, wide)
    for values in VALUES:
        yield case(f"{values} values", tall, min(deep, 513), min(wide, 257), values)


def _lane_sizes(plan: FusionPlan, most: int) -> tuple[int, ...]:
    """Distinct sizes of the lane axes."""
    return tuple(most + 2 - place if place < 2 else 2 for place in range(plan.row_axes - 1))


def _at_most(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Sizes of axes with a product of at most `most`: the largest are cut, none to nothing."""
    found = list(sizes)
    while math.prod(found) > most and max(found) > 1:
        axis = found.index(max(found))
        others = math.prod(found[:axis] + found[axis + 1 :])
        second = max((size for n, size in enumerate(found) if n != axis), default=1)
        found[axis] = max(most // others, min(second, found[axis] - 1), 1)
    return tuple(found)


def _text(sizes: tuple[int, ...]) -> str:
    return "×".join(str(size) for size in sizes)


def _column_cases(
    plan: FusionPlan, near: tuple[int, ...], block_rows: int, *, small: bool
) -> Iterator[Case]:
    """Few and many rows where they are reduced: one for all programs, fewer than these, more.

    Several columns: the sum of a single one may vanish, and with it the scale of its error.
    """
    several = max(block_rows, 32) if small else block_rows
    wide, narrow = _at_most(near, 128) if small else near, _at_most(near, 7)
    for first, width in ((7, near), (1000, wide), (1000, narrow), (1, narrow)):
        rows = max(min(first, MOST_ELEMENTS // max(math.prod(width), 1)), 1)
        sizes = _row_sizes(plan, 1, first=rows)
        yield Case(f"{rows} rows of {_text(width)}", sizes, width, "normal", several)


def _row_sizes(plan: FusionPlan, size: int, first: int = 3) -> tuple[int, ...]:
    """Distinct sizes per axis, so that a mixed-up axis cannot go unseen."""
    if plan.row_axes == 1:
        return (first * size,)
    if size == 1:
        return (first, *(1,) * (plan.row_axes - 1))
    others = [other for other in range(size, size + plan.row_axes) if other != first]
    return (first, *others[: plan.row_axes - 1])


def make_inputs(
    plan: FusionPlan, case: Case, device: torch.device, seed: int
) -> list[torch.Tensor]:
    """Random inputs of a case; inputs that are not dense are cut out of wider storage."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    sizes = (*case.row_sizes, *case.column_sizes)
    found = []
    rows = _table_rows(plan)
    for position, item in enumerate(plan.inputs):
        spans = plan.along(item)
        shape = [size if span else 1 for size, span in zip(sizes, spans, strict=True)]
        if item.name in operands(plan):
            found.append(_make_operand(plan, item, shape, case.values, generator).to(device))
            continue
        if item.gathered is not None:
            shape = table_shape(item, rows[item.gathered], case.columns)
        tensor = _make_input(
            item, shape, _order(plan, position), case.values, generator, device, rows.get(item.name)
        )
        found.append(tensor)
    return found


def _table_rows(plan: FusionPlan) -> dict[str, int]:
    """Below what each index of a table is: what the tables that it numbers the rows of have."""
    found: dict[str, int] = {}
    for position, item in enumerate(plan.inputs):
        if item.gathered is not None:
            own = (table_rows(plan.sites[0], position) if plan.sites else None) or MOST_TABLE_ROWS
            found[item.gathered] = min(own, MOST_TABLE_ROWS, found.get(item.gathered, own))
    return found


def table_shape(item: PlanInput, rows: int, columns: int) -> list[int]:
    """The shape of a table with one dimension an axis: its rows are along one of the row axes."""
    shape = [1] * len(item.spans[:-1]) + [columns]
    shape[table_axis(item)] = rows
    return shape


def _make_operand(
    plan: FusionPlan,
    item: PlanInput,
    shape: list[int],
    values: Values,
    generator: torch.Generator,
) -> torch.Tensor:
    """A matrix cut out of wider storage, without gaps along its unit axis; its rows are one axis.

    `shape` is [rows..., depth, 1] or [1..., depth, columns].
    """
    unit, depth = unit_axis(plan, item), plan.row_axes - 1
    left = plan.product is not None and item.name == plan.product.left
    lines = [math.prod(shape[:-2]), shape[-2]] if left else shape[-2:]
    turned = unit is not None and (unit < depth if left else unit == depth)
    first, second = lines[::-1] if turned else lines
    wider = second * 2 if unit is None else second + 3
    stored = _fill([first, wider], item.dtype, values, generator)
    matrix = stored[:, ::2] if unit is None else stored[:, :second]
    matrix = matrix.t() if turned else matrix
    if left:
        split: torch.Tensor = matrix.unflatten(0, shape[:-2])
        return split.unsqueeze(-1)
    return matrix[(None,) * depth]


def _order(plan: FusionPlan, position: int) -> list[int]:
    """The axes of an input from the widest stride at the plan's site to the narrowest."""
    axes = list(range(plan.row_axes + plan.column_axes))
    if not plan.sites or plan.inputs[position].dense:
        return axes
    strides = plan.sites[0].input_strides[position]
    unit = [axes[-1]] if plan.inputs[position].unit_stride else []
    rest = [axis for axis in axes if axis not in unit]
    return sorted(rest, key=lambda axis: -strides[axis]) + unit


def _make_input(
    item: PlanInput,
    shape: list[int],
    order: list[int],
    values: Values,
    generator: torch.Generator,
    device: torch.device,
    below: int | None,
) -> torch.Tensor:
    """Dense, or cut out of storage that is wider along the last axis in order.

    Integers are `below` a number, if there is one.
    """
    last = order[-1]
    stored = [shape[axis] for axis in order]
    if item.dense:
        return _fill(stored, item.dtype, values, generator, below).to(device)
    unit = item.unit_stride and last == len(shape) - 1
    stored[-1] = shape[last] + 3 if unit else 2 * shape[last]
    tensor = _fill(stored, item.dtype, values, generator, below).to(device)
    tensor = tensor[..., : shape[last]] if unit else tensor[..., ::2]
    return tensor.permute([order.index(axis) for axis in range(len(shape))])


def _fill(
    shape: list[int],
    dtype: str,
    values: Values,
    generator: torch.Generator,
    below: int | None = None,
) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    if not kind.is_floating_point:
        high = below or (2 if kind == torch.bool else 5)
        return torch.randint(0, high, shape, generator=generator).to(kind)
    noise = torch.randn(shape, generator=generator)
    if values == "zeros":
        return torch.zeros(shape, dtype=kind)
    # Large: squares and their sums still fit in float32: a kernel that overflows did wrong.
    scale = {"small": 1e-3, "large": min(0.2 * torch.finfo(kind).max, 1e12)}.get(values, 1.0)
    tensor = (noise * scale).to(kind)
    if values == "special" and tensor.numel() > 8:
        flat = tensor.view(-1)
        spots = torch.randperm(flat.numel(), generator=generator)[:4]
        odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0]).to(kind)
        if kind.itemsize == 1:  # eight bits are not indexed by what they mean
            flat, odd = flat.view(torch.uint8), odd.view(torch.uint8)
        flat[spots] = odd
    return tensor


def poisoned_outputs(
    plan: FusionPlan, case: Case, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Outputs filled with a value no computation gives, so that an element never written shows."""
    found = []
    for position, output in enumerate(plan.outputs):
        shape = output.shape(case.row_sizes, case.column_sizes)
        kind: torch.dtype = getattr(torch, output.dtype)
        axes = plan.stored_order(position)
        made = _poison([shape[axis] for axis in axes], kind, device)
        found.append(made.permute([axes.index(axis) for axis in range(len(shape))]))
    return tuple(found)


def _poison(shape: list[int], kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of one value that is wrong; in eight bits, where any number may be right, NaN."""
    if kind.is_floating_point and kind.itemsize == 1:
        return torch.full(shape, POISON_BITS, dtype=torch.uint8, device=device).view(kind)
    value = POISON_FLOAT if kind.is_floating_point else (True if kind == torch.bool else POISON_INT)
    return torch.full(shape, value, dtype=kind, device=device)
