"""What a GPU does in practice: stored measurements of one card, or estimates made from its figures.

A calibration is data; `fusion-advisor calibrate` measures one. Without it the estimates below are
used, whose ratios come from one H200 (copy benchmark and eager elementwise kernels of
`sample_traces`); they say so in `provenance`, and their interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.folders import state_folder
from advisor.hardware.gpu import Gpu
from advisor.model.base import Record, decode, encode
from advisor.store.files import read_bounded, write_atomic

CALIBRATION_SCHEMA_VERSION = 1
_MAX_CALIBRATION_BYTES = 1 << 20

# A copy reaches this share of the datasheet's bandwidth (H200: 4.27 of 4.8 TB/s).
COPY_SHARE = 0.89
# Bandwidth over the copy's, by bytes moved over L2 size, of kernels whose inputs were just written:
# part of a small working set never leaves L2.
L2_SPEEDUP = (
    (0.1, 1.55), (0.2, 1.5), (0.4, 1.36), (0.6, 1.25), (0.8, 1.12), (1.2, 1.03), (1.8, 1.0),
)  # fmt: skip


class BandwidthPoint(Record, frozen=True, kw_only=True):
    """A copy that moves `bytes` (read + written) runs at `bytes_per_s`, kernel floor taken off."""

    bytes: int
    bytes_per_s: int


class Calibration(Record, frozen=True, kw_only=True):
    """The practice of one GPU; `residual_*` are quantiles of measured over predicted kernel time.

    `kernel_floor_ns` is the shortest kernel, `launch_ns` the host's time for one launch,
    `scalar_elements_per_sm_cycle` the rate of kernels that index and load element by element
    (broadcast or strided operands), `sm_bandwidth_share` how many times its even share of the
    memory bandwidth one multiprocessor can draw.
    """

    schema_version: int = CALIBRATION_SCHEMA_VERSION
    gpu: str
    device: str
    provenance: Literal["measured", "estimated"]
    source: str
    created: str | None = None
    curve: tuple[BandwidthPoint, ...]
    kernel_floor_ns: int
    launch_ns: int
    scalar_elements_per_sm_cycle: float
    sm_bandwidth_share: float
    residual_low: float
    residual_high: float
    coverage: float = 0.8

    def check(self) -> None:
        if self.schema_version != CALIBRATION_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"calibration schema {self.schema_version} is not {CALIBRATION_SCHEMA_VERSION}",
                remedy="run `fusion-advisor calibrate` again",
            )
        sizes = [point.bytes for point in self.curve]
        if not sizes or sizes[0] <= 0 or any(a >= b for a, b in pairwise(sizes)):
            raise InvalidRecordError("the bandwidth curve is empty or its sizes do not grow")
        figures = (
            *(point.bytes_per_s for point in self.curve),
            self.scalar_elements_per_sm_cycle, self.sm_bandwidth_share, self.residual_low,
        )  # fmt: skip
        if not all(math.isfinite(figure) and figure > 0 for figure in figures):
            raise InvalidRecordError("a rate of the calibration is not positive")
        if min(self.kernel_floor_ns, self.launch_ns) < 0 or not (
            self.residual_low <= 1 <= self.residual_high < math.inf and 0 < self.coverage < 1
        ):
            raise InvalidRecordError("a latency, residual or coverage is out of range")

    @property
    def cold_bandwidth(self) -> float:
        """Bytes/s of a copy so large that caches do not matter."""
        return float(self.curve[-1].bytes_per_s)

    def bandwidth(self, bytes_moved: int) -> float:
        """Bytes/s of a copy of that size: linear in log(bytes) between points, constant beyond."""
        first, last = self.curve[0], self.curve[-1]
        if bytes_moved <= first.bytes:
            return float(first.bytes_per_s)
        if bytes_moved >= last.bytes:
            return self.cold_bandwidth
        for low, high in pairwise(self.curve):
            if bytes_moved <= high.bytes:
                share = math.log(bytes_moved / low.bytes) / math.log(high.bytes / low.bytes)
                return low.bytes_per_s + share * (high.bytes_per_s - low.bytes_per_s)
        return self.cold_bandwidth


def default_calibration(gpu: Gpu) -> Calibration:
    """Estimates from the table's figures; nothing was measured on this card."""
    copied = gpu.copy_bandwidth_bytes_per_s
    top = copied or round(COPY_SHARE * gpu.dram_bandwidth_bytes_per_s)
    sheet = "measured copy" if copied else f"{COPY_SHARE:.2f} of the datasheet's bandwidth"
    return Calibration(
        gpu=gpu.key,
        device=gpu.name,
        provenance="estimated",
        source=f"table of GPUs: {sheet} ({gpu.source('dram_bandwidth_bytes_per_s')})",
        curve=_curve(top, gpu.l2_bytes),
        kernel_floor_ns=1_000,
        launch_ns=5_000,
        scalar_elements_per_sm_cycle=1.33,
        sm_bandwidth_share=2.0,
        residual_low=0.84 if copied else 0.75,
        residual_high=1.2 if copied else 1.45,
    )


def _curve(top: int, l2_bytes: int | None) -> tuple[BandwidthPoint, ...]:
    if l2_bytes is None:
        return (BandwidthPoint(bytes=1, bytes_per_s=top),)
    return tuple(
        BandwidthPoint(bytes=round(share * l2_bytes), bytes_per_s=round(speedup * top))
        for share, speedup in L2_SPEEDUP
    )


def calibration_path(gpu: Gpu, folder: Path | None = None) -> Path:
    """Where the calibration of a GPU is stored."""
    return (folder or state_folder() / "calibrations") / f"{gpu.key}.json"


def load_calibration(gpu: Gpu, folder: Path | None = None) -> Calibration:
    """The stored calibration of a GPU, or the default; raises `InvalidRecordError` if damaged."""
    path = calibration_path(gpu, folder)
    if not path.exists():
        return default_calibration(gpu)
    found = decode(read_bounded(path, _MAX_CALIBRATION_BYTES), Calibration, str(path))
    if found.gpu != gpu.key:
        raise InvalidRecordError(f"is a calibration of {found.gpu}", where=str(path))
    return found


def save_calibration(calibration: Calibration, gpu: Gpu, folder: Path | None = None) -> Path:
    """Store a checked calibration for this user; returns its path."""
    calibration.check()
    path = calibration_path(gpu, folder)
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
