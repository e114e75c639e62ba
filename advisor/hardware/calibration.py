"""What a GPU does in practice: stored measurements of one card, or estimates made from its figures.

A calibration is data; `fusion-advisor calibrate` measures one. Without it the estimates below are
used, whose ratios come from one H200 (its recorded kernels, `benchmarks/kernel_model.py`); they say
so in `provenance`, and their interval is wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from advisor.errors import InvalidRecordError
from advisor.folders import state_folder
from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.hardware.roofline import peak_of
from advisor.model.base import Record, decode, encode
from advisor.store.files import read_bounded, write_atomic

CALIBRATION_SCHEMA_VERSION = 2
_MAX_CALIBRATION_BYTES = 1 << 20
# Measured calibrations that come with the tool.
SHIPPED = Path(__file__).with_name("calibrations")

# How a kernel walks its data; each has its own spread of measured over predicted time.
Pattern = Literal[
    "row_program", "vector", "cast", "index", "concat", "row_reduction", "column_reduction",
    "softmax", "norm", "channel_norm", "chunks",
]  # fmt: skip

# A copy reaches this share of the datasheet's bandwidth (H200: 4.27 of 4.8 TB/s).
COPY_SHARE = 0.89
# Bandwidth over the copy's, by footprint over L2 size, of kernels whose inputs were just written:
# part of a small working set never leaves L2. (H200, fitted: `benchmarks/kernel_model.py --fit`; no
# kernel of 10 µs is as small as the first, which prolongs the rest.)
L2_SPEEDUP = ((0.1, 1.5), (0.2, 1.45), (0.4, 1.29), (0.8, 1.12), (1.2, 1.02), (1.8, 1.0))
# Rate of L2 over the copy's (log-softmax over rows that are read twice, H200; fitted).
L2_SHARE = 1.13
# One dependent trip to memory under load (fitted on multi-tensor kernels of one block an SM, H200).
TRIP_NS = 594
# 10 % and 90 % quantiles of measured over predicted time, for every pattern, of the kernels that
# the model was fitted on; `benchmarks/kernel_model.md` says how many of the others they hold.
# Generated kernels: wide enough for all in `pattern_baselines.json` where a compiler does well.
SPREADS: dict[Pattern, tuple[float, float]] = {
    "row_program": (0.84, 1.2),
    "cast": (0.934, 1.175),
    "channel_norm": (0.931, 1.097),
    "chunks": (0.955, 1.168),
    "column_reduction": (0.898, 1.134),
    "concat": (0.94, 1.103),
    "index": (0.946, 1.086),
    "norm": (0.94, 1.176),
    "row_reduction": (0.873, 1.251),
    "softmax": (0.941, 1.084),
    "vector": (0.935, 1.066),
}
# Another card than the measured one: its datasheet stands in for measurements.
ESTIMATE_LOW, ESTIMATE_HIGH = 0.9, 1.25


class BandwidthPoint(Record, frozen=True, kw_only=True):
    """A copy that moves `bytes` (read + written) runs at `bytes_per_s`, kernel floor taken off."""

    bytes: int
    bytes_per_s: int


class Spread(NamedTuple):
    """Quantiles of measured over predicted time."""

    low: float
    high: float


class DeviceState(Record, frozen=True, kw_only=True):
    """The card while it was measured: clocks, power, what held the clocks back, versions."""

    sm_clock_hz: int | None = None
    max_sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    power_milliwatts: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    versions: dict[str, str] = {}


class Calibration(Record, frozen=True, kw_only=True):
    """The practice of one GPU.

    `curve` and `cold_curve`: a copy by size, its input just written, or in none of the caches.
    `kernel_floor_ns` is the shortest kernel, `launch_ns` the host's time for one launch,
    `graph_launch_ns` the GPU's time for one more small kernel of a CUDA graph, `trip_ns` one
    dependent trip to memory under load, `sm_bandwidth_share` how many times its even share of the
    memory bandwidth one multiprocessor can draw. `special_share` and `issue_share` are the rates of
    special functions and of instructions over those of the table (for the mix of instructions that
    the model counts), `reduction_share` the bandwidth of a sum over rows over a copy's;
    `matrix_flops` the rates reached by matrix products. `spreads` are quantiles of measured over
    predicted time by pattern.
    """

    schema_version: int = CALIBRATION_SCHEMA_VERSION
    gpu: str
    device: str
    provenance: Literal["measured", "estimated"]
    source: str
    created: str | None = None
    state: DeviceState | None = None
    curve: tuple[BandwidthPoint, ...]
    cold_curve: tuple[BandwidthPoint, ...] = ()
    l2_bytes_per_s: int
    kernel_floor_ns: int
    launch_ns: int
    graph_launch_ns: int | None = None
    trip_ns: int
    sm_bandwidth_share: float
    special_share: float = 1.0
    issue_share: float = 1.0
    reduction_share: float | None = None
    matrix_flops: dict[Arithmetic, float] = {}
    spreads: dict[Pattern, tuple[float, float]]
    coverage: float = 0.8

    def check(self) -> None:
        if self.schema_version != CALIBRATION_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"calibration schema {self.schema_version} is not {CALIBRATION_SCHEMA_VERSION}",
                remedy="run `fusion-advisor calibrate` again",
            )
        _check_curve(self.curve)
        if self.cold_curve:
            _check_curve(self.cold_curve)
        figures = (
            self.l2_bytes_per_s, self.sm_bandwidth_share, self.special_share, self.issue_share,
            *self.matrix_flops.values(),
            *((self.reduction_share,) if self.reduction_share is not None else ()),
        )  # fmt: skip
        if not all(math.isfinite(figure) and figure > 0 for figure in figures):
            raise InvalidRecordError("a rate of the calibration is not positive")
        spreads = self.spreads.values()
        if (
            min(self.kernel_floor_ns, self.launch_ns, self.trip_ns, self.graph_launch_ns or 0) < 0
            or not all(0 < low <= 1 <= high < math.inf for low, high in spreads)
            or "row_program" not in self.spreads
            or not 0 < self.coverage < 1
        ):
            raise InvalidRecordError("a latency, spread or coverage is out of range")

    def bandwidth(self, bytes_moved: int, *, warm: bool = True) -> float:
        """Bytes/s of a copy of that size: linear in log(bytes) between points, constant beyond.

        Cold without a cold curve: the bandwidth of copies so large that caches do not matter.
        """
        curve = self.curve if warm else self.cold_curve or self.curve[-1:]
        first, last = curve[0], curve[-1]
        if bytes_moved <= first.bytes:
            return float(first.bytes_per_s)
        for low, high in pairwise(curve):
            if bytes_moved <= high.bytes:
                share = math.log(bytes_moved / low.bytes) / math.log(high.bytes / low.bytes)
                return low.bytes_per_s + share * (high.bytes_per_s - low.bytes_per_s)
        return float(last.bytes_per_s)

    def flops_per_s(self, gpu: Gpu, arithmetic: Arithmetic) -> float:
        """The rate that a matrix product reached; the table's peak where none was timed."""
        return self.matrix_flops.get(arithmetic) or peak_of(gpu, arithmetic)

    def spread(self, pattern: Pattern) -> Spread:
        """Quantiles of measured over predicted time of a pattern; of generated kernels if none."""
        return Spread(*self.spreads.get(pattern, self.spreads["row_program"]))


def default_calibration(gpu: Gpu) -> Calibration:
    """Estimates from the table's figures; nothing was measured on this card."""
    copied = gpu.copy_bandwidth_bytes_per_s
    top = copied or round(COPY_SHARE * gpu.dram_bandwidth_bytes_per_s)
    figure = "copy_bandwidth_bytes_per_s" if copied else "dram_bandwidth_bytes_per_s"
    sheet = "measured copy" if copied else f"{COPY_SHARE:.2f} of the datasheet's bandwidth"
    low, high = (1.0, 1.0) if copied else (ESTIMATE_LOW, ESTIMATE_HIGH)
    return Calibration(
        gpu=gpu.key,
        device=gpu.name,
        provenance="estimated",
        source=f"table of GPUs: {sheet} ({gpu.source(figure)})",
        curve=_curve(top, gpu.l2_bytes),
        l2_bytes_per_s=round(L2_SHARE * top),
        kernel_floor_ns=1_000,
        launch_ns=5_000,
        trip_ns=TRIP_NS,
        sm_bandwidth_share=2.0,
        spreads={name: (low * below, high * above) for name, (below, above) in SPREADS.items()},
    )


def _curve(top: int, l2_bytes: int | None) -> tuple[BandwidthPoint, ...]:
    if l2_bytes is None:
        return (BandwidthPoint(bytes=1, bytes_per_s=top),)
    return tuple(
        BandwidthPoint(bytes=round(share * l2_bytes), bytes_per_s=round(speedup * top))
        for share, speedup in L2_SPEEDUP
    )


def _check_curve(curve: Sequence[BandwidthPoint]) -> None:
    sizes = [point.bytes for point in curve]
    if not sizes or sizes[0] <= 0 or any(a >= b for a, b in pairwise(sizes)):
        raise InvalidRecordError("a bandwidth curve is empty or its sizes do not grow")
    if any(point.bytes_per_s <= 0 for point in curve):
        raise InvalidRecordError("a bandwidth is not positive")


def calibration_path(gpu: Gpu, folder: Path | None = None) -> Path:
    """Where the calibration of a GPU is stored."""
    return (folder or state_folder() / "calibrations") / f"{gpu.key}.json"


def load_calibration(gpu: Gpu, folder: Path | None = None) -> Calibration:
    """The user's calibration of a GPU, else the one that ships, else estimates.

    Raises `InvalidRecordError` for a damaged file.
    """
    for path in (calibration_path(gpu, folder), SHIPPED / f"{gpu.key}.json"):
        if path.exists():
            return read_calibration(path, gpu)
    return default_calibration(gpu)


def read_calibration(path: Path, gpu: Gpu) -> Calibration:
    """A stored calibration; raises `InvalidRecordError` if it is damaged or of another GPU."""
    found = decode(read_bounded(path, _MAX_CALIBRATION_BYTES), Calibration, str(path))
    if found.gpu != gpu.key:
        raise InvalidRecordError(f"is a calibration of {found.gpu}", where=str(path))
    return found


def save_calibration(calibration: Calibration, path: Path) -> Path:
    """Write a checked calibration to `path`; returns it."""
    calibration.check()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, encode(calibration))
    return path


def residuals(predicted_ns: Sequence[int], measured_ns: Sequence[int]) -> tuple[float, float]:
    """The 10 % and 90 % quantiles of measured / predicted, widened to contain 1."""
    ratios = sorted(m / p for m, p in zip(measured_ns, predicted_ns, strict=True))

    def quantile(share: float) -> float:
        position = share * (len(ratios) - 1)
        low = math.floor(position)
        high = min(low + 1, len(ratios) - 1)
        return ratios[low] + (position - low) * (ratios[high] - ratios[low])

    return min(1.0, quantile(0.1)), max(1.0, quantile(0.9))
