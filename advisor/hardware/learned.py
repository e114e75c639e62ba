"""What earlier measurements taught about predictions of a GPU: quantiles, in a file of the user's.

    residual of a plan  =  (measured - middle) / half-width on that side

of the time that its kernels take, as modelled. The next plan is predicted to lie at the median of
the residuals, and between those that a tenth of the plans lies below and a tenth above. Where the
user has learned nothing, what ships for the GPU is taken: what the zoo taught there.
"""

from __future__ import annotations

from pathlib import Path

from advisor.errors import InvalidRecordError
from advisor.folders import state_folder
from advisor.hardware.gpu import Gpu
from advisor.model.base import Range, Record, decode, encode
from advisor.model.scores import ResidualQuantiles
from advisor.store.files import read_bounded, write_atomic

# Fewer plans say nothing of the tails. Beyond the largest residual lies a fault, not a lesson; that
# plans were alike is no reason to promise an interval of less than the smallest half-widths.
FEWEST_PLANS, SMALLEST_HALF, LARGEST_RESIDUAL = 20, 0.25, 8.0
AS_MODELLED = ResidualQuantiles(low=-1.0, mid=0.0, high=1.0)
# Written by `benchmarks/lessons.py`.
SHIPPED = Path(__file__).with_name("lessons")
_MAX_BYTES = 4096


class LearnedIntervals(Record, frozen=True, kw_only=True):
    """The quantiles of the residuals on a GPU, and how many plans they rest on."""

    gpu: str
    residuals: ResidualQuantiles
    plans: int

    def check(self) -> None:
        if not -LARGEST_RESIDUAL <= self.residuals.low <= self.residuals.high <= LARGEST_RESIDUAL:
            found = f"{self.residuals.low} to {self.residuals.high}"
            raise InvalidRecordError(f"an interval of {found} half-widths")
        if self.plans < FEWEST_PLANS:
            raise InvalidRecordError(f"learned from {self.plans} plans; {FEWEST_PLANS} are needed")


def learned_path(gpu: Gpu, folder: Path | None = None) -> Path:
    """Where what was learned of a GPU is stored."""
    return (folder or state_folder() / "intervals") / f"{gpu.key}.json"


def learned_residuals(gpu: Gpu, folder: Path | None = None) -> ResidualQuantiles:
    """The quantiles by which times on this GPU are predicted: the user's, else those that ship.

    As modelled where there are neither. Raises `InvalidRecordError` for a damaged file, or one of
    an earlier form.
    """
    places = (learned_path(gpu, folder), SHIPPED / f"{gpu.key}.json")
    path = next((place for place in places if place.exists()), None)
    if path is None:
        return AS_MODELLED
    try:
        found = decode(read_bounded(path, _MAX_BYTES), LearnedIntervals, str(path))
    except InvalidRecordError as error:
        raise InvalidRecordError(
            error.what,
            where=error.where,
            why=error.why,
            remedy="learn anew with `fusion-advisor calibration RUNS --learn`, or delete the file",
        ) from error
    if found.gpu != gpu.key:
        raise InvalidRecordError(f"is of {found.gpu}", where=str(path))
    return found.residuals


def save_learned(found: LearnedIntervals, path: Path) -> Path:
    """Write checked quantiles to `path`; returns it."""
    found.residuals.check()
    found.check()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, encode(found))
    return path


def residual_of(predicted: Range, measured_ns: int) -> float:
    """Where a measured time lies in a predicted interval, in half-widths of its side.

    A side without a width counts as one of 1 ns.
    """
    gap = measured_ns - predicted.mid
    half = predicted.high - predicted.mid if gap > 0 else predicted.mid - predicted.low
    return gap / max(half, 1)


def time_at(predicted: Range, residual: float) -> int:
    """The time that lies there in a predicted interval; never falls as the residual grows."""
    above = predicted.high - predicted.mid
    below = predicted.mid - predicted.low
    return predicted.mid + round(residual * (above if residual > 0 else below))


def recalibrated(modelled: Range, residuals: ResidualQuantiles) -> Range:
    """A modelled kernel time as earlier residuals have it; never less than nothing."""
    low, mid, high = (
        max(time_at(modelled, residual), 0)
        for residual in (residuals.low, residuals.mid, residuals.high)
    )
    return Range(low=low, mid=mid, high=high, coverage=modelled.coverage)
