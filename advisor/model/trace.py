"""`Trace`: what a profiler recorded, as columnar tables, whatever file it came from.

A reader fills a `TraceBuilder` batch by batch and calls `build()`, which sorts, attributes (kernel
to launch to op, `advisor.model.linking`) and freezes. `Trace.check()` proves the invariants that
analyzers rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pandas as pd

from advisor.errors import InvalidRecordError
from advisor.model import frames, linking, overruns
from advisor.model.base import Provenance, Record, Warning_
from advisor.model.growing import DTYPES, MISSING
from advisor.model.range_names import STEP_PREFIX
from advisor.model.trace_columns import INPUTS, TraceColumns
from advisor.model.trace_schema import TABLES, ColumnType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64: TypeAlias = NDArray[np.int64]
    Batch: TypeAlias = dict[str, NDArray[Any]]

# Columns that hold row numbers: table, column, the table they point into.
_POINTERS = (
    ("kernels", "launch", "launches"),
    ("kernels", "op", "ops"),
    ("copies", "launch", "launches"),
    ("copies", "op", "ops"),
    ("launches", "op", "ops"),
    ("ops", "parent", "ops"),
    ("comms", "kernel", "kernels"),
)


class TraceInfo(Record, frozen=True, kw_only=True):
    """What the file says about itself; `threads` holds `pid/tid` of each host thread number."""

    source: str
    rank: int = 0
    world_size: int = 1
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    threads: tuple[str, ...] = ()
    shapes_recorded: bool = False
    stacks_recorded: bool = False
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One profiled window of one rank; tables as in `advisor.model.trace_schema`, sorted by start.

    `provenance` is per column (`"kernels.registers_per_thread": "measured"`); a column that no
    event filled is `unknown`. `warnings` says what was skipped, repaired, clipped or salvaged.
    """

    kernels: pd.DataFrame
    ops: pd.DataFrame
    launches: pd.DataFrame
    copies: pd.DataFrame
    comms: pd.DataFrame
    syncs: pd.DataFrame
    ranges: pd.DataFrame
    devices: pd.DataFrame
    info: TraceInfo
    provenance: Mapping[str, Provenance]
    warnings: tuple[Warning_, ...]

    def table(self, name: str) -> pd.DataFrame:
        """The table of that name."""
        frame: pd.DataFrame = getattr(self, name)
        return frame

    def steps(self, prefix: str = STEP_PREFIX) -> pd.DataFrame:
        """The host ranges whose name starts with `prefix`, by start: the profiled steps."""
        ranges = self.ranges
        names = ranges["name"].astype(object)
        wanted = names.map(lambda n: isinstance(n, str) and n.startswith(prefix)).astype(bool)
        steps = ranges[wanted & (ranges["side"] == "host")]
        return steps.reset_index(drop=True)

    def check(self) -> None:
        """Raise `InvalidRecordError` if a column, an order, a duration or a row number is wrong."""
        for name, columns in TABLES.items():
            frame = self.table(name)
            if list(frame.columns) != list(columns):
                raise InvalidRecordError("columns differ from the schema", where=name)
            if "start_ns" in columns:
                _check_times(name, frame)
        for name, column, target in _POINTERS:
            rows = self.table(name)[column].dropna()
            if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.table(target))):
                raise InvalidRecordError(f"a row of {target} does not exist", where=name)
        if set(self.provenance) != {f"{t}.{c}" for t, columns in TABLES.items() for c in columns}:
            raise InvalidRecordError("a column has no provenance")


def _check_times(name: str, frame: pd.DataFrame) -> None:
    start, duration = frame["start_ns"].to_numpy(), frame["duration_ns"].to_numpy()
    if start.dtype != np.int64 or duration.dtype != np.int64:
        raise InvalidRecordError("times are not int64 nanoseconds", where=name)
    if np.any(np.diff(start) < 0):
        raise InvalidRecordError("events are not sorted by start", where=name)
    if np.any(duration < 0):
        raise InvalidRecordError("an event has a negative duration", where=name)


@dataclass(kw_only=True)
class TraceBuilder(TraceColumns):
    """Collects batches of events and makes the trace of them."""

    source: str
    rank: int = 0
    world_size: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    shapes_recorded: bool = False
    stacks_recorded: bool = False
    complete: bool = True
    modelled: dict[str, Provenance] = field(default_factory=dict)
    _kernel_order: Int64 = field(init=False)

    def build(self) -> Trace:
        """Sort, attribute, freeze, check; the builder is empty and of no use afterwards."""
        for table in self._columns.values():
            table.fill("rank", self.rank)
        raw = {table: self._sorted(table) for table in INPUTS}
        self._renumber(raw["comms"])
        self._locate(raw["ops"], raw.pop("frames"))
        clipped, removed_ns = overruns.clip([raw["kernels"], raw["copies"]], MISSING)
        self.warn(
            "duration_clipped",
            f"activities that outran their stream were cut at the next start: {removed_ns} ns",
            clipped,
        )
        linking.link(raw, MISSING)
        names = np.array(list(self._codes), dtype=object)
        tables = {table: _frame(table, columns, names) for table, columns in raw.items()}
        trace = Trace(
            **tables,
            info=TraceInfo(
                source=self.source,
                rank=self.rank,
                world_size=self.world_size,
                versions=dict(self.versions),
                threads=tuple(self._threads),
                shapes_recorded=self.shapes_recorded,
                stacks_recorded=self.stacks_recorded,
                complete=self.complete,
            ),
            provenance=self._provenance(tables),
            warnings=tuple(
                Warning_(code=code, message=message, count=count)
                for code, (message, count) in self._warnings.items()
            ),
        )
        trace.check()
        return trace

    def _sorted(self, table: str) -> Batch:
        """The columns that some batch filled, or that linking needs, sorted by start."""
        result = self._columns.pop(table).finish()
        if "start_ns" in result:
            # Longer first: a parent that starts with its child comes before it.
            order = np.lexsort((-result["duration_ns"], result["start_ns"]))
            for name in result:
                result[name] = result[name][order]
            if table == "kernels":
                self._kernel_order = order
        return result

    def _locate(self, ops: Batch, stack: Batch) -> None:
        """Fill `module` and `source` of the ops from the Python frames around them."""
        if not len(stack["name"]):
            return
        at, places = frames.locate(ops, stack, list(self._codes), MISSING)
        ops["module"] = np.array([self.text(p.module) for p in places], dtype=np.int32)[at]
        ops["source"] = np.array([self.text(p.source) for p in places], dtype=np.int32)[at]

    def _renumber(self, comms: Batch) -> None:
        """`comms.kernel` counts kernels as they were added; after sorting they have other rows."""
        order = self._kernel_order
        row_of = np.empty(len(order), dtype=np.int64)
        row_of[order] = np.arange(len(order))
        comms["kernel"] = row_of[comms["kernel"]]

    def _provenance(self, tables: Mapping[str, pd.DataFrame]) -> dict[str, Provenance]:
        result: dict[str, Provenance] = {}
        for table, frame in tables.items():
            for column in frame.columns:
                key = f"{table}.{column}"
                filled = bool(frame[column].notna().any())
                given = self.modelled.get(key, "measured")
                result[key] = given if filled else "unknown"
        return result


def _frame(table: str, columns: Batch, names: NDArray[Any]) -> pd.DataFrame:
    rows = len(next(iter(columns.values())))
    series = {
        name: _column(kind, columns.pop(name, None), rows, names)
        for name, kind in TABLES[table].items()
    }
    return pd.DataFrame(series, copy=False)


def _column(kind: ColumnType, values: NDArray[Any] | None, rows: int, names: NDArray[Any]) -> Any:
    if kind == "text":
        return _categorical(np.full(rows, -1) if values is None else values, names)
    if kind == "int":
        return np.zeros(rows, dtype=np.int64) if values is None else values
    make = pd.arrays.IntegerArray if kind == "int?" else pd.arrays.FloatingArray
    if values is None:
        return make(np.zeros(rows, dtype=DTYPES[kind]), np.ones(rows, dtype=bool))
    absent = values == MISSING if kind == "int?" else np.isnan(values)
    values[absent] = 0
    return make(values, absent)


def _categorical(codes: NDArray[Any], names: NDArray[Any]) -> pd.Categorical:
    """Codes against only the strings that occur in this column, in order of first use."""
    present = np.zeros(len(names) + 1, dtype=bool)
    present[codes] = True  # -1, absent, marks the last place
    used = np.flatnonzero(present[:-1])
    place = np.full(len(present), -1, dtype=np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    own = place[codes]
    return pd.Categorical.from_codes(own, categories=pd.Index(names[used], dtype=object))
