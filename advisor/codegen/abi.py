"""The calling convention of generated kernels: one for source, launch, rewrite and resources.

Parameters, in order: tensors read, tensors written, `n_rows`, `n_columns`, for shared work
`n_splits` and `split_columns` or `block_rows`, the sizes of the inner row axes (only where an input
needs them), where columns are taken in tiles `n_outer` of them, the strides of tensors that are not
dense, then the compile-time constants, among them the sizes of the inner column axes: every element
is divided by these. A kernel takes what belongs to its own tensors, where it has not all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from advisor.codegen.expressions import POINTER_TYPES
from advisor.codegen.strided import strided
from advisor.errors import IllegalFusionError
from advisor.model.column_configs import combined_numbers, holds_rows, partial_numbers
from advisor.model.configs import scheme_schedule
from advisor.model.gemm import operands
from advisor.model.launch import (
    GROUP_ROWS,
    OVER_ROWS,
    PART_COLUMNS,
    SCANS,
    LaunchConfig,
    Scheme,
    column_blocks,
    columns_per_split,
    next_power_of_two,
    parts_at_once,
    row_splits_of,
    splits_of,
    steps_per_split,
    tile_rows,
)
from advisor.model.plan import FusionPlan, PlanInput, Site
from advisor.model.scan import lane_axes
from advisor.model.walks import walk_of

BLOCKS = ("BLOCK_ROWS", "BLOCK_COLUMNS", "EVEN_ROWS", "EVEN_COLUMNS")
PARTS = ("PARTS", "PART_COLUMNS")
# Triton knows of an argument that is a multiple of this, and loads rows of such lengths 16 bytes a
# time; those of others element by element.
ALIGNED_COLUMNS = 16
PARTIAL_DTYPE = "float32"
# The partial results of a share of a scan's steps: what it does to a state, s' = a s + b.
LINEAR = ("partial_a", "partial_b")
# What programs are numbered by: blocks of rows, also with parts of a row; shares of the rows with
# blocks of columns; blocks of columns; columns whose partial results are combined; blocks of rows
# and columns, one after the other; blocks of lanes, also with shares of the steps.
Grid = Literal[
    "rows", "rows and splits", "shares and columns", "columns", "parts", "blocks",
    "lanes", "lanes and shares",
]  # fmt: skip


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
        divisible = (name for name, value in self.scalars.items() if value % ALIGNED_COLUMNS == 0)
        return (*self.kernel.tensors, *divisible)

    @property
    def ones(self) -> dict[str, int | bool]:
        """Arguments that a launch compiles in as constants, because they are 1."""
        return {name: 1 for name, value in self.scalars.items() if value == 1}


def _outer_axes(plan: FusionPlan) -> int:
    """The axes that a program's number is decomposed into: not steps, and not a depth."""
    return lane_axes(plan) if plan.stepped else plan.row_axes


def needs_axes(plan: FusionPlan) -> bool:
    """Whether a tensor is addressed along separate row axes, so that rows must be decomposed."""
    several = _outer_axes(plan)
    tensors = [t for t in strided(plan) if t.name not in operands(plan)]
    return several > 1 and any(any(t.along[:several]) for t in tensors)


def needs_column_axes(plan: FusionPlan) -> bool:
    """Whether a tensor is addressed along separate column axes."""
    return plan.column_axes > 1 and any(any(t.along[plan.row_axes :]) for t in strided(plan))


def size_names(plan: FusionPlan) -> tuple[tuple[int, str], ...]:
    """(axis, parameter name) of the row-axis sizes that the kernel takes: all but the outermost."""
    several = _outer_axes(plan)
    return tuple((axis, f"size_{axis}") for axis in range(1, several)) if needs_axes(plan) else ()


def column_size_names(plan: FusionPlan) -> tuple[tuple[int, str], ...]:
    """(axis, constant's name) of the sizes of the column axes, the outermost left out."""
    return (
        tuple((axis, f"COLUMNS_{axis}") for axis in range(1, plan.column_axes))
        if needs_column_axes(plan)
        else ()
    )


def input_names(plan: FusionPlan) -> tuple[str, ...]:
    """The tensors that are read."""
    return tuple(item.name for item in plan.inputs)


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
    if scheme in SCANS:
        return _scan_kernels(plan, scheme)
    if scheme == "gemm":
        return (_gemm_kernel(plan),)
    if scheme in OVER_ROWS:
        return _column_kernels(plan, scheme)
    name = f"row_program_{plan.id[:8]}"
    reads, writes = tuple(item.name for item in plan.inputs), output_names(plan)
    shape = ("n_rows", "n_columns")
    rest = tuple(name for _, name in size_names(plan))
    blocks = (*BLOCKS, *(name for _, name in column_size_names(plan)))
    own = _strides(plan, (*reads, *writes))
    if scheme == "registers":
        return (KernelAbi(name, reads, writes, (*shape, *rest, *own), blocks),)
    if scheme == "blocks":
        scalars = (*shape, *rest, *own)
        return (KernelAbi(f"{name}_blocks", reads, writes, scalars, blocks, "blocks"),)
    streamed = (*blocks, "ALIGNED_COLUMNS", "REST_APART", "STAGES", "UNROLL")
    if scheme != "split":
        scalars = (*shape, *rest, *own)
        return (KernelAbi(f"{name}_{scheme}", reads, writes, scalars, streamed),)
    partials = partial_names(plan)
    scalars = (*shape, "n_splits", "split_columns", *rest)
    first = (*scalars, *_strides(plan, reads))
    tiles = any(output.space == "tile" for output in plan.outputs)
    turned = (("n_outer",), ("TILE_ROWS",)) if plan.in_tiles else ((), ())
    return (
        KernelAbi(f"{name}_partials", reads, partials, first, streamed, "rows and splits"),
        KernelAbi(
            f"{name}_finish",
            reads + partials,
            writes,
            (*scalars, *turned[0], *own),
            (*streamed, "SPLITS", *turned[1]),
            "rows and splits" if tiles else "rows",
        ),
    )


def _scan_kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels of a scan: one, or one that says what each share of the steps does to a state."""
    name, reads, writes = f"scan_{plan.id[:8]}", input_names(plan), output_names(plan)
    shape = ("n_lanes", "n_steps", "n_columns")
    sizes = tuple(size for _, size in size_names(plan))

    def rest(names: tuple[str, ...]) -> tuple[str, ...]:
        offsets = (f"{name}_offset" for name in names if name in reads)
        return (*sizes, *offsets, *_strides(plan, names))

    constants = (*BLOCKS, "STAGES")
    if scheme == "scan_steps":
        return (
            KernelAbi(name, reads, writes, (*shape, *rest(reads + writes)), constants, "lanes"),
        )
    if scheme == "scan_blocks":
        scalars, held = (*shape, *rest(reads + writes)), (*constants, "BLOCK_STEPS")
        return (KernelAbi(f"{name}_blocks", reads, writes, scalars, held, "lanes"),)
    shared = (*shape, "n_splits", "split_steps")
    first, all_ = (*shared, *rest(reads)), (*shared, *rest(reads + writes))
    return (
        KernelAbi(f"{name}_shares", reads, LINEAR, first, constants, "lanes and shares"),
        KernelAbi(f"{name}_finish", reads + LINEAR, writes, all_, constants, "lanes and shares"),
    )


def _gemm_kernel(plan: FusionPlan) -> KernelAbi:
    """The kernel of a product with what follows it."""
    reads, writes = input_names(plan), output_names(plan)
    sizes = tuple(size for _, size in size_names(plan))
    scalars = ("n_rows", "n_columns", "n_depth", *sizes, *_strides(plan, reads + writes))
    constants = (*BLOCKS, "BLOCK_STEPS", "EVEN_STEPS", "GROUP_ROWS", "STAGES")
    return KernelAbi(f"gemm_{plan.id[:8]}", reads, writes, scalars, constants, "blocks")


def _column_kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels that reduce over the rows: one, or one for the shares and one for the rest."""
    name = f"row_program_{plan.id[:8]}_{scheme}"
    walk, shape = walk_of(plan), ("n_rows", "n_columns")
    inner = tuple(name for _, name in column_size_names(plan))
    streamed = (*BLOCKS, *inner, "STAGES")
    sizes = tuple(name for _, name in size_names(plan))
    late = plan.late_values()
    rest = [
        name
        for name, output in zip(output_names(plan), plan.outputs, strict=True)
        if output.value not in late
    ]
    ends = [name for name in output_names(plan) if name not in rest]
    if scheme == "column_walk":
        read, writes = _reads(plan, walk.walked | walk.ended), output_names(plan)
        scalars = (*shape, *sizes, *_strides(plan, (*read, *writes)))
        return (KernelAbi(name, read, writes, scalars, streamed, "columns"),)
    partials, shared = row_partial_names(plan), (*shape, "n_splits", "block_rows")
    read, again = _reads(plan, walk.walked), _reads(plan, walk.ended)
    return (
        KernelAbi(
            f"{name}_shares",
            read,
            (*rest, *partials),
            (*shape, *sizes, *_strides(plan, (*read, *rest))),
            streamed,
            "shares and columns",
        ),
        KernelAbi(
            f"{name}_combine",
            (*again, *partials),
            tuple(ends),
            (*shared, *_strides(plan, (*again, *ends))),
            (*PARTS, *inner),
            "parts",
        ),
    )


def _reads(plan: FusionPlan, names: frozenset[str]) -> tuple[str, ...]:
    """The inputs with these names, in order."""
    return tuple(item.name for item in plan.inputs if item.name in names)


def _strides(plan: FusionPlan, names: Sequence[str]) -> tuple[str, ...]:
    """The parameters of the strides of these tensors, and of how many rows tables have."""
    found = [name for t in strided(plan) if t.name in names for _, name in t.strides]
    return (*found, *(rows_name(i) for i in plan.inputs if i.gathered and i.name in names))


def rows_name(item: PlanInput) -> str:
    """The parameter that says how many rows a table has."""
    return f"{item.name}_rows"


def site_launches(plan: FusionPlan, config: LaunchConfig, site: Site) -> tuple[Launch, ...]:
    """Every kernel with its arguments at a site; raises as `launches` does."""
    lies = site.input_strides, site.output_strides, site.input_offsets, site.table_rows
    return launches(plan, config, site.row_sizes, site.column_axes, *lies)


def launches(
    plan: FusionPlan,
    config: LaunchConfig,
    row_sizes: Sequence[int],
    column_sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    output_strides: Sequence[Sequence[int]] = (),
    offsets: Sequence[int] = (),
    table_rows: Sequence[int] = (),
) -> tuple[Launch, ...]:
    """Every kernel with its arguments; `strides[i]` are input i's per axis, in elements.

    `output_strides` are those of strided outputs; `offsets` where the inputs of a scan begin;
    `table_rows[i]` how many rows input i has, if it is a table.
    Sizes of rows and strides may be numbers that are known at run time only, which are never
    compared here. Raises `IllegalFusionError` for a configuration that the plan cannot have.
    """
    if config.scheme == "column_sums" and holds_rows(plan) != (config.block_columns is None):
        raise IllegalFusionError("rows that are reduced are held whole, others in blocks")
    if config.scheme == "split" and plan.in_tiles and config.block_rows > 1:
        raise IllegalFusionError("rows that are written in tiles are shared one at a time")
    rows, columns = math.prod(row_sizes), math.prod(column_sizes)
    depth = row_sizes[-1] if plan.product is not None else 1
    if plan.product is not None:
        rows = math.prod(row_sizes[:-1])
    values = {"n_rows": rows, "n_columns": columns, "n_depth": depth}
    if config.scheme in SCANS:
        rows = math.prod(row_sizes[:-1])
        begin = offsets or (0,) * len(plan.inputs)
        values |= {f"{n}_offset": at for n, at in zip(input_names(plan), begin, strict=True)}
        values |= {"n_lanes": rows, "n_steps": row_sizes[-1]}
    values |= {name: row_sizes[axis] for axis, name in size_names(plan)}
    if plan.in_tiles:
        values["n_outer"] = math.prod(column_sizes[:-1])
    given = dict(zip((item.name for item in plan.inputs), strides, strict=True))
    given |= dict(zip(output_names(plan), output_strides, strict=False))
    for tensor in strided(plan):
        values |= {name: given[tensor.name][axis] for axis, name in tensor.strides}
    tables = zip(plan.inputs, table_rows, strict=False)
    values |= {rows_name(item): count for item, count in tables if item.gathered}
    parts, shares = _shares(config, rows, columns, row_sizes[-1] if row_sizes else 1)
    values |= shares
    constants = _constants(config, rows, columns)
    constants["PARTS"] = parts_at_once(config, combined_numbers(plan))
    constants["TILE_ROWS"] = tile_rows(
        config.block_columns or 1, math.prod(column_sizes[:-1]), column_sizes[-1]
    )
    constants["EVEN_STEPS"] = depth % (config.block_steps or 1) == 0
    constants |= {name: column_sizes[axis] for axis, name in column_size_names(plan)}
    types = _types(plan)
    return tuple(
        Launch(
            kernel=kernel,
            types={name: types.get(name, POINTER_TYPES[PARTIAL_DTYPE]) for name in kernel.tensors}
            | dict.fromkeys(kernel.scalars, "i32"),
            scalars={name: values[name] for name in kernel.scalars},
            constants={name: constants[name] for name in kernel.constants},
            grid=_grid(kernel.grid, config, rows, columns, values.get("n_splits", 1)),
            workspace={name: parts for name in kernel.writes if name not in types},
        )
        for kernel in kernels(plan, config.scheme)
    )


def _shares(
    config: LaunchConfig, rows: int, columns: int, steps: int
) -> tuple[tuple[int, int], dict[str, int]]:
    """(shape of the partial results, parameters) where programs share what one would compute."""
    if config.scheme in OVER_ROWS:
        splits = row_splits_of(config, rows)
        return (splits, columns), {"n_splits": splits, "block_rows": config.block_rows}
    if config.scheme in SCANS:
        share = steps_per_split(config, steps)
        splits = max(-(-steps // share), 1)
        return (splits, rows * columns), {"n_splits": splits, "split_steps": share}
    splits = splits_of(config, columns)
    if config.splits is None:
        return (rows, splits), {}
    share = columns_per_split(config, columns)
    return (rows, splits), {"n_splits": splits, "split_columns": share}


def _grid(
    grid: Grid, config: LaunchConfig, rows: int, columns: int, shares: int
) -> tuple[int, int, int]:
    """How many programs a kernel has, along each number of theirs; the rows of a scan are lanes."""
    blocks = -(-rows // config.block_rows)
    beside = column_blocks(config, columns)
    counts: dict[Grid, tuple[int, int]] = {
        "rows": (blocks, 1),
        "rows and splits": (blocks, splits_of(config, columns)),
        "shares and columns": (row_splits_of(config, rows), beside),
        "columns": (beside, 1),
        "parts": (-(-columns // PART_COLUMNS), 1),
        "blocks": (blocks * beside, 1),
        "lanes": (blocks, 1),
        "lanes and shares": (blocks, shares),
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
        "ALIGNED_COLUMNS": columns % ALIGNED_COLUMNS == 0,
        "REST_APART": columns % block > 0 and columns // block % config.unroll == 0,
        "STAGES": config.num_stages,
        "UNROLL": config.unroll,
        "BLOCK_STEPS": config.block_steps or 1,
        "GROUP_ROWS": GROUP_ROWS,
        "SPLITS": next_power_of_two(splits_of(config, columns)),
        "PART_COLUMNS": PART_COLUMNS,
    }


def _types(plan: FusionPlan) -> dict[str, str]:
    """Pointer types of what callers pass."""
    found = {item.name: POINTER_TYPES[item.dtype] for item in plan.inputs}
    dtypes = (output.dtype for output in plan.outputs)
    found |= dict(zip(output_names(plan), (POINTER_TYPES[d] for d in dtypes), strict=True))
    return found
