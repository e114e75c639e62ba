"""The calling convention of a row-program kernel: one for source, launch, rewrite and resources.

Parameters, in order: inputs, outputs, `n_rows`, `n_columns`, the sizes of the inner row axes (only
where an input needs them), the strides of inputs that are not dense, then the compile-time
constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.codegen.expressions import POINTER_TYPES
from advisor.model.launch import LaunchConfig, next_power_of_two
from advisor.model.plan import FusionPlan, PlanInput

CONSTEXPRS = ("BLOCK_ROWS", "BLOCK_COLUMNS", "EVEN_ROWS", "EVEN_COLUMNS")


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
    """The integer arguments for one shape; `strides[i]` are input i's per axis, in elements."""
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


def triton_signature(plan: FusionPlan) -> dict[str, str]:
    """Parameter types for compile-only: pointers, 32-bit integers, constants."""
    pointers = [*(i.dtype for i in plan.inputs), *(o.dtype for o in plan.outputs)]
    signature = {n: POINTER_TYPES[d] for n, d in zip(tensor_names(plan), pointers, strict=True)}
    signature |= dict.fromkeys(scalar_names(plan), "i32")
    return signature | dict.fromkeys(CONSTEXPRS, "constexpr")
