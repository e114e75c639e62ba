"""The roofline: what arithmetic intensity buys on a GPU (Williams et al., CACM 2009)."""

from __future__ import annotations

from typing import Literal

from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.model.base import Record

Bound = Literal["memory", "compute"]


class RooflinePoint(Record, frozen=True, kw_only=True):
    """A kernel on the roofline: FLOP per byte, the roof above it and the share of it reached."""

    intensity: float
    attainable_flops: float
    bound: Bound
    achieved_flops: float | None = None
    fraction: float | None = None


def bandwidth_of(gpu: Gpu) -> int:
    """The bandwidth of the sloped roof, bytes/s: the measured copy, else the datasheet's."""
    return gpu.copy_bandwidth_bytes_per_s or gpu.dram_bandwidth_bytes_per_s


def peak_of(gpu: Gpu, arithmetic: Arithmetic) -> float:
    """The flat roof, FLOP/s; arithmetic without a unit of its own runs on the float32 pipe."""
    return gpu.peak_flops(arithmetic) or gpu.float32_flops


def ridge_point(gpu: Gpu, arithmetic: Arithmetic = "float32") -> float:
    """FLOP per byte at which a kernel stops being bound by memory: peak / bandwidth."""
    return peak_of(gpu, arithmetic) / bandwidth_of(gpu)


def attainable_flops(gpu: Gpu, intensity: float, arithmetic: Arithmetic = "float32") -> float:
    """min(peak, intensity × bandwidth), FLOP/s."""
    return min(peak_of(gpu, arithmetic), intensity * bandwidth_of(gpu))


def place(
    gpu: Gpu,
    *,
    bytes_moved: int,
    flops: int,
    arithmetic: Arithmetic = "float32",
    time_ns: int | None = None,
) -> RooflinePoint:
    """Where a kernel that moves `bytes_moved` (> 0) lies; `time_ns` adds what it reached.

    The share is of the binding roof: of bandwidth under the slope, of peak under the flat part.
    """
    intensity = flops / bytes_moved
    bound: Bound = "memory" if intensity < ridge_point(gpu, arithmetic) else "compute"
    attainable = attainable_flops(gpu, intensity, arithmetic)
    if not time_ns:
        return RooflinePoint(intensity=intensity, attainable_flops=attainable, bound=bound)
    seconds = time_ns / 1e9
    # A copy does no arithmetic; its share is of bandwidth all the same.
    reached = bytes_moved / seconds / bandwidth_of(gpu)
    return RooflinePoint(
        intensity=intensity,
        attainable_flops=attainable,
        bound=bound,
        achieved_flops=flops / seconds,
        fraction=reached if bound == "memory" else flops / seconds / attainable,
    )
