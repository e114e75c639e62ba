"""How long a kernel takes, predicted: the roofline with a latency floor and quantised waves.

    time = floor + sum over waves of the largest of
           bytes / BW, flops / peak, special / SFU rate, scalar elements / index rate

with the work spread evenly over the programs. A full wave has every multiprocessor at work; the
last one only as many as it has programs, so its arithmetic rates shrink in proportion and its
bandwidth to what these multiprocessors can draw (a small multiple of their even share). BW is the
calibrated bandwidth of a copy of the same size, which contains what L2 keeps of freshly written
inputs. The range spans the residual quantiles of the calibration.

Sources: S. Williams et al., "Roofline" (CACM 2009); NVIDIA, "GPU Performance Background User's
Guide" (waves, tail effect).
"""

from __future__ import annotations

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.hardware.roofline import peak_of
from advisor.model.base import Range
from advisor.units import NS_PER_S


def kernel_time(
    gpu: Gpu,
    calibration: Calibration,
    *,
    bytes_moved: int,
    flops: float = 0,
    special: float = 0,
    dtype: Arithmetic = "float32",
    scalar_elements: int = 0,
    programs: int | None = None,
    resident_programs: int | None = None,
    warm: bool = True,
) -> Range:
    """The predicted time of one kernel.

    `bytes_moved`: external inputs once + escaping outputs once. `flops`: an instruction that is no
    fused multiply-add counts as two. `special`: results of the special function unit. `dtype`: the
    arithmetic of `flops` (float32 for pointwise and row programs whatever their storage).
    `scalar_elements`: elements that are loaded one by one with index arithmetic. `programs`: blocks
    of the launch; `resident_programs`: how many the whole GPU holds at once (occupancy ×
    multiprocessors). Without them the work is taken to fill the GPU evenly. `warm`: the inputs
    were written just before; a cold kernel gets the bandwidth of large copies at any size.
    """
    bandwidth = calibration.bandwidth(bytes_moved) if warm else calibration.cold_bandwidth
    index_rate = calibration.scalar_elements_per_sm_cycle * gpu.sm_count * gpu.clock_hz
    arithmetic_s = max(
        flops / peak_of(gpu, dtype), special / gpu.special_per_s, scalar_elements / index_rate
    )
    memory_s = bytes_moved / bandwidth
    seconds = 0.0
    for share, active in _waves(gpu, programs, resident_programs):
        drawn = min(1.0, active * calibration.sm_bandwidth_share)
        seconds += share * max(memory_s / drawn, arithmetic_s / active)
    mid = calibration.kernel_floor_ns + round(seconds * NS_PER_S)
    return Range(
        low=round(mid * calibration.residual_low),
        mid=mid,
        high=round(mid * calibration.residual_high),
        coverage=calibration.coverage,
    )


def _waves(
    gpu: Gpu, programs: int | None, resident_programs: int | None
) -> tuple[tuple[float, float], ...]:
    """(share of the work, share of the multiprocessors at work) of full waves and of the last."""
    if not programs:
        return ((1.0, 1.0),)
    resident = max(resident_programs or gpu.sm_count, 1)
    full, rest = divmod(programs, resident)
    waves = [(full * resident / programs, min(1.0, resident / gpu.sm_count))] if full else []
    if rest:
        waves.append((rest / programs, min(1.0, rest / gpu.sm_count)))
    return tuple(waves)
