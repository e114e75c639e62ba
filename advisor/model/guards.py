"""What a plan promises: what its kernel relies on, and what it is expected to save."""

from __future__ import annotations

from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Range, Record


class Guard(Record, frozen=True, kw_only=True):
    """A property the generated code relies on; a site that lacks it keeps the original ops."""

    kind: Literal["dtype", "layout", "columns_at_most"]
    subject: str
    value: str | int


class Prediction(Record, frozen=True, kw_only=True):
    """Modelled kernel and saved time of all sites in one step, and what the figures rest on.

    `modelled_saving_ns` is the saving before earlier plans' residuals changed it, None where none
    were learned.
    """

    before_ns: Range
    after_ns: Range
    saving_ns: Range
    bytes_before: int
    bytes_after: int
    basis: str
    modelled_saving_ns: Range | None = None

    def check(self) -> None:
        if self.bytes_before < 0 or self.bytes_after < 0:
            raise InvalidRecordError("a prediction moves a negative number of bytes")
