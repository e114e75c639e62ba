"""Launch configurations of programs with reductions over the rows, the likeliest first.

Every program walks over many rows and keeps sums of its columns in registers. Whole rows are held
where they are reduced along the columns too; otherwise a program takes a block of columns. The more
programs, the more of the GPU works and the more partial sums a second kernel reads. The model is
that of `configs`; its further terms are the partial sums, read and written once, from L2, and the
second launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from advisor.model.launch import (
    MAX_SPLITS,
    MAX_TILE_ELEMENTS,
    MIN_ELEMENTS_PER_THREAD,
    LaunchConfig,
    Scheme,
    column_blocks,
    grid_size,
    is_least,
    next_power_of_two,
    row_splits_of,
)
from advisor.model.optable import item_bytes, spec_of
from advisor.model.plan import FusionPlan, PlanOp, Site
from advisor.model.ranking import (
    BASE_REGISTERS,
    HELD_TILE,
    L2_SHARE,
    REGISTERS_PER_SM,
    idle,
    latency,
    layouts,
    resident_programs,
    share_of_site,
    unusual_tile,
)
from advisor.model.sectors import unfilled

KEPT = 16
WARPS, STAGES, HELD_STAGES = (1, 2, 4, 8, 16, 32), (1, 3), (1, 3, 4)
# Programs on each multiprocessor: where one holds whole rows, and where it holds blocks of columns.
HELD_SHARES, BLOCK_SHARES = (1, 2), (2, 4, 8)
COLUMN_BLOCKS = (32, 64, 128, 256, 512, 1024)
MAX_PER_THREAD = 32
# Tiles alive at a time beside the states: inputs wait for the reductions along their rows, one or
# several of them.
LIVE_HELD, LIVE_SEVERAL, LIVE_IN_BLOCKS = 4.0, 8.0, 1.5
# A launch, as bytes that could be moved in its time; what one request to memory brings.
LAUNCH_BYTES, REQUEST_BYTES = 4 << 20, 128
PARTIAL_BYTES = 4


@dataclass(frozen=True)
class _Task:
    """A plan at one site on a GPU: bytes an element, and numbers kept for every column.

    `held` says whether programs hold whole rows, `vectors` whether they read values per column,
    `beside` what share more those of a configuration move in sectors that they do not fill.
    """

    rows: int
    columns: int
    beside: Callable[[LaunchConfig], float]
    tile_bytes: int
    narrowest_bytes: int
    states: int
    held: bool
    vectors: bool
    sm_count: int


def column_schemes(plan: FusionPlan) -> tuple[Scheme, ...]:
    """The schemes that can compute a plan with reductions over the rows."""
    return ("column_sums",) if holds_rows(plan) else ("column_sums", "column_walk")


def holds_rows(plan: FusionPlan) -> bool:
    """Whether columns are reduced as well, so that a program needs whole rows."""
    return any(spec_of(op.op).kind == "reduction" and not op.over_rows for op in plan.ops)


def states_of(op: PlanOp) -> int:
    """The numbers that a reduction over the rows keeps for a column."""
    return 2 if op.op == "var" else 1


def partial_numbers(plan: FusionPlan) -> int:
    """The numbers that a program keeps for every column, over all reductions."""
    return sum(states_of(op) for op in plan.ops if op.over_rows)


def combined_numbers(plan: FusionPlan) -> int:
    """The numbers that are on hand for every column while the shares of programs are combined: of a
    variance, how far two means are apart as well."""
    return partial_numbers(plan) + sum(op.over_rows and op.op == "var" for op in plan.ops)


def workspace_bytes(plan: FusionPlan, config: LaunchConfig, site: Site) -> int:
    """Bytes of the partial results, which one kernel writes and the next one reads."""
    if config.scheme != "column_sums":
        return 0
    parts = row_splits_of(config, site.rows)
    return PARTIAL_BYTES * partial_numbers(plan) * parts * site.columns


def column_configs(plan: FusionPlan, site: Site, sm_count: int) -> tuple[LaunchConfig, ...]:
    """Configurations that suit a site, the likeliest first; at least one."""
    widths = [item_bytes(i.dtype) for i in plan.inputs if i.traffic == "tile"]
    written = sum(item_bytes(o.dtype) for o in plan.outputs if o.space == "tile")
    task = _Task(
        rows=site.rows,
        columns=site.columns,
        beside=unfilled(plan, site),
        tile_bytes=sum(widths) + written,
        narrowest_bytes=min(widths, default=PARTIAL_BYTES),
        states=partial_numbers(plan),
        held=holds_rows(plan),
        vectors=plan.reads_vectors,
        sm_count=sm_count,
    )
    configs = dict.fromkeys(_held(task) if task.held else _blocks(task))
    ranked = sorted((_doublings(task, c), n, c) for n, c in enumerate(configs))
    if not ranked:
        lone = 1 if site.columns <= 128 else 32
        block = None if task.held else COLUMN_BLOCKS[0]
        config = LaunchConfig(scheme="column_sums", splits=1, num_warps=lone, block_columns=block)
        return (config,)
    return tuple(config for _, _, config in ranked[:KEPT])


def _held(task: _Task) -> Iterator[LaunchConfig]:
    """Whole rows, some at a time."""
    block = next_power_of_two(task.columns)
    for power, warps, share, stages in product(range(7), WARPS, HELD_SHARES, HELD_STAGES):
        rows, splits = 1 << power, _splits(task, share * task.sm_count, 1 << power)
        if _fits(task, rows, block, warps):
            yield LaunchConfig(
                scheme="column_sums",
                block_rows=rows,
                splits=splits,
                num_warps=warps,
                num_stages=stages,
            )


def _blocks(task: _Task) -> Iterator[LaunchConfig]:
    """Blocks of columns, each of whose rows several programs may share."""
    widest = next_power_of_two(task.columns)
    narrow = [widest] if task.columns else []
    blocks = [block for block in COLUMN_BLOCKS if block <= widest] or narrow
    for block, power, warps in product(blocks, range(9), WARPS):
        rows = 1 << power
        if not _fits(task, rows, block, warps):
            continue
        beside = -(-task.columns // block)
        for share, stages in product(BLOCK_SHARES, STAGES):
            splits = _splits(task, -(-share * task.sm_count // max(beside, 1)), rows)
            yield LaunchConfig(
                scheme="column_walk" if splits == 1 else "column_sums",
                block_rows=rows,
                block_columns=block,
                splits=None if splits == 1 else splits,
                num_warps=warps,
                num_stages=stages,
            )


def _fits(task: _Task, rows: int, block: int, warps: int) -> bool:
    """Whether a tile gives every thread enough to do, and no more than its registers hold."""
    tile, threads, tallest = rows * block, 32 * warps, next_power_of_two(task.rows)
    wanted = _registers(task, rows, tile / threads)
    fills = tile / threads >= MIN_ELEMENTS_PER_THREAD or is_least(rows, tallest, warps)
    usual = rows <= tallest and fills and tile / threads <= MAX_PER_THREAD
    return tile <= MAX_TILE_ELEMENTS and usual and wanted <= min(REGISTERS_PER_SM / threads, 255)


def _splits(task: _Task, wanted: int, block_rows: int) -> int:
    """About as many programs as wanted, each with as many blocks of rows as the others.

    One block more for some would be read when most of the GPU is idle.
    """
    blocks = max(-(-task.rows // block_rows), 1)
    turns = -(-blocks // max(min(wanted, MAX_SPLITS), 1))
    return -(-blocks // turns)


def _registers(task: _Task, rows: int, per_thread: float) -> float:
    live = LIVE_IN_BLOCKS
    if task.held:
        live = LIVE_HELD if rows == 1 else LIVE_SEVERAL
    return BASE_REGISTERS + (live + task.states) * per_thread


def _doublings(task: _Task, config: LaunchConfig) -> float:
    """The modelled time over that of a copy, as a logarithm to base 2."""
    block = config.block_columns or next_power_of_two(task.columns)
    tile = config.block_rows * block
    per_thread = tile / (32 * config.num_warps)
    resident = resident_programs(config.num_warps, _registers(task, config.block_rows, per_thread))
    programs = grid_size(config, task.rows, task.columns)
    running = min(resident, max(programs // task.sm_count, 1))
    read_bytes = max(task.tile_bytes // 2, 1)
    # With rows for every multiprocessor, tiles stay as large as they would in a larger site: the
    # smaller, the more partial sums the second kernel has to wait for.
    few = task.rows < task.sm_count
    whole = task.rows * task.columns * read_bytes if few else math.inf
    share = share_of_site(whole, programs, task.sm_count)
    lanes = column_blocks(config, task.columns) * block
    request = min(block, task.columns) * task.narrowest_bytes
    return (
        _partials(task, config)
        + math.log2(1 + L2_SHARE * task.beside(config))
        + idle(programs, resident, task.sm_count)
        # Of the sizes of blocks of columns, none is likelier to be fast.
        + unusual_tile(per_thread, tile, HELD_TILE if task.held else tile)
        + layouts(config.block_rows, block, config.num_warps, vectors=task.vectors)
        + latency(running * tile * read_bytes, config.num_stages, share)
        + math.log2(lanes / max(task.columns, 1)) / 4
        + max(math.log2(REQUEST_BYTES / max(request, 1)), 0.0) / 2
    )


def _partials(task: _Task, config: LaunchConfig) -> float:
    """Doublings from partial results, written and read, and from the launch that reads them."""
    if config.scheme != "column_sums":
        return 0.0
    moved = task.tile_bytes * task.rows * task.columns
    parts = row_splits_of(config, task.rows) * task.columns
    extra = 2 * PARTIAL_BYTES * task.states * parts * L2_SHARE
    return math.log2(1 + (extra + LAUNCH_BYTES) / max(moved, 1))
