"""Which rows of `kernels.py` arithmetic bounds, as `kernel_counts.py` found before measuring."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from advisor.model.base import Record, decode

RESULTS = Path(__file__).parent / "kernel_counts.json"
# The bar: of the speed of a copy of the same bytes.
FAST = 0.90


class Count(Record, frozen=True, kw_only=True):
    """One row: instructions an element, and the least time by count beside that of a copy."""

    key: str
    config: str
    bytes: int
    instructions: float
    special: float
    least_ns: int
    copy_ns: int

    @property
    def bound(self) -> bool:
        """Whether arithmetic alone keeps the row from the bar."""
        return self.copy_ns < FAST * self.least_ns


class Counts(Record, frozen=True, kw_only=True):
    """All rows, for one GPU, as one Triton compiles them."""

    gpu: str
    triton: str
    rows: tuple[Count, ...]


def counts() -> Counts:
    """What was counted."""
    return decode(RESULTS.read_bytes(), Counts, str(RESULTS))


@cache
def bound_rows() -> frozenset[str]:
    """The keys of the rows that arithmetic bounds; none before they are counted."""
    rows = counts().rows if RESULTS.exists() else ()
    return frozenset(row.key for row in rows if row.bound)
