"""Growing columns: a table under construction, in arrays that are extended in place.

A gigabyte of events leaves millions of rows. Keeping batches and joining them would need the memory
twice; extending an array moves pages instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.model.trace_schema import Columns, ColumnType

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Stands for "absent" among integers; no honest time, id or size is this number.
MISSING = -(2**63)
DTYPES: dict[ColumnType, Any] = {
    "int": np.int64,
    "int?": np.int64,
    "float?": np.float64,
    "text": np.int32,
}
_ABSENT: dict[ColumnType, float] = {"int": 0, "int?": MISSING, "float?": float("nan"), "text": -1}
# What sorting, clipping and linking read or write: made even where no batch filled it.
_LINKED = (
    "start_ns",
    "duration_ns",
    "name",
    "thread",
    "device",
    "stream",
    "correlation",
    "external_id",
    "launch",
    "op",
    "parent",
    "kernel",
)


class Growing:
    """Columns of one table, equally long; those that nobody filled do not exist."""

    def __init__(self, kinds: Columns) -> None:
        self.rows = 0
        self._kinds = kinds
        self._capacity = 0
        self._arrays: dict[str, NDArray[Any]] = {}

    def add(self, batch: Mapping[str, Any], length: int) -> None:
        """Append `length` rows; existing columns that the batch lacks are absent in them."""
        first = self._longer(length)
        for name in batch.keys() - self._arrays.keys():
            self._new(name, first)
        for name, array in self._arrays.items():
            array[first : self.rows] = batch.get(name, _ABSENT[self._kinds[name]])

    def extend(self, length: int, columns: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """`add`, one column after the other: no two of them need exist at once."""
        first = self._longer(length)
        absent = set(self._arrays)
        for name, values in columns:
            if name not in self._arrays:
                self._new(name, first)
            self._arrays[name][first : self.rows] = values
            absent.discard(name)
        for name in absent:
            self._arrays[name][first : self.rows] = _ABSENT[self._kinds[name]]

    def filled(self) -> dict[str, NDArray[Any]]:
        """The columns that batches have filled; of no use afterwards."""
        for array in self._arrays.values():
            array.resize(self.rows, refcheck=False)
        return self._arrays

    def _longer(self, length: int) -> int:
        """Make room for `length` more rows; the first of them."""
        first, self.rows = self.rows, self.rows + length
        if self.rows > self._capacity:
            self._capacity = max(self.rows, self._capacity * 3 // 2)
            for array in self._arrays.values():
                array.resize(self._capacity, refcheck=False)
        return first

    def fill(self, name: str, value: int) -> None:
        """Give a column one value in every row, unless batches filled it or it is unknown."""
        if name in self._kinds and name not in self._arrays and value:
            self._new(name, 0)
            self._arrays[name][: self.rows] = value

    def finish(self) -> dict[str, NDArray[Any]]:
        """The columns, those for linking included; of no use afterwards."""
        for name in _LINKED:
            if name in self._kinds and name not in self._arrays:
                self._new(name, self.rows)
        for array in self._arrays.values():
            array.resize(self.rows, refcheck=False)
        return self._arrays

    def _new(self, name: str, absent_rows: int) -> None:
        kind = self._kinds[name]
        array = np.empty(self._capacity, dtype=DTYPES[kind])
        array[:absent_rows] = _ABSENT[kind]
        self._arrays[name] = array
