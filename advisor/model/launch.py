"""How a generated kernel is launched: what may vary without changing its result."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def grid_size(config: LaunchConfig, rows: int) -> int:
    """Programs launched."""
    return -(-rows // config.block_rows)


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
    """Doublings away from 16 elements a thread (two 16-byte loads of bf16), and half those away
    from tiles of 4 Ki elements; then fewer warps.
    """
    tile = config.block_rows * block
    per_thread = tile / (32 * config.num_warps)
    return abs(math.log2(per_thread / 16)) + abs(math.log2(tile / 4096)) / 2, config.num_warps


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value` (at least 1)."""
    return 1 << max(value - 1, 0).bit_length()
