"""What every record of the model shares: frozen, closed structs, and the words for provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from advisor.errors import InvalidRecordError, UnreadableError

Provenance = Literal["measured", "estimated", "modelled", "unknown"]
Phase = Literal["inference", "forward", "backward"]

# Reports and plans are hostile input; no honest one comes near this size.
MAX_RECORD_BYTES = 256 << 20

T = TypeVar("T", bound="Record")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value with a closed set of fields; `check()` raises on a broken invariant."""

    def check(self) -> None:
        """Raise `InvalidRecordError` if an invariant that types cannot express is broken."""


class Range(Record, frozen=True, kw_only=True):
    """An interval around a point, integer ns, meant to hold in a `coverage` share of cases."""

    low: int
    mid: int
    high: int
    coverage: float = 0.8

    def check(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise InvalidRecordError(f"range is not ordered: {self.low}, {self.mid}, {self.high}")

    def scaled(self, factor: float) -> Range:
        """The same range times a non-negative factor (occurrences per step, say)."""
        return Range(
            low=round(self.low * factor),
            mid=round(self.mid * factor),
            high=round(self.high * factor),
            coverage=self.coverage,
        )

    def plus(self, other: Range) -> Range:
        """The sum of two ranges whose errors are fully correlated (the cautious choice)."""
        return Range(
            low=self.low + other.low,
            mid=self.mid + other.mid,
            high=self.high + other.high,
            coverage=self.coverage,
        )


class Location(Record, frozen=True, kw_only=True):
    """A place in the user's program; any part may be unknown."""

    module: str | None = None
    file: str | None = None
    line: int | None = None


class Warning_(Record, frozen=True, kw_only=True):
    """Something skipped, repaired or clipped, counted."""

    code: str
    message: str
    count: int = 1


def encode(record: Record) -> bytes:
    """The record as indented JSON with a final newline; the same record gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(data: bytes, kind: type[T], where: str = "", remedy: str = "") -> T:
    """Bytes as a checked record; raises `InvalidRecordError` with the path of the fault.

    `remedy` is what to do where they are no such record at all.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidRecordError(
            f"{len(data)} bytes is more than a {kind.__name__} may have", where=where
        )
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise InvalidRecordError(
            f"not a valid {kind.__name__}", where=where, why=str(error), remedy=remedy
        ) from error
    try:
        check_deep(record)
    except InvalidRecordError as error:
        if error.where:
            raise
        raise InvalidRecordError(
            error.what, where=where, why=error.why, remedy=error.remedy
        ) from error
    return record


def check_deep(record: Record) -> None:
    """`check()` of the record, then of every record inside: outer limits hold before inner work."""
    pending: list[object] = [record]
    while pending:
        value = pending.pop()
        if isinstance(value, Record):
            value.check()
            pending.extend(getattr(value, name) for name in value.__struct_fields__)
        elif isinstance(value, tuple):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(value.values())


def load(path: Path, kind: type[T]) -> T:
    """Read a record from a file; a missing or unreadable file is an `UnreadableError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(
            f"cannot read {kind.__name__}", where=str(path), why=error.strerror or str(error)
        ) from error
    return decode(data, kind, str(path))


def schema(kind: type[Record]) -> dict[str, Any]:
    """The JSON Schema of a record type."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
