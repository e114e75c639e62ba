"""Launch configurations of programs without reductions, the likeliest first.

Every program has a block of rows and columns. Where tensors are stored in different orders (a
transposed read, channels last beside channels first), one of them is read down the rows: a block
must be tall enough for whole sectors of it, and wide enough for those of the others. The further
terms are those of `ranking`.
"""

from __future__ import annotations

import math
from itertools import product

from advisor.model.launch import (
    MIN_ELEMENTS_PER_THREAD,
    LaunchConfig,
    column_blocks,
    grid_size,
    next_power_of_two,
)
from advisor.model.optable import item_bytes, spec_of
from advisor.model.plan import FusionPlan, Site
from advisor.model.ranking import (
    BASE_REGISTERS,
    L2_SHARE,
    LIVE_TILES,
    idle,
    latency,
    layouts,
    resident_programs,
    share_of_site,
    unusual_tile,
)
from advisor.model.sectors import unfilled

KEPT = 12
ROWS, COLUMNS, WARPS = (1, 4, 16, 32, 64, 128), (16, 32, 64, 128, 256, 1024), (1, 2, 4, 8)
MAX_PER_THREAD = 32


def has_reductions(plan: FusionPlan) -> bool:
    """Whether any op of a plan reduces."""
    return any(spec_of(op.op).kind == "reduction" for op in plan.ops)


def block_configs(plan: FusionPlan, site: Site, sm_count: int) -> tuple[LaunchConfig, ...]:
    """Configurations that suit a site, the likeliest first; at least one."""
    widest, tallest = next_power_of_two(site.columns), next_power_of_two(site.rows)
    found = []
    for rows, columns, warps in product(ROWS, COLUMNS, WARPS):
        per_thread = rows * columns / (32 * warps)
        fits = MIN_ELEMENTS_PER_THREAD <= per_thread <= MAX_PER_THREAD
        if fits and columns < 2 * widest and rows < 2 * tallest:
            found.append(
                LaunchConfig(
                    scheme="blocks", block_rows=rows, block_columns=columns, num_warps=warps
                )
            )
    if not found:
        return (LaunchConfig(scheme="blocks", block_columns=16, num_warps=1),)
    beside = unfilled(plan, site)
    ranked = sorted(
        (_doublings(plan, site, c, sm_count) + math.log2(1 + L2_SHARE * beside(c)), n, c)
        for n, c in enumerate(found)
    )
    return tuple(config for _, _, config in ranked[:KEPT])


def _doublings(plan: FusionPlan, site: Site, config: LaunchConfig, sm_count: int) -> float:
    """The modelled time over that of a copy but for sectors, as a logarithm to base 2."""
    block = config.block_columns or 1
    tile = config.block_rows * block
    per_thread = tile / (32 * config.num_warps)
    programs = grid_size(config, site.rows, site.columns)
    resident = resident_programs(config.num_warps, BASE_REGISTERS + LIVE_TILES * per_thread)
    running = min(resident, max(programs // sm_count, 1))
    lanes = column_blocks(config, site.columns) * block
    read_bytes = max(sum(item_bytes(i.dtype) for i in plan.inputs if i.traffic == "tile"), 1)
    share = share_of_site(site.rows * site.columns * read_bytes, programs, sm_count)
    return (
        idle(programs, resident, sm_count)
        + unusual_tile(per_thread, tile)
        + layouts(config.block_rows, block, config.num_warps, vectors=plan.reads_vectors)
        + latency(running * tile * read_bytes, config.num_stages, share)
        + math.log2(lanes / max(site.columns, 1)) / 4
    )
