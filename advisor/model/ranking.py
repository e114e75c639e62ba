"""The terms by which launch configurations are ordered, in doublings of a copy's time.

They only order and cut a list: what spills is dropped by compiling, the rest is timed.
"""

from __future__ import annotations

import math

WARPS_PER_SM, REGISTERS_PER_SM = 64, 65_536
# Reading again from L2, or L1, costs this share of a read from DRAM (the ratio of bandwidths).
L2_SHARE, L1_SHARE = 0.4, 0.1
# Registers of a thread beside those of its tiles, and tiles alive at a time: in a typical program,
# and for each tensor of one that streams rows (as machine code of softmax and norms has it).
BASE_REGISTERS, LIVE_TILES = 24, 1.5
STREAMED_REGISTERS, STREAMED_TILES = 16, 0.33
# Elements of a program with whole rows that are the likeliest to be fast.
HELD_TILE = 4096
# What must be on its way to memory for each multiprocessor to hide latency (Little's law).
LEAST_IN_FLIGHT_BYTES = 32 << 10

# Elements of two bytes that a thread loads at once.
ADJACENT = 8
# A tile that goes through shared memory, from the layout of a vector and back to its own.
OTHER_LAYOUT = 0.3


def layouts(rows: int, columns: int, num_warps: int, *, vectors: bool) -> float:
    """Doublings where Triton lays out a tile unlike the vectors of its columns that meet it.

    A thread takes 16 bytes of a tile, but of a vector less, if it has too few columns for all.
    """
    narrow = columns < ADJACENT * 32 * num_warps
    return OTHER_LAYOUT if vectors and rows > 1 and narrow else 0.0


def resident_programs(num_warps: int, registers: float) -> int:
    """Programs that one multiprocessor holds, by warps and by registers of a thread."""
    by_registers = REGISTERS_PER_SM / (32 * num_warps * min(registers, 255))
    return max(int(min(WARPS_PER_SM / num_warps, by_registers)), 1)


def idle(programs: int, resident: int, sm_count: int) -> float:
    """Doublings lost to idle multiprocessors: too few programs, or a last wave of few."""
    if programs < sm_count:
        return math.log2(sm_count / max(programs, 1))
    waves = programs / (sm_count * resident)
    # Programs do not end all at once: a last wave costs less than it would as a barrier.
    return math.log2(math.ceil(waves) / waves) / 4 if 1 < waves < 8 else 0.0


def latency(in_flight_bytes: float, num_stages: int, share_bytes: float) -> float:
    """Doublings lost where a multiprocessor has too little on its way to memory.

    `share_bytes` is all that a busy one has to move: it waits for no more than that.
    """
    if num_stages > 1:
        in_flight_bytes *= 2
    wanted = min(LEAST_IN_FLIGHT_BYTES, max(share_bytes, 1))
    return max(math.log2(wanted / max(in_flight_bytes, 1)), 0.0)


def share_of_site(site_bytes: float, programs: int, sm_count: int) -> float:
    """Bytes that each multiprocessor moves which has a program at all."""
    return site_bytes / max(min(programs, sm_count), 1)


def unusual_tile(per_thread: float, tile: int, usual: int = HELD_TILE) -> float:
    """Doublings for tiles beside two 16-byte loads of bf16 a thread, and the usual elements."""
    return abs(math.log2(per_thread / 16)) / 4 + abs(math.log2(tile / usual)) / 8
