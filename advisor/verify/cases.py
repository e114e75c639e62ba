"""What a kernel is tried on: shapes around the plan's, values that break careless code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from advisor.model.plan import FusionPlan, PlanInput

Values = Literal["normal", "small", "large", "zeros", "special"]
POISON_FLOAT, POISON_INT = 6.3e4, 77
# Of a case on a GPU: its float64 reference and its random numbers take seconds, not minutes.
MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Case:
    """One shape with one kind of values; `block_rows` is the tile height of the launch."""

    name: str
    row_sizes: tuple[int, ...]
    columns: int
    values: Values
    block_rows: int = 1


def cases(plan: FusionPlan, *, small: bool, block_rows: int) -> Iterator[Case]:
    """The neighbourhood of the plan's shapes: its own columns and odd ones; few, many and no rows.

    `small` keeps the number of rows and columns within what an interpreter can run in seconds.
    """
    columns = plan.sites[0].columns if plan.sites else 1024
    near = min(columns, 1024) if small else columns
    many = max(min(64, MOST_ELEMENTS // (3 * max(near, 1))), 2)
    rows = _row_sizes(plan, 2 if small else many)
    for width in dict.fromkeys((near, max(near - 1, 1), near // 2 + 1, min(near, 5))):
        yield Case(f"columns {width}", rows, width, "normal", block_rows)
    yield Case("one row", _row_sizes(plan, 1, first=1), near, "normal", 1)
    yield Case(
        "ragged rows", _row_sizes(plan, 3, first=5), min(near, 257), "normal", max(block_rows, 2)
    )
    if plan.late_values():
        yield from _column_cases(plan, near, block_rows, small=small)
    if not any(op.over_rows and op.op in ("amax", "amin") for op in plan.ops):  # nothing is largest
        yield Case("no rows", _row_sizes(plan, 1, first=0), near, "normal", block_rows)
    for values in ("small", "zeros", "large", "special"):
        yield Case(f"{values} values", rows, min(near, 513), values, block_rows)


def _column_cases(plan: FusionPlan, near: int, block_rows: int, *, small: bool) -> Iterator[Case]:
    """Few and many rows where they are reduced: one for all programs, fewer than these, more.

    Several columns: the sum of a single one may vanish, and with it the scale of its error.
    """
    several = max(block_rows, 32) if small else block_rows
    wide = min(near, 128) if small else near
    for first, width in ((7, near), (1000, wide), (1000, min(near, 7)), (1, min(near, 7))):
        rows = max(min(first, MOST_ELEMENTS // max(width, 1)), 1)
        sizes = _row_sizes(plan, 1, first=rows)
        yield Case(f"{rows} rows of {width}", sizes, width, "normal", several)


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
    sizes = (*case.row_sizes, case.columns)
    return [_make_input(item, sizes, case.values, generator, device) for item in plan.inputs]


def _make_input(
    item: PlanInput,
    sizes: tuple[int, ...],
    values: Values,
    generator: torch.Generator,
    device: torch.device,
) -> torch.Tensor:
    shape = [size if span else 1 for size, span in zip(sizes, item.spans, strict=True)]
    stored = list(shape)
    if not item.dense:
        stored[-1] = shape[-1] + 3 if item.unit_stride else 2 * shape[-1]
    tensor = _fill(stored, item.dtype, values, generator).to(device)
    if item.dense:
        return tensor
    return tensor[..., : shape[-1]] if item.unit_stride else tensor[..., ::2]


def _fill(shape: list[int], dtype: str, values: Values, generator: torch.Generator) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    if not kind.is_floating_point:
        high = 2 if kind == torch.bool else 5
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
        flat[spots] = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0], dtype=kind)
    return tensor


def poisoned_outputs(
    plan: FusionPlan, case: Case, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Outputs filled with a value no computation gives, so that an element never written shows."""
    found = []
    for output in plan.outputs:
        shape = output.shape(case.row_sizes, case.columns)
        kind: torch.dtype = getattr(torch, output.dtype)
        poison = (
            POISON_FLOAT if kind.is_floating_point else (True if kind == torch.bool else POISON_INT)
        )
        found.append(torch.full(shape, poison, dtype=kind, device=device))
    return tuple(found)
