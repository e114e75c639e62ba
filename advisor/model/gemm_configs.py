"""Launch configurations of matrix products with an epilogue, the likeliest first.

A modelled time in units of tile work orders them: how many tiles a multiprocessor computes one
after the other (the last round counts whole: products of a few waves lose most there), times the
size of a tile over the rate that its shape allows. A tile of M × N reads M + N values for M N
multiply-adds, so small ones wait for shared memory. The model only orders and cuts the list: what
spills or has no room in shared memory is dropped by compiling, the rest is timed.
"""

from __future__ import annotations

import math
from collections import Counter

from advisor.model.gemm import arithmetic_of, depth_of, operand, operands, product_rows
from advisor.model.launch import LaunchConfig, next_power_of_two
from advisor.model.optable import item_bytes
from advisor.model.plan import FusionPlan, Site

KEPT, KEPT_OF_TILE = 12, 2
# `tl.dot` takes no fewer rows, columns or terms.
LEAST_BLOCK = 16
# (rows, columns, warps) of tiles, and stages: those of the library's kernels and of Triton's own
# tutorial for tensor cores, down to the tiles of a few rows.
_TILES = (
    (128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4), (128, 64, 4), (64, 128, 4),
    (64, 256, 4), (128, 64, 8), (64, 64, 4), (128, 32, 4), (32, 128, 4), (32, 64, 4), (64, 32, 4),
    (32, 32, 4), (16, 64, 4), (16, 128, 4), (16, 256, 4),
)  # fmt: skip
# Bytes of one step of the depth: what shared memory holds of each row or column of a tile.
_STEP_BYTES = (128, 64)
_STAGES = (3, 4)
# On the vector units a thread holds its operands as well, so the steps are short.
_VECTOR_TILES = (
    (128, 128, 8), (128, 64, 8), (64, 128, 8), (64, 64, 4), (64, 64, 8), (32, 64, 4), (64, 32, 4),
    (32, 32, 4), (16, 64, 4),
)  # fmt: skip
_VECTOR_STEPS = (16, 32)
# Shared memory that a program may have on every GPU of the table (compute capability 8.6, 12.0).
EVERYWHERE_BYTES = 99 << 10
# Sums of a tile that a thread holds beside what follows them without spilling, where that reads
# and writes no more whole tensors than these.
SAFE_PER_THREAD, EASY_TENSORS = 64, 3
# Multiply-adds per value read from which on a tile is as fast as any: that of 128 × 256.
_FULL_RATE = 128 * 256 / (128 + 256)
# What starting and ending a tile costs, in steps of the depth.
_ENDS = 4.0


def gemm_configs(plan: FusionPlan, site: Site, sm_count: int) -> tuple[LaunchConfig, ...]:
    """Configurations that suit a site, the likeliest first; at least one."""
    width = item_bytes(operand(plan, operands(plan)[0]).dtype)
    found = {config: _time(site, config, sm_count, width) for config in _every(plan, site)}
    ranked = sorted(found, key=lambda config: found[config])
    kept: list[LaunchConfig] = []
    of_tile: Counter[tuple[int, int | None, int]] = Counter()
    for config in ranked:
        tile = (config.block_rows, config.block_columns, config.num_warps)
        of_tile[tile] += 1
        if of_tile[tile] <= KEPT_OF_TILE:
            kept.append(config)
    # What is launched where nothing could be timed must fit anywhere.
    most = _most_per_thread(plan, site, width)
    safe = next((config for config in ranked if _fits_anywhere(config, width, most)), ranked[0])
    return (safe, *(config for config in kept if config != safe))[:KEPT]


def _most_per_thread(plan: FusionPlan, site: Site, width: int) -> int:
    """Sums that a thread may hold: fewer beside wide operands, many tensors, masks of odd sizes."""
    beside = sum(item.spans[-1] and any(item.spans[:-2]) for item in plan.inputs)
    even = all(size % 16 == 0 for size in (product_rows(site), depth_of(site), site.columns))
    easy = width == 2 and even and beside + len(plan.outputs) <= EASY_TENSORS
    return SAFE_PER_THREAD if easy else SAFE_PER_THREAD // 2


def _fits_anywhere(config: LaunchConfig, width: int, most: int) -> bool:
    """Whether no GPU lacks the shared memory, nor a thread the registers for what follows."""
    held = config.block_rows * (config.block_columns or 1) // (32 * config.num_warps)
    return shared_bytes(config, width) <= EVERYWHERE_BYTES and held <= most


def _every(plan: FusionPlan, site: Site) -> list[LaunchConfig]:
    """All tiles that are not much larger than the product itself."""
    vector = arithmetic_of(plan) == "float32"
    width = item_bytes(operand(plan, operands(plan)[0]).dtype)
    steps = _VECTOR_STEPS if vector else tuple(size // width for size in _STEP_BYTES)
    deepest = max(next_power_of_two(depth_of(site)), LEAST_BLOCK)
    steps = tuple(dict.fromkeys(min(size, deepest) for size in steps))
    tallest = max(next_power_of_two(product_rows(site)), LEAST_BLOCK)
    widest = max(next_power_of_two(site.columns), 2 * LEAST_BLOCK)
    tiles = [
        tile
        for tile in (_VECTOR_TILES if vector else _TILES)
        if tile[0] <= tallest and tile[1] <= widest
    ] or [(LEAST_BLOCK, 2 * LEAST_BLOCK, 1)]
    return [
        LaunchConfig(
            scheme="gemm",
            block_rows=rows,
            block_columns=columns,
            block_steps=step,
            num_warps=warps,
            num_stages=stages,
        )
        for rows, columns, warps in tiles
        for step in steps
        for stages in _STAGES
    ]


def tiles_of(config: LaunchConfig, site: Site) -> int:
    """The tiles of a product, a program each."""
    rows = -(-product_rows(site) // config.block_rows)
    return rows * -(-site.columns // (config.block_columns or 1))


def shared_bytes(config: LaunchConfig, width: int) -> int:
    """What the stages of a loop hold in shared memory, of operands of so many bytes."""
    lines = config.block_rows + (config.block_columns or 1)
    return lines * (config.block_steps or 1) * config.num_stages * width


def _time(site: Site, config: LaunchConfig, sm_count: int, width: int) -> float:
    """The modelled time, in multiply-adds of a multiprocessor at full rate."""
    rows, columns = config.block_rows, config.block_columns or 1
    step = config.block_steps or 1
    rate = min(rows * columns / (rows + columns) / _FULL_RATE, 1.0)
    rounds = math.ceil(max(tiles_of(config, site), 1) / sm_count)
    steps = math.ceil(max(depth_of(site), 1) / step) + _ENDS
    # More on its way hides more, and long steps turn the loop less often: a few percent each.
    overhead = 1 + 0.03 * (config.num_stages < max(_STAGES))
    overhead += 0.05 * (step * width < max(_STEP_BYTES))
    work = float(rounds * rows * columns * steps * step)
    return work / math.sqrt(rate) * overhead
