"""One GPU's figures, each with the document it was taken from."""

from __future__ import annotations

from typing import Literal

from advisor.hardware.limits import CuLimits, SmLimits, limits_of
from advisor.model.base import Record

Vendor = Literal["nvidia", "amd"]
Backend = Literal["cuda", "hip"]

# The arithmetic a kernel's FLOPs run in: vector units for float32, matrix units for the others.
Arithmetic = Literal["float32", "tfloat32", "float16", "bfloat16", "float8"]


class Target(Record, frozen=True, kw_only=True):
    """What Triton compiles for: `GPUTarget(backend, arch, warp_size)`; arch is 90 or `gfx942`."""

    backend: Backend
    arch: int | str
    warp_size: int


class Gpu(Record, frozen=True, kw_only=True):
    """A GPU as one kernel sees it; None is unknown or not supported.

    Bandwidths are bytes/s (read + write), peaks dense FLOP/s with a fused multiply-add as two and
    FP32 accumulation, `special_per_sm_cycle` results of the special function unit per
    multiprocessor and clock. `copy_bandwidth_bytes_per_s` is a measured copy, where there was one.
    `pcie_bytes_per_s` and `link_bytes_per_s` (to all other GPUs) are peaks of both directions.
    `default_source` documents every figure that `sources` does not name.
    """

    key: str
    name: str
    vendor: Vendor
    arch: str
    sm_count: int
    clock_hz: int
    dram_bytes: int
    dram_bandwidth_bytes_per_s: int
    l2_bytes: int | None
    float32_flops: float
    tfloat32_flops: float | None
    float16_flops: float
    bfloat16_flops: float | None
    float8_flops: float | None
    special_per_sm_cycle: int
    memory_side_cache_bytes: int | None = None
    copy_bandwidth_bytes_per_s: int | None = None
    pcie_bytes_per_s: int | None = None
    link_bytes_per_s: int | None = None
    default_source: str
    sources: dict[str, str]
    aliases: tuple[str, ...] = ()

    @property
    def limits(self) -> SmLimits | CuLimits:
        """What one multiprocessor can hold: registers, shared memory, warps, blocks."""
        return limits_of(self.arch)

    @property
    def target(self) -> Target:
        """The compile target of this GPU."""
        if self.vendor == "nvidia":
            return Target(backend="cuda", arch=int(self.arch.removeprefix("sm_")), warp_size=32)
        return Target(backend="hip", arch=self.arch, warp_size=self.limits.warp_size)

    @property
    def compute_capability(self) -> str | None:
        """`9.0` for an NVIDIA GPU, None for others."""
        if self.vendor != "nvidia":
            return None
        digits = self.arch.removeprefix("sm_")
        return f"{digits[:-1]}.{digits[-1]}"

    @property
    def special_per_s(self) -> float:
        """Special-function results per second of the whole GPU."""
        return float(self.special_per_sm_cycle) * self.sm_count * self.clock_hz

    @property
    def instructions_per_s(self) -> float:
        """Instructions of threads that all schedulers together can issue per second."""
        return float(self.limits.issue_lanes) * self.sm_count * self.clock_hz

    def peak_flops(self, arithmetic: Arithmetic) -> float | None:
        """Dense peak of an arithmetic, FLOP/s; None where the GPU has no such unit."""
        peaks: dict[Arithmetic, float | None] = {
            "float32": self.float32_flops,
            "tfloat32": self.tfloat32_flops,
            "float16": self.float16_flops,
            "bfloat16": self.bfloat16_flops,
            "float8": self.float8_flops,
        }
        return peaks[arithmetic]

    def source(self, figure: str) -> str:
        """The document that `figure` (a field name) was taken from."""
        return self.sources.get(figure, self.default_source)
