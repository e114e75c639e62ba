"""Which launch configurations of a row program are worth sizing and timing, the likeliest first.

A model ranks them, in doublings of the time that a copy of the same bytes would take. Its terms:
bytes that passes read again, from L2 if the rows of the programs that run together stay there;
parts of sectors that a program leaves to others; multiprocessors left idle by too few programs or
by the last wave; too little in flight to hide latency, or too much for the registers. It only
orders and cuts the list: what spills is dropped by compiling, the rest is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from advisor.model.block_configs import block_configs, has_reductions
from advisor.model.column_configs import column_configs, column_schemes
from advisor.model.dealing import dealt_configs
from advisor.model.gemm_configs import gemm_configs
from advisor.model.launch import (
    MAX_ELEMENTS_PER_THREAD,
    MAX_TILE_ELEMENTS,
    MIN_ELEMENTS_PER_THREAD,
    LaunchConfig,
    Scheme,
    grid_size,
    is_least,
    next_power_of_two,
)
from advisor.model.optable import item_bytes
from advisor.model.passes import Schedule, can_split, has_online_form, schedule
from advisor.model.plan import FusionPlan, Site
from advisor.model.ranking import (
    BASE_REGISTERS,
    HELD_TILE,
    L1_SHARE,
    L2_SHARE,
    LIVE_TILES,
    STREAMED_REGISTERS,
    STREAMED_TILES,
    idle,
    latency,
    layouts,
    resident_programs,
    share_of_site,
    unusual_tile,
)
from advisor.model.scan_configs import scan_configs, scan_schemes
from advisor.model.sectors import SECTOR_BYTES, unfilled, writes_along_rows

# The H200's figures stand in where the GPU is not named: they only order the list.
SM_COUNT, L2_BYTES, L1_BYTES = 132, 50 << 20, 200 << 10
KEPT: dict[Scheme, int] = {"registers": 12, "looped": 10, "online": 10, "split": 6}
WARPS = (1, 2, 4, 8, 16, 32)
STREAMED_BLOCKS, STREAMED_WARPS = (1024, 2048, 4096, 8192, 16384, 32768), (4, 8, 16, 32)
# Stages and blocks a turn: loads are on their way ahead, or those of several blocks together.
AHEAD = ((1, 1), (1, 2), (1, 3), (1, 4), (3, 1))
MAX_STREAMED_PER_THREAD = 32
# Where rows are written across, blocks of whole sectors along them: the fewer rows, the more of
# them are in L2 when the next pass reads them again.
TALL_ROWS, TALL_BLOCKS = (16, 32, 64), (64, 128, 256, 512)
# Rows of more columns are not held beside each other, as many as a sector has bytes.
MOST_TALL_COLUMNS = MAX_TILE_ELEMENTS // (2 * SECTOR_BYTES)
# Elements of a program in a loop that are the likeliest to be fast.
STREAMED_TILE = 8192
# Beyond so many warps each barrier waits for more, and GPUs with warps of 64 have none.
MANY_WARPS, MANY_DOUBLINGS = 16, 0.1
# Rows of so many columns fit in registers: a loop reads again what need not be.
EASY_COLUMNS, EASY_DOUBLINGS = 8192, 0.6
# Fewer columns than this are not worth a loop; a split row must leave each program as many.
SHORTEST_LOOP, SHORTEST_SPLIT = 2048, 4096
# What an input costs that is read for every element, though it is the same for many of them.
GATHER_DOUBLINGS = 0.4
# What a row alone leaves of its sectors, as a share of its bytes, before rows are taken together.
LEAST_BESIDE = 0.05
# Rows beside each other in a loop, beyond which each doubling costs registers for its states.
EASY_ROWS, ROW_DOUBLINGS = 4, 0.2
# Parts of rows for each multiprocessor: beyond, the second kernel combines more than it saves.
MOST_SPLIT_WAVES = 16


@dataclass(frozen=True)
class _Task:
    """A plan at one site, on a GPU.

    Bytes per element: of its tiles, each once; of what each scheme reads `again` in later passes;
    of values per column, which every block of rows reads from L2, in each pass that needs them.
    `tensors` are read or written along the columns, which may lie `apart` in memory. A `tall` one
    is written along the rows too; along columns in segments, blocks of `least_block` fill sectors.
    `gathers` counts the inputs of parts of a row, whose segments have `segment` columns: they are
    read for every element, unless a whole block lies in one segment. `beside` says what share more
    the programs of a configuration move where they leave parts of sectors to others.
    """

    rows: int
    columns: int
    beside: Callable[[LaunchConfig], float]
    tile_bytes: int
    again: dict[Scheme, int]
    column_bytes: dict[Scheme, int]
    sm_count: int
    l2_bytes: int
    gathers: int = 0
    segment: int = 1
    tensors: int = 2
    apart: bool = False
    tall: bool = False
    least_block: int = 1


def candidate_configs(
    plan: FusionPlan, site: Site, *, sm_count: int = SM_COUNT, l2_bytes: int = L2_BYTES
) -> tuple[LaunchConfig, ...]:
    """Configurations of all schemes that suit a site, the likeliest first; at least one."""
    if plan.members:
        return dealt_configs(plan, site, sm_count)
    if plan.states:
        return scan_configs(plan, site, sm_count)
    if plan.product is not None:
        return gemm_configs(plan, site, sm_count)
    if plan.late_values():
        return column_configs(plan, site, sm_count)
    if not has_reductions(plan):
        return block_configs(plan, site, sm_count)
    task = _Task(
        rows=site.rows,
        columns=site.columns,
        beside=unfilled(plan, site),
        tile_bytes=_tile_bytes(plan),
        again={s: bytes_read_again(plan, s) for s in schemes_of(plan) if s != "registers"},
        column_bytes={s: _column_bytes(plan, s) for s in schemes_of(plan)},
        sm_count=sm_count,
        l2_bytes=l2_bytes,
        gathers=sum(bool(item.segments) for item in plan.inputs),
        segment=_segment(plan, site),
        tensors=sum(i.spans[-1] and not i.segments for i in plan.inputs)
        + sum(o.space == "tile" for o in plan.outputs),
        apart=plan.has_columns_apart,
        tall=writes_along_rows(plan, site),
        least_block=SECTOR_BYTES * site.column_axes[-1] if plan.in_tiles else 1,
    )
    found: list[tuple[float, int, LaunchConfig]] = []
    for scheme, configs in _by_scheme(task).items():
        ranked = sorted((_doublings(task, c), n, c) for n, c in enumerate(configs))
        found += ranked[: KEPT[scheme]]
    if not found:
        lone = 1 if site.columns <= 128 else 32
        return (LaunchConfig(block_rows=1, num_warps=lone),)
    return tuple(config for _, _, config in sorted(found, key=lambda item: item[0]))


def default_config(plan: FusionPlan, site: Site) -> LaunchConfig:
    """What is launched where nothing could be timed."""
    return candidate_configs(plan, site)[0]


def schemes_of(plan: FusionPlan) -> tuple[Scheme, ...]:
    """The schemes that can compute a plan."""
    if plan.members:
        return ("dealt",)
    if plan.states:
        return scan_schemes(plan)
    if plan.product is not None:
        return ("gemm",)
    if plan.late_values():
        return column_schemes(plan)
    found: list[Scheme] = ["registers", "looped"]
    if not has_reductions(plan):
        return ("blocks", *found)
    if has_online_form(plan):
        found.append("online")
    if can_split(plan):
        found.append("split")
    return tuple(found)


def scheme_schedule(plan: FusionPlan, scheme: Scheme) -> Schedule:
    """The passes of a streaming scheme; a split row is written by its second kernel alone."""
    online = scheme != "looped"
    return schedule(plan, online=online, writes_last=scheme == "split")


def _segment(plan: FusionPlan, site: Site) -> int:
    """Columns throughout which all values of a part of a row are the same."""
    varies = any(item.segments and item.segments[-1] for item in plan.inputs)
    return 1 if varies else site.column_axes[-1]


# --- enumeration ----------------------------------------------------------------------------------


def _by_scheme(task: _Task) -> dict[Scheme, list[LaunchConfig]]:
    found: dict[Scheme, list[LaunchConfig]] = {"registers": list(_held(task))}
    for scheme in task.again if task.columns >= SHORTEST_LOOP or task.tall else ():
        found[scheme] = list(_split(task) if scheme == "split" else _looped(task, scheme))
    return found


def _held(task: _Task) -> Iterator[LaunchConfig]:
    """Whole rows in registers: one long row, or many short ones a program, but no more than all."""
    block, tallest = next_power_of_two(task.columns), next_power_of_two(task.rows)
    for power, warps in product(range(12), WARPS):
        rows, per_thread = 1 << power, (block << power) / (32 * warps)
        if rows > tallest or rows * block > MAX_TILE_ELEMENTS:
            continue
        fills = per_thread >= MIN_ELEMENTS_PER_THREAD or is_least(rows, tallest, warps)
        if fills and per_thread <= MAX_ELEMENTS_PER_THREAD:
            yield LaunchConfig(block_rows=rows, num_warps=warps)


def _looped(task: _Task, scheme: Scheme) -> Iterator[LaunchConfig]:
    together: tuple[int, ...] = (1,)
    if task.column_bytes[scheme] or task.beside(LaunchConfig()) > LEAST_BESIDE:
        together = (1, 2, 4)
    if task.column_bytes[scheme] >= task.tile_bytes:
        together = (*together, 8, 16)  # what is read for every row outweighs the row
    together = tuple(rows for rows in together if rows <= next_power_of_two(task.rows))
    blocks = [block for block in STREAMED_BLOCKS if block >= task.least_block]
    tiles = [*product(together, blocks)] if task.columns >= SHORTEST_LOOP else []
    if task.tall:
        tiles += product([n for n in TALL_ROWS if n < 2 * task.rows], TALL_BLOCKS)
    for (rows, block), warps, (stages, unroll) in product(tiles, STREAMED_WARPS, AHEAD):
        turns = -(-task.columns // block)
        whole = turns == 1 and block < 2 * task.columns and stages == 1
        if (whole or turns > 1) and unroll <= turns and _streams_well(rows * block, warps):
            yield LaunchConfig(
                scheme=scheme,
                block_rows=rows,
                block_columns=block,
                num_warps=warps,
                num_stages=stages,
                unroll=unroll,
            )


def _split(task: _Task) -> Iterator[LaunchConfig]:
    """Enough programs for every multiprocessor, where the rows alone are too few."""
    if task.rows >= 2 * task.sm_count or task.columns < 2 * SHORTEST_SPLIT:
        return
    widest = min(
        task.columns // SHORTEST_SPLIT, MOST_SPLIT_WAVES * task.sm_count // max(task.rows, 1) + 1
    )
    blocks = STREAMED_BLOCKS[: 4 if task.least_block > 1 else 3]  # of tiles, wide and tall ones
    for power, block, warps in product(range(1, 11), blocks, (4, 8)):
        if 1 << power <= next_power_of_two(widest) and _streams_well(block, warps):
            yield LaunchConfig(
                scheme="split", splits=1 << power, block_columns=block, num_warps=warps
            )


def _streams_well(tile: int, warps: int) -> bool:
    return MIN_ELEMENTS_PER_THREAD <= tile / (32 * warps) <= MAX_STREAMED_PER_THREAD


# --- ranking --------------------------------------------------------------------------------------


def _doublings(task: _Task, config: LaunchConfig) -> float:
    """The modelled time over that of a copy, as a logarithm to base 2."""
    block = config.block_columns or next_power_of_two(task.columns)
    tile = config.block_rows * block
    per_thread = tile / (32 * config.num_warps)
    programs = grid_size(config, task.rows, task.columns)
    streamed = config.block_columns is not None
    registers = BASE_REGISTERS + LIVE_TILES * per_thread
    if streamed:
        states = LIVE_TILES if task.apart else STREAMED_TILES * task.tensors
        registers = STREAMED_REGISTERS + states * per_thread
    resident = resident_programs(config.num_warps, registers)
    running = min(resident, max(programs // task.sm_count, 1))
    read_bytes = max(task.tile_bytes / 2, 1)
    share = share_of_site(task.rows * task.columns * read_bytes, programs, task.sm_count)
    vectors = task.column_bytes[config.scheme] > 0
    easy = MOST_TALL_COLUMNS if task.tall else EASY_COLUMNS
    return (
        _traffic(task, config, running)
        + idle(programs, resident, task.sm_count)
        + unusual_tile(per_thread, tile, STREAMED_TILE if streamed else HELD_TILE)
        + (1.0 if resident < 2 and not (streamed and task.tall) else 0.0)
        + (EASY_DOUBLINGS if streamed and task.columns <= easy else 0.0)
        + (MANY_DOUBLINGS if streamed and config.num_warps > MANY_WARPS else 0.0)
        + layouts(config.block_rows, block, config.num_warps, vectors=vectors)
        + latency(running * tile * config.unroll * read_bytes, config.num_stages, share)
    )


def _traffic(task: _Task, config: LaunchConfig, running: int) -> float:
    """Doublings from what is read again, and the second launch of a split row."""
    again = task.again.get(config.scheme, 0)
    rows = min(task.rows, running * task.sm_count * config.block_rows)
    held = again * rows * task.columns <= task.l2_bytes
    # Loads that stages run ahead of pass by the L1.
    near = config.num_stages == 1 and again * running * config.block_rows * task.columns <= L1_BYTES
    extra = again * (L1_SHARE if near else L2_SHARE if held else 1.0)
    vectors = task.column_bytes[config.scheme]
    if vectors * task.columns > L1_BYTES:
        extra += L2_SHARE * vectors / config.block_rows
    doublings = math.log2(1 + extra / max(task.tile_bytes, 1))
    doublings += math.log2(1 + L2_SHARE * task.beside(config))
    if config.scheme == "registers":
        # Lanes past the last column are loaded as nothing, but take a program's place.
        doublings += math.log2(next_power_of_two(task.columns) / max(task.columns, 1)) / 4
    if config.block_columns is not None and config.block_rows > EASY_ROWS and not task.tall:
        doublings += ROW_DOUBLINGS * math.log2(config.block_rows / EASY_ROWS)
    if config.block_columns is None or task.segment % config.block_columns:
        doublings += GATHER_DOUBLINGS * task.gathers
    return doublings + (0.5 if config.scheme == "split" else 0.0)


def bytes_read_again(plan: FusionPlan, scheme: Scheme) -> int:
    """Bytes per element that passes after the first to read them read again."""
    widths = {i.name: item_bytes(i.dtype) for i in plan.inputs if i.traffic == "tile"}
    seen: set[str] = set()
    again = 0
    for one in scheme_schedule(plan, scheme).passes:
        again += sum(widths.get(name, 0) for name in one.reads if name in seen)
        seen.update(one.reads)
    return again


def _column_bytes(plan: FusionPlan, scheme: Scheme) -> int:
    """Bytes per column that one block of rows reads of values per column, over all passes."""
    widths = {i.name: item_bytes(i.dtype) for i in plan.inputs if i.traffic == "column"}
    if scheme == "registers":
        return sum(widths.values())
    passes = scheme_schedule(plan, scheme).passes
    return sum(widths.get(name, 0) for one in passes for name in one.reads)


def _tile_bytes(plan: FusionPlan) -> int:
    """Bytes per element of the iteration space, each tensor once."""
    reads = sum(item_bytes(i.dtype) for i in plan.inputs if i.traffic == "tile")
    return reads + sum(item_bytes(o.dtype) for o in plan.outputs if o.space == "tile")
