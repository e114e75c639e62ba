"""The calling convention of a row-program kernel, defined once for source, launch, rewrite and resources.

Parameters, in order: inputs, outputs, `n_rows`, `n_columns`, the sizes of the inner row axes (only where an
input needs them), the strides of inputs that are not dense, then the compile-time constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.codegen.expressions import POINTER_TYPES
from advisor.model.plan import FusionPlan, PlanInput

CONSTEXPRS = ("BLOCK_ROWS", "BLOCK_COLUMNS", "EVEN_ROWS", "EVEN_COLUMNS")
# Elements of one tile that a thread holds; below, latency is exposed, above, registers run out.
MIN_ELEMENTS_PER_THREAD, MAX_ELEMENTS_PER_THREAD = 4, 64
MAX_TILE_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class LaunchConfig:
    """Rows per program and warps per program: what may vary without changing the result."""

    block_rows: int = 1
    num_warps: int = 4
    num_stages: int = 1

    def label(self) -> str:
        """The configuration as text: `rows=1 warps=4`."""
        return f"rows={self.block_rows} warps={self.num_warps}"


def needs_axes(plan: FusionPlan) -> bool:
    """Whether any input is addressed along separate row axes, so that rows must be decomposed."""
    return plan.row_axes > 1 and any(
        not item.dense and any(item.spans[:-1]) for item in plan.inputs
    )


def stride_names(item: PlanInput) -> tuple[tuple[int, str], ...]:
    """(axis, parameter name) of every stride argument of an input."""
    if item.dense:
        return ()
    last = len(item.spans) - 1
    return tuple(
        (axis, f"{item.name}_stride_{axis}")
        for axis, spans in enumerate(item.spans)
        if spans and not (axis == last and item.unit_stride)
    )


def size_names(plan: FusionPlan) -> tuple[tuple[int, str], ...]:
    """(axis, parameter name) of the row-axis sizes that the kernel takes: all but the outermost."""
    return (
        tuple((axis, f"size_{axis}") for axis in range(1, plan.row_axes))
        if needs_axes(plan)
        else ()
    )


def tensor_names(plan: FusionPlan) -> tuple[str, ...]:
    """Pointer parameters: inputs, then outputs."""
    return (*(item.name for item in plan.inputs), *(f"out{i}" for i in range(len(plan.outputs))))


def scalar_names(plan: FusionPlan) -> tuple[str, ...]:
    """Integer run-time parameters, in order."""
    sizes = tuple(name for _, name in size_names(plan))
    strides = tuple(name for item in plan.inputs for _, name in stride_names(item))
    return ("n_rows", "n_columns", *sizes, *strides)


def scalar_arguments(
    plan: FusionPlan, row_sizes: Sequence[int], columns: int, strides: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The integer arguments for one shape; `strides[i]` are input i's strides per axis, in elements."""
    rows = 1
    for size in row_sizes:
        rows *= size
    values = {"n_rows": rows, "n_columns": columns}
    values |= {name: row_sizes[axis] for axis, name in size_names(plan)}
    for item, given in zip(plan.inputs, strides, strict=True):
        values |= {name: given[axis] for axis, name in stride_names(item)}
    return values


def constexpr_arguments(config: LaunchConfig, rows: int, columns: int) -> dict[str, int | bool]:
    """The compile-time constants for one shape."""
    block_columns = next_power_of_two(columns)
    return {
        "BLOCK_ROWS": config.block_rows,
        "BLOCK_COLUMNS": block_columns,
        "EVEN_ROWS": rows % config.block_rows == 0,
        "EVEN_COLUMNS": columns == block_columns,
    }


def grid_size(config: LaunchConfig, rows: int) -> int:
    """Programs launched."""
    return -(-rows // config.block_rows)


def triton_signature(plan: FusionPlan) -> dict[str, str]:
    """Parameter types for compile-only: pointers, 32-bit integers, constants."""
    pointers = [*(i.dtype for i in plan.inputs), *(o.dtype for o in plan.outputs)]
    signature = {n: POINTER_TYPES[d] for n, d in zip(tensor_names(plan), pointers, strict=True)}
    signature |= dict.fromkeys(scalar_names(plan), "i32")
    return signature | dict.fromkeys(CONSTEXPRS, "constexpr")


def candidate_configs(columns: int) -> tuple[LaunchConfig, ...]:
    """Configurations worth sizing and timing for a row length, the likeliest first."""
    block = next_power_of_two(columns)
    found = [
        LaunchConfig(block_rows=rows, num_warps=warps)
        for rows in (1, 2, 4, 8, 16)
        for warps in (1, 2, 4, 8, 16, 32)
        if rows * block <= MAX_TILE_ELEMENTS
        and MIN_ELEMENTS_PER_THREAD <= rows * block / (32 * warps) <= MAX_ELEMENTS_PER_THREAD
    ]
    if not found:
        found = [LaunchConfig(block_rows=1, num_warps=1 if block <= 128 else 32)]
    return tuple(sorted(found, key=lambda c: _distance(c, block)))


def default_config(columns: int) -> LaunchConfig:
    """What is launched where nothing could be timed."""
    return candidate_configs(columns)[0]


def _distance(config: LaunchConfig, block: int) -> tuple[float, int]:
    """Prefer 16 elements a thread (two 16-byte loads of bf16) and tiles of about 4 Ki elements."""
    per_thread = config.block_rows * block / (32 * config.num_warps)
    tile = config.block_rows * block
    return (
        abs(per_thread.as_integer_ratio()[0].bit_length() - 5) + abs(tile.bit_length() - 13) / 2,
        config.num_warps,
    )


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value` (at least 1)."""
    return 1 << max(value - 1, 0).bit_length()
