"""The calling convention of generated kernels: one for source, launch, rewrite and resources.

Parameters, in order: tensors read, tensors written, `n_rows`, `n_columns`, for shared work
`n_splits` and `split_columns` or `split_rows`, the sizes of the inner row axes (only where an input
needs them), the strides of inputs that are not dense, then the compile-time constants. A kernel
takes those of its inputs, where it reads not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from advisor.codegen.expressions import POINTER_TYPES
from advisor.errors import IllegalFusionError
from advisor.model.column_configs import holds_rows, partial_numbers
from advisor.model.configs import scheme_schedule
from advisor.model.launch import (
    OVER_ROWS,
    PART_COLUMNS,
    LaunchConfig,
    Scheme,
    column_blocks,
    columns_per_split,
    next_power_of_two,
    parts_at_once,
    row_splits_of,
    rows_per_split,
    splits_of,
)
from advisor.model.plan import FusionPlan, PlanInput
from advisor.model.walks import walk_of

BLOCKS = ("BLOCK_ROWS", "BLOCK_COLUMNS", "EVEN_ROWS", "EVEN_COLUMNS")
PARTS = ("PARTS", "PART_COLUMNS")
PARTIAL_DTYPE = "float32"
# What programs are numbered by: blocks of rows, also with parts of a row; shares of the rows with
# blocks of columns; blocks of columns; columns whose partial results are combined.
Grid = Literal["rows", "rows and splits", "shares and columns", "columns", "parts"]


@dataclass(frozen=True)
class KernelAbi:
    """One kernel of a source: its name and its parameters by kind, each in order."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    scalars: tuple[str, ...]
    constants: tuple[str, ...]
    grid: Grid = "rows"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Pointer parameters."""
        return self.reads + self.writes


@dataclass(frozen=True)
class Launch:
    """One kernel with its arguments for one shape; `types` are Triton's for run-time arguments.

    `workspace` are the shapes of the float32 tensors that it writes and no caller sees.
    """

    kernel: KernelAbi
    types: dict[str, str]
    scalars: dict[str, int]
    constants: dict[str, int | bool]
    grid: tuple[int, int, int]
    workspace: dict[str, tuple[int, int]]

    @property
    def aligned(self) -> tuple[str, ...]:
        """Arguments that a launch specialises as divisible by 16."""
        divisible = (name for name, value in self.scalars.items() if value % 16 == 0)
        return (*self.kernel.tensors, *divisible)


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


def output_names(plan: FusionPlan) -> tuple[str, ...]:
    """The tensors that the caller gets."""
    return tuple(f"out{position}" for position in range(len(plan.outputs)))


def partial_names(plan: FusionPlan) -> tuple[str, ...]:
    """The partial results of a split row: one tensor a state of a fold."""
    count = sum(len(fold.states) for fold in scheme_schedule(plan, "split").passes[0].folds)
    return tuple(f"partial{number}" for number in range(count))


def row_partial_names(plan: FusionPlan) -> tuple[str, ...]:
    """The partial results of shares of the rows: one tensor a number kept for every column."""
    return tuple(f"partial{number}" for number in range(partial_numbers(plan)))


def kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels of a scheme, in the order of their launches."""
    if scheme in OVER_ROWS:
        return _column_kernels(plan, scheme)
    name = f"row_program_{plan.id[:8]}"
    reads, writes = tuple(item.name for item in plan.inputs), output_names(plan)
    shape = ("n_rows", "n_columns")
    rest = tuple(name for _, name in size_names(plan))
    rest += tuple(name for item in plan.inputs for _, name in stride_names(item))
    if scheme == "registers":
        return (KernelAbi(name, reads, writes, shape + rest, BLOCKS),)
    streamed = (*BLOCKS, "STAGES")
    if scheme != "split":
        return (KernelAbi(f"{name}_{scheme}", reads, writes, shape + rest, streamed),)
    partials = partial_names(plan)
    scalars = (*shape, "n_splits", "split_columns", *rest)
    tiles = any(output.space == "tile" for output in plan.outputs)
    return (
        KernelAbi(f"{name}_partials", reads, partials, scalars, streamed, "rows and splits"),
        KernelAbi(
            f"{name}_finish",
            reads + partials,
            writes,
            scalars,
            (*streamed, "SPLITS"),
            "rows and splits" if tiles else "rows",
        ),
    )


def _column_kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels that reduce over the rows: one, or one for the shares and one for the rest."""
    name = f"row_program_{plan.id[:8]}_{scheme}"
    walk, streamed, shape = walk_of(plan), (*BLOCKS, "STAGES"), ("n_rows", "n_columns")
    sizes = tuple(name for _, name in size_names(plan))
    late = plan.late_values()
    rest = [
        name
        for name, output in zip(output_names(plan), plan.outputs, strict=True)
        if output.value not in late
    ]
    ends = [name for name in output_names(plan) if name not in rest]
    if scheme == "column_walk":
        read, strides = _reads(plan, walk.walked | walk.ended)
        scalars = (*shape, *sizes, *strides)
        return (KernelAbi(name, read, output_names(plan), scalars, streamed, "columns"),)
    partials, shared = row_partial_names(plan), (*shape, "n_splits", "split_rows")
    read, strides = _reads(plan, walk.walked)
    again, strides_again = _reads(plan, walk.ended)
    return (
        KernelAbi(
            f"{name}_shares",
            read,
            (*rest, *partials),
            (*shape, "split_rows", *sizes, *strides),
            streamed,
            "shares and columns",
        ),
        KernelAbi(
            f"{name}_combine",
            (*again, *partials),
            tuple(ends),
            (*shared, *strides_again),
            PARTS,
            "parts",
        ),
    )


def _reads(plan: FusionPlan, names: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(inputs with these names, the parameters of their strides)."""
    found = [item for item in plan.inputs if item.name in names]
    strides = (name for item in found for _, name in stride_names(item))
    return tuple(item.name for item in found), tuple(strides)


def launches(
    plan: FusionPlan,
    config: LaunchConfig,
    row_sizes: Sequence[int],
    columns: int,
    strides: Sequence[Sequence[int]],
) -> tuple[Launch, ...]:
    """Every kernel with its arguments; `strides[i]` are input i's per axis, in elements.

    Raises `IllegalFusionError` for a configuration that the plan cannot have.
    """
    if config.scheme == "column_sums" and holds_rows(plan) != (config.block_columns is None):
        raise IllegalFusionError("rows that are reduced are held whole, others in blocks")
    rows = 1
    for size in row_sizes:
        rows *= size
    values = {"n_rows": rows, "n_columns": columns}
    values |= {name: row_sizes[axis] for axis, name in size_names(plan)}
    for item, given in zip(plan.inputs, strides, strict=True):
        values |= {name: given[axis] for axis, name in stride_names(item)}
    parts = (rows, splits_of(config, columns))
    if config.scheme in OVER_ROWS:
        parts = (row_splits_of(config, rows), columns)
        values |= {"n_splits": parts[0], "split_rows": rows_per_split(config, rows)}
    elif config.splits is not None:
        values |= {"n_splits": parts[1], "split_columns": columns_per_split(config, columns)}
    constants = _constants(config, rows, columns)
    types = _types(plan)
    return tuple(
        Launch(
            kernel=kernel,
            types={name: types.get(name, POINTER_TYPES[PARTIAL_DTYPE]) for name in kernel.tensors}
            | dict.fromkeys(kernel.scalars, "i32"),
            scalars={name: values[name] for name in kernel.scalars},
            constants={name: constants[name] for name in kernel.constants},
            grid=_grid(kernel.grid, config, rows, columns),
            workspace={name: parts for name in kernel.writes if name not in types},
        )
        for kernel in kernels(plan, config.scheme)
    )


def _grid(grid: Grid, config: LaunchConfig, rows: int, columns: int) -> tuple[int, int, int]:
    """How many programs a kernel has, along each number of theirs."""
    blocks = -(-rows // config.block_rows)
    beside = column_blocks(config, columns)
    counts: dict[Grid, tuple[int, int]] = {
        "rows": (blocks, 1),
        "rows and splits": (blocks, splits_of(config, columns)),
        "shares and columns": (row_splits_of(config, rows), beside),
        "columns": (beside, 1),
        "parts": (-(-columns // PART_COLUMNS), 1),
    }
    return (*counts[grid], 1)


def _constants(config: LaunchConfig, rows: int, columns: int) -> dict[str, int | bool]:
    held = config.block_columns is None
    block = config.block_columns or next_power_of_two(columns)
    return {
        "BLOCK_ROWS": config.block_rows,
        "BLOCK_COLUMNS": block,
        "EVEN_ROWS": rows % config.block_rows == 0,
        "EVEN_COLUMNS": columns == block if held else columns % block == 0,
        "STAGES": config.num_stages,
        "SPLITS": next_power_of_two(splits_of(config, columns)),
        "PARTS": parts_at_once(config),
        "PART_COLUMNS": PART_COLUMNS,
    }


def _types(plan: FusionPlan) -> dict[str, str]:
    """Pointer types of what callers pass."""
    found = {item.name: POINTER_TYPES[item.dtype] for item in plan.inputs}
    dtypes = (output.dtype for output in plan.outputs)
    found |= dict(zip(output_names(plan), (POINTER_TYPES[d] for d in dtypes), strict=True))
    return found
