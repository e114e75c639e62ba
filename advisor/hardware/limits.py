"""What one multiprocessor can hold, by architecture: the figures that occupancy is computed from.

NVIDIA: CUDA C++ Programming Guide, "Compute Capabilities", tables of technical specifications; the
tests compare the arithmetic with NVIDIA's own `cuda_occupancy.h`. AMD: LLVM's AMDGPU subtarget (its
own occupancy remark is the test oracle) and the CDNA and RDNA instruction set manuals.
"""

from __future__ import annotations

import msgspec

from advisor.errors import UsageError
from advisor.model.base import Record


class SmLimits(Record, frozen=True, kw_only=True):
    """An NVIDIA streaming multiprocessor; registers are 32-bit, allocated per warp in units of 256.

    `shared_reserved_bytes` is what the driver takes of every block; `shared_block_bytes` the opt-in
    maximum a block may ask for.
    """

    max_warps: int
    max_blocks: int
    shared_bytes: int
    shared_block_bytes: int
    shared_granule_bytes: int
    shared_reserved_bytes: int
    warp_size: int = 32
    registers: int = 65536
    register_granule: int = 256
    max_registers_per_thread: int = 256
    schedulers: int = 4
    max_threads_per_block: int = 1024

    @property
    def issue_lanes(self) -> int:
        """Threads for which an instruction is issued per clock: a warp a scheduler."""
        return self.schedulers * self.warp_size


class CuLimits(Record, frozen=True, kw_only=True):
    """An AMD compute unit (RDNA: the work-group processor that the waves of a group share).

    `simd_registers` are the vector registers of one lane of a SIMD, shared by its waves.
    `scalar_registers` of a SIMD limit its waves, too; None where every wave has as many as it can
    name.
    """

    warp_size: int
    max_waves_per_simd: int
    simds: int
    simd_registers: int
    register_granule: int
    max_registers_per_thread: int
    max_groups: int
    lds_bytes: int
    lds_group_bytes: int
    lds_granule_bytes: int
    scalar_registers: int | None
    max_threads_per_block: int = 1024

    @property
    def issue_lanes(self) -> int:
        """Threads for which an instruction is issued per clock: a SIMD is 16 (RDNA: 32) wide."""
        return self.simds * (16 if self.warp_size == 64 else 32)

    def of_wave(self, size: int) -> CuLimits:
        """For waves of 64 lanes on a GPU of 32: every wave takes two lanes' registers a lane."""
        if size == self.warp_size:
            return self
        if (self.warp_size, size) != (32, 64):
            raise UsageError(f"no waves of {size} lanes on this GPU", remedy="use 32 or 64")
        return msgspec.structs.replace(
            self,
            warp_size=64,
            simd_registers=self.simd_registers // 2,
            register_granule=self.register_granule // 2,
        )

    @property
    def max_warps(self) -> int:
        """Waves that a compute unit can hold."""
        return self.max_waves_per_simd * self.simds


def _sm(warps: int, blocks: int, shared_kib: int, block_kib: int, *, granule: int) -> SmLimits:
    return SmLimits(
        max_warps=warps,
        max_blocks=blocks,
        shared_bytes=shared_kib << 10,
        shared_block_bytes=block_kib << 10,
        shared_granule_bytes=granule,
        shared_reserved_bytes=1024 if granule == 128 else 0,
    )


def _cdna(
    *, lds_kib: int = 64, lds_granule: int = 512, waves: int = 8, registers: int = 512
) -> CuLimits:
    return CuLimits(
        warp_size=64,
        max_waves_per_simd=waves,
        simds=4,
        simd_registers=registers,
        register_granule=registers // 64,
        max_registers_per_thread=registers,
        max_groups=16,
        lds_bytes=lds_kib << 10,
        lds_group_bytes=lds_kib << 10,
        lds_granule_bytes=lds_granule,
        scalar_registers=800,
    )


def _rdna(*, registers: int, granule: int, lds_granule: int = 1024) -> CuLimits:
    return CuLimits(
        warp_size=32,
        max_waves_per_simd=16,
        simds=4,
        simd_registers=registers,
        register_granule=granule,
        max_registers_per_thread=256,
        max_groups=32,
        lds_bytes=128 << 10,
        lds_group_bytes=64 << 10,
        lds_granule_bytes=lds_granule,
        scalar_registers=None,
    )


LIMITS: dict[str, SmLimits | CuLimits] = {
    "sm_70": _sm(64, 32, 96, 96, granule=256),
    "sm_72": _sm(64, 32, 96, 96, granule=256),
    "sm_75": _sm(32, 16, 64, 64, granule=256),
    "sm_80": _sm(64, 32, 164, 163, granule=128),
    "sm_86": _sm(48, 16, 100, 99, granule=128),
    "sm_87": _sm(48, 16, 164, 163, granule=128),
    "sm_89": _sm(48, 24, 100, 99, granule=128),
    "sm_90": _sm(64, 32, 228, 227, granule=128),
    "sm_100": _sm(64, 32, 228, 227, granule=128),
    "sm_103": _sm(64, 32, 228, 227, granule=128),
    "sm_110": _sm(48, 24, 228, 227, granule=128),
    "sm_120": _sm(48, 24, 100, 99, granule=128),
    "sm_121": _sm(48, 24, 100, 99, granule=128),
    # CDNA 1 holds accumulators in a file of their own: give the larger of both counts.
    "gfx908": _cdna(waves=10, registers=256),
    "gfx90a": _cdna(),
    "gfx942": _cdna(),
    "gfx950": _cdna(lds_kib=160, lds_granule=1280),
    "gfx1030": _rdna(registers=1024, granule=16, lds_granule=512),
    "gfx1100": _rdna(registers=1536, granule=24),
    "gfx1101": _rdna(registers=1536, granule=24),
    "gfx1102": _rdna(registers=1024, granule=16),
    "gfx1151": _rdna(registers=1536, granule=24),
    "gfx1200": _rdna(registers=1536, granule=24),
    "gfx1201": _rdna(registers=1536, granule=24),
}


def limits_of(arch: str) -> SmLimits | CuLimits:
    """The limits of `sm_90`, `gfx942`, …; raises `UsageError` for an unknown architecture."""
    found = LIMITS.get(arch)
    if found is None:
        raise UsageError(f"no occupancy limits for {arch!r}", remedy=f"known: {', '.join(LIMITS)}")
    return found
