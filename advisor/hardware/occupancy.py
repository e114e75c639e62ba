"""Theoretical occupancy: how many blocks one multiprocessor can hold, and what stops more.

NVIDIA (matches `cuda_occupancy.h`): with w = ceil(threads / 32) warps a block and r registers a
warp (a thread's registers × 32, rounded up to 256), a multiprocessor of 4 schedulers holds
min(max warps / w, 4·floor(16384 / r) / w, shared / (block's + reserved, rounded), max blocks).
AMD (matches LLVM's remark): waves a SIMD = floor(vector registers / rounded registers), at most the
hardware's; groups a compute unit by waves, local memory and barriers.
"""

from __future__ import annotations

from typing import Literal

from advisor.hardware.limits import CuLimits, SmLimits, limits_of
from advisor.model.base import Record

Limiter = Literal["registers", "shared_memory", "warps", "blocks"]

# A block may use this much without opting in to more (CUDA C++ Programming Guide).
DEFAULT_SHARED_BYTES = 48 << 10
_UNLIMITED = 1 << 31


class Occupancy(Record, frozen=True, kw_only=True):
    """Blocks and warps resident on one multiprocessor, their share of the maximum, the limit.

    `limits` holds the blocks that each resource alone would allow. Zero blocks: it cannot launch.
    """

    blocks: int
    warps: int
    fraction: float
    limiter: Limiter
    limits: dict[str, int]


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def occupancy(
    arch: str,
    *,
    registers: int,
    threads: int,
    shared_bytes: int = 0,
    static_shared_bytes: int = 0,
    scalar_registers: int = 0,
    shared_config_bytes: int | None = None,
    wave_size: int | None = None,
) -> Occupancy:
    """Theoretical occupancy of a kernel on `arch` (`sm_90`, `gfx942`).

    `registers` per thread (AMD: vector registers, accumulators included), `threads` per block,
    `shared_bytes` dynamic. `shared_config_bytes` is the carve-out really configured, where known;
    `wave_size` the lanes of a wave on RDNA, 32 or 64 (the architecture's own if not given).
    Raises `UsageError` for an unknown architecture or wave.
    """
    limits = limits_of(arch)
    if wave_size is not None and isinstance(limits, CuLimits):
        limits = limits.of_wave(wave_size)
    warps = -(-max(threads, 1) // limits.warp_size)
    if isinstance(limits, SmLimits):
        total = shared_bytes + static_shared_bytes
        config = limits.shared_bytes if shared_config_bytes is None else shared_config_bytes
        by = {
            "registers": _blocks_by_registers(limits, registers, warps),
            "shared_memory": _blocks_by_shared(limits, total, config),
            "warps": limits.max_warps // warps if threads <= limits.max_threads_per_block else 0,
            "blocks": limits.max_blocks,
        }
    else:
        by = _groups(limits, registers, scalar_registers, shared_bytes + static_shared_bytes, warps)
        if threads > limits.max_threads_per_block:
            by["warps"] = 0
    return _result(by, warps, limits.max_warps)


def _result(by: dict[str, int], warps: int, max_warps: int) -> Occupancy:
    order: tuple[Limiter, ...] = ("warps", "blocks", "registers", "shared_memory")
    blocks = min(by.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        fraction=blocks * warps / max_warps,
        limiter=next(name for name in order if by[name] == blocks),
        limits=by,
    )


def _blocks_by_registers(limits: SmLimits, registers: int, warps: int) -> int:
    per_warp = _round_up(registers * limits.warp_size, limits.register_granule)
    if per_warp == 0:
        return _UNLIMITED
    # Warps are dealt to the schedulers evenly: a block counts as whole quadruples of warps.
    if (
        registers > limits.max_registers_per_thread
        or per_warp * _round_up(warps, limits.schedulers) > limits.registers
    ):
        return 0
    per_scheduler = limits.registers // limits.schedulers // per_warp
    return per_scheduler * limits.schedulers // warps


def _blocks_by_shared(limits: SmLimits, total: int, config: int) -> int:
    wanted = total + limits.shared_reserved_bytes
    allowed = limits.shared_block_bytes if wanted > DEFAULT_SHARED_BYTES else DEFAULT_SHARED_BYTES
    used = _round_up(wanted, limits.shared_granule_bytes)
    if used > allowed + limits.shared_reserved_bytes:
        return 0
    return config // used if used else _UNLIMITED


def _groups(
    limits: CuLimits, registers: int, scalar_registers: int, shared: int, warps: int
) -> dict[str, int]:
    """Groups a compute unit by each resource; the waves of one group spread over all its SIMDs."""
    used = _round_up(max(registers, 1), limits.register_granule)
    waves = min(limits.max_waves_per_simd, limits.simd_registers // used)
    if limits.scalar_registers is not None:
        waves = min(waves, _waves_by_scalar_registers(scalar_registers))
    if registers > limits.max_registers_per_thread:
        waves = 0
    lds = _round_up(shared, limits.lds_granule_bytes)
    by_lds = limits.lds_bytes // lds if lds else _UNLIMITED
    return {
        "registers": waves * limits.simds // warps,
        "shared_memory": by_lds if lds <= limits.lds_group_bytes else 0,
        "warps": limits.max_warps // warps,
        "blocks": limits.max_groups if warps > 1 else limits.max_warps,
    }


def _waves_by_scalar_registers(used: int) -> int:
    """Waves a SIMD that its 800 scalar registers feed, by how many a wave uses (LLVM, GFX9)."""
    return next((waves for most, waves in ((80, 10), (88, 9), (100, 8)) if used <= most), 7)
