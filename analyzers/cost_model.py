"""How long a kernel takes, predicted: the roofline with a latency floor and quantised waves.

    time = floor + sum over waves of (memory^p + arithmetic^p + latency^p)^(1/p) + serial tail

    memory      the larger of bytes / BW(bytes) and traffic through L2 / rate of L2
    arithmetic  the largest of flops / peak, special / SFU rate, instructions / issue rate
    latency     dependent trips to memory x the latency of one

Alone, each term is the classic bound; two of like size overlap in part, since blocks start, load,
compute and store in phases: p = 2 halves the gap between their maximum and their sum. A full wave
has every multiprocessor at work; the last one only as many as it has programs, so its arithmetic
rates shrink in proportion and its bandwidth to what these multiprocessors can draw (a small
multiple of their even share). BW is the calibrated bandwidth of a copy of the same footprint, warm
(what L2 keeps of freshly written inputs) or cold. The range spans the residual quantiles of the
calibration for kernels of this pattern.

Sources: S. Williams et al., "Roofline" (CACM 2009); NVIDIA, "GPU Performance Background User's
Guide" (waves, tail effect); V. Volkov, "Understanding Latency Hiding on GPUs" (2016; overlap of
memory, arithmetic and latency). `benchmarks/kernel_model.md` holds the errors on recorded kernels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from advisor.hardware.calibration import Calibration, Pattern
from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.model.base import Range
from advisor.units import NS_PER_S

# Exponent of the overlap (see above): 1 is no overlap, infinity a perfect one.
OVERLAP = 2.0


@dataclass(frozen=True)
class Work:
    """What one kernel does.

    `bytes_moved`: external inputs once + escaping outputs once; `footprint_bytes`: the distinct
    bytes of these (in place: half), 0 for the same. `cached_bytes`: traffic through L2, re-reads
    included, where it is more. `flops`: an instruction that is no fused multiply-add counts as two.
    `special`: results of the special function unit. `instructions`: of threads, where index
    arithmetic or conversions outweigh `flops`. `trips`: dependent trips to memory of one program,
    overlapped with the rest, `tail_trips` those after it. `programs`: blocks of the launch;
    `resident_programs`: how many the whole GPU holds at once (occupancy × multiprocessors); without
    them the work is taken to fill the GPU evenly.
    """

    bytes_moved: int
    footprint_bytes: int = 0
    cached_bytes: int = 0
    flops: float = 0
    special: float = 0
    dtype: Arithmetic = "float32"
    instructions: float = 0
    trips: float = 0
    tail_trips: float = 0
    programs: int | None = None
    resident_programs: int | None = None
    warm: bool = True
    pattern: Pattern = "row_program"

    def time(self, gpu: Gpu, calibration: Calibration) -> Range:
        """The predicted time."""
        return kernel_time(gpu, calibration, **asdict(self))


def kernel_time(
    gpu: Gpu,
    calibration: Calibration,
    *,
    bytes_moved: int,
    footprint_bytes: int = 0,
    cached_bytes: int = 0,
    flops: float = 0,
    special: float = 0,
    dtype: Arithmetic = "float32",
    instructions: float = 0,
    trips: float = 0,
    tail_trips: float = 0,
    programs: int | None = None,
    resident_programs: int | None = None,
    warm: bool = True,
    pattern: Pattern = "row_program",
) -> Range:
    """The predicted time of one kernel; the arguments are explained at `Work`."""
    bandwidth = calibration.bandwidth(footprint_bytes or bytes_moved, warm=warm)
    arithmetic_s = max(
        flops / calibration.flops_per_s(gpu, dtype),
        special / (gpu.special_per_s * calibration.special_share),
        instructions / (gpu.instructions_per_s * calibration.issue_share),
    )
    memory_s = max(bytes_moved / bandwidth, cached_bytes / calibration.l2_bytes_per_s)
    latency_s = trips * calibration.trip_ns / NS_PER_S
    seconds = tail_trips * calibration.trip_ns / NS_PER_S
    for share, active, rounds in _waves(gpu, programs, resident_programs):
        drawn = min(1.0, active * calibration.sm_bandwidth_share)
        seconds += _overlapped(
            share * memory_s / drawn, share * arithmetic_s / active, rounds * latency_s
        )
    mid = calibration.kernel_floor_ns + round(seconds * NS_PER_S)
    spread = calibration.spread(pattern)
    return Range(
        low=round(mid * spread.low),
        mid=mid,
        high=round(mid * spread.high),
        coverage=calibration.coverage,
    )


def _overlapped(*terms: float) -> float:
    """The time of work that overlaps in part; each term alone takes its own time."""
    return float(sum(term**OVERLAP for term in terms) ** (1 / OVERLAP))


def _waves(
    gpu: Gpu, programs: int | None, resident_programs: int | None
) -> tuple[tuple[float, float, int], ...]:
    """(share of the work, of the multiprocessors at work, number) of full waves and of the last."""
    if not programs:
        return ((1.0, 1.0, 1),)
    resident = max(resident_programs or gpu.sm_count, 1)
    full, rest = divmod(programs, resident)
    active = min(1.0, resident / gpu.sm_count)
    waves = [(full * resident / programs, active, full)] if full else []
    if rest:
        waves.append((rest / programs, min(1.0, rest / gpu.sm_count), 1))
    return tuple(waves)
