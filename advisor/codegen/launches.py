"""Every kernel of a plan with its arguments for given sizes and strides, as `abi` orders them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.codegen.abi import (
    ALIGNED_COLUMNS,
    PARTIAL_DTYPE,
    Grid,
    KernelAbi,
    column_size_names,
    input_names,
    kernels,
    output_names,
    rows_name,
    size_names,
)
from advisor.codegen.expressions import POINTER_TYPES
from advisor.codegen.strided import strided
from advisor.errors import IllegalFusionError
from advisor.model.column_configs import combined_numbers, holds_rows
from advisor.model.launch import (
    GROUP_ROWS,
    OVER_ROWS,
    PART_COLUMNS,
    SCANS,
    LaunchConfig,
    column_blocks,
    columns_per_split,
    next_power_of_two,
    parts_at_once,
    row_splits_of,
    splits_of,
    steps_per_split,
    tile_rows,
)
from advisor.model.plan import FusionPlan, Site


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


def program_launches(plan: FusionPlan, config: LaunchConfig, site: Site) -> tuple[Launch, ...]:
    """Every kernel of a plan that is one program, with its arguments at a site.

    Raises as `launches` does.
    """
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
    _check_config(plan, config)
    rows, columns = math.prod(_walked(plan, row_sizes)), math.prod(column_sizes)
    values = {"n_rows": rows, "n_lanes": rows, "n_columns": columns}
    values["n_outer"] = math.prod(column_sizes[:-1])
    if plan.stepped:
        values["n_steps"] = values["n_depth"] = row_sizes[-1]
    values |= {name: row_sizes[axis] for axis, name in size_names(plan)}
    values |= _places(plan, strides, output_strides, offsets, table_rows)
    parts, shares = _shares(config, rows, columns, row_sizes[-1] if row_sizes else 1)
    values |= shares
    constants = _constants(plan, config, row_sizes, column_sizes)
    types = pointer_types(plan)
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


def _check_config(plan: FusionPlan, config: LaunchConfig) -> None:
    """Raises `IllegalFusionError` for a configuration that the plan cannot have."""
    if config.scheme == "column_sums" and holds_rows(plan) != (config.block_columns is None):
        raise IllegalFusionError("rows that are reduced are held whole, others in blocks")
    if config.scheme == "split" and plan.in_tiles and config.block_rows > 1:
        raise IllegalFusionError("rows that are written in tiles are shared one at a time")


def _walked(plan: FusionPlan, row_sizes: Sequence[int]) -> Sequence[int]:
    """The row axes that programs are dealt out along: not a scan's steps, nor a product's depth."""
    return row_sizes[:-1] if plan.stepped else row_sizes


def _places(
    plan: FusionPlan,
    strides: Sequence[Sequence[int]],
    output_strides: Sequence[Sequence[int]],
    offsets: Sequence[int],
    table_rows: Sequence[int],
) -> dict[str, int]:
    """The parameters that say where tensors lie: strides, offsets of a scan's, rows of tables."""
    given = dict(zip((item.name for item in plan.inputs), strides, strict=True))
    given |= dict(zip(output_names(plan), output_strides, strict=False))
    found = {
        name: given[tensor.name][axis] for tensor in strided(plan) for axis, name in tensor.strides
    }
    begin = offsets or (0,) * len(plan.inputs)
    found |= {f"{n}_offset": at for n, at in zip(input_names(plan), begin, strict=True)}
    tables = zip(plan.inputs, table_rows, strict=False)
    return found | {rows_name(item): count for item, count in tables if item.gathered}


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


def _constants(
    plan: FusionPlan, config: LaunchConfig, row_sizes: Sequence[int], column_sizes: Sequence[int]
) -> dict[str, int | bool]:
    rows, columns = math.prod(_walked(plan, row_sizes)), math.prod(column_sizes)
    held = config.block_columns is None
    block = config.block_columns or next_power_of_two(columns)
    outer, inner = math.prod(column_sizes[:-1]), column_sizes[-1]
    steps = row_sizes[-1] if plan.stepped else 1
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
        "EVEN_STEPS": _fills_turns(config, steps),
        "GROUP_ROWS": GROUP_ROWS,
        "SPLITS": next_power_of_two(splits_of(config, columns)),
        "TILE_ROWS": tile_rows(config.block_columns or 1, outer, inner),
        "PARTS": parts_at_once(config, combined_numbers(plan)),
        "PART_COLUMNS": PART_COLUMNS,
        **{name: column_sizes[axis] for axis, name in column_size_names(plan)},
    }


def _fills_turns(config: LaunchConfig, steps: int) -> bool:
    """Whether no turn of a loop over steps, or over a share of them, goes beyond the last one."""
    if config.scheme == "gemm":
        return steps % (config.block_steps or 1) == 0
    own = steps_per_split(config, steps)
    return config.unroll == 1 or steps % config.unroll == 0 == own % config.unroll


def pointer_types(plan: FusionPlan) -> dict[str, str]:
    """Triton's types of the tensors that callers pass."""
    found = {item.name: POINTER_TYPES[item.dtype] for item in plan.inputs}
    written = zip(output_names(plan), plan.outputs, strict=True)
    return found | {name: POINTER_TYPES[output.dtype] for name, output in written}
