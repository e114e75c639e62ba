"""What earlier measurements taught about intervals: one factor a GPU, in a file of the user's."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import InvalidRecordError
from advisor.folders import state_folder
from advisor.hardware.gpu import Gpu
from advisor.model.base import Range, Record, decode, encode
from advisor.store.files import read_bounded, write_atomic

# Fewer plans say nothing of the tails. A factor outside these bounds is a fault, not a lesson.
FEWEST_PLANS, SMALLEST_FACTOR, LARGEST_FACTOR = 20, 0.25, 8.0
_MAX_BYTES = 4096


class LearnedIntervals(Record, frozen=True, kw_only=True):
    """The factor for the half-widths of predicted savings, and how many plans it rests on."""

    gpu: str
    interval_factor: float
    plans: int

    def check(self) -> None:
        if not SMALLEST_FACTOR <= self.interval_factor <= LARGEST_FACTOR:
            raise InvalidRecordError(f"an interval factor of {self.interval_factor}")
        if self.plans < FEWEST_PLANS:
            raise InvalidRecordError(f"learned from {self.plans} plans; {FEWEST_PLANS} are needed")


def learned_path(gpu: Gpu, folder: Path | None = None) -> Path:
    """Where the factor of a GPU is stored."""
    return (folder or state_folder() / "intervals") / f"{gpu.key}.json"


def interval_factor(gpu: Gpu, folder: Path | None = None) -> float:
    """What half-widths are multiplied by on this GPU: 1 until something was learned.

    Raises `InvalidRecordError` for a damaged file.
    """
    path = learned_path(gpu, folder)
    if not path.exists():
        return 1.0
    found = decode(read_bounded(path, _MAX_BYTES), LearnedIntervals, str(path))
    if found.gpu != gpu.key:
        raise InvalidRecordError(f"is of {found.gpu}", where=str(path))
    return found.interval_factor


def save_learned(found: LearnedIntervals, path: Path) -> Path:
    """Write a checked factor to `path`; returns it."""
    found.check()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, encode(found))
    return path


def widened(saving: Range, factor: float) -> Range:
    """The interval with its half-widths multiplied; the middle stays."""
    return Range(
        low=saving.mid - round((saving.mid - saving.low) * factor),
        mid=saving.mid,
        high=saving.mid + round((saving.high - saving.mid) * factor),
        coverage=saving.coverage,
    )
