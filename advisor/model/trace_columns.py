"""Events of a trace on their way into columns: the half of building that needs no pandas.

Two processes may each fill one from a part of a file; `absorb` joins the later part to the earlier,
and the result is what one process would have made of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.errors import InvalidRecordError
from advisor.model.growing import Growing
from advisor.model.trace_schema import FRAMES, TABLES, Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

INPUTS: dict[str, Columns] = {**TABLES, "frames": FRAMES}


@dataclass
class TraceColumns:
    """Collects batches of events; text columns hold codes from `text()`, -1 where absent."""

    _columns: dict[str, Growing] = field(init=False)
    _codes: dict[str, int] = field(init=False, default_factory=dict)
    _threads: dict[str, int] = field(init=False, default_factory=dict)
    _warnings: dict[str, tuple[str, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._columns = {table: Growing(columns) for table, columns in INPUTS.items()}

    def text(self, value: str | None) -> int:
        """The code of a string; -1 for None."""
        return -1 if value is None else self._codes.setdefault(value, len(self._codes))

    def texts(self, values: Sequence[str]) -> list[int]:
        """The codes of many strings."""
        codes = self._codes
        try:
            return list(map(codes.__getitem__, values))
        except KeyError:
            return [codes.setdefault(value, len(codes)) for value in values]

    def thread(self, process: object, thread: object) -> int:
        """The number of a host thread; 24572 and "24572" are the same (2021 files mix them)."""
        return self._threads.setdefault(f"{process}/{thread}", len(self._threads))

    def warn(self, code: str, message: str, count: int = 1) -> None:
        """Count something skipped, repaired or clipped; the first message of a code is kept."""
        if count:
            first, seen = self._warnings.get(code, (message, 0))
            self._warnings[code] = (first, seen + count)

    def add(self, table: str, batch: Mapping[str, Sequence[int] | Sequence[float] | Any]) -> None:
        """Append equally long columns; a column left out is absent in every row of the batch."""
        lengths = {len(values) for values in batch.values()}
        if not batch.keys() <= INPUTS[table].keys() or len(lengths) != 1:
            raise InvalidRecordError("a batch has unknown or unequal columns", where=table)
        self._columns[table].add(batch, lengths.pop())

    def event(self, table: str, **values: int | float | str | None) -> None:
        """Append one row, text as it is: for readers of small files, and for tests."""
        columns = INPUTS[table]
        row = {
            name: [self.text(value) if columns[name] == "text" else value]  # type: ignore[arg-type]
            for name, value in values.items()
            if value is not None
        }
        self.add(table, row)

    def labels(self) -> tuple[list[str], list[str], dict[str, tuple[str, int]]]:
        """(strings by code, threads by number, warnings) so far."""
        return list(self._codes), list(self._threads), dict(self._warnings)

    def filled(self) -> list[str]:
        """The tables that have rows."""
        return [table for table, growing in self._columns.items() if growing.rows]

    def taken(self, table: str) -> tuple[int, dict[str, NDArray[Any]]]:
        """(rows, columns that some batch filled) of a table, which is then no longer here."""
        growing = self._columns.pop(table)
        return growing.rows, growing.filled()

    def absorb(
        self,
        labels: tuple[list[str], list[str], dict[str, tuple[str, int]]],
        tables: Iterable[tuple[str, int, Iterable[tuple[str, NDArray[Any]]]]],
    ) -> None:
        """Append what another one collected from the events that follow those in this one.

        `tables` may be a stream: a column is used before the next is asked for.
        """
        texts, threads, warnings = labels
        # The last entry serves the code -1, absent.
        codes = np.array([*self.texts(texts), -1], dtype=np.int64)
        numbers = [self._threads.setdefault(name, len(self._threads)) for name in threads]
        thread_of = np.array(numbers, dtype=np.int64)
        for code, (message, count) in warnings.items():
            self.warn(code, message, count)
        kernels = self._columns["kernels"].rows
        for table, rows, columns in tables:
            kinds = INPUTS[table]
            self._columns[table].extend(
                rows,
                (
                    (name, _renumbered(name, kinds[name], values, codes, thread_of, kernels))
                    for name, values in columns
                ),
            )


def _renumbered(
    name: str,
    kind: str,
    values: NDArray[Any],
    codes: NDArray[np.int64],
    thread_of: NDArray[np.int64],
    kernels: int,
) -> NDArray[Any]:
    """Codes, thread numbers and kernel rows of a later part as the whole counts them."""
    if kind == "text":
        values = codes[values]
    elif name == "thread":
        values = thread_of[values]
    elif name == "kernel":
        values = values + kernels
    return values
