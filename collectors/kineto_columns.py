"""Lists of Kineto events in, batches of columns for `TraceColumns` out.

Going through the events once per field would cost more than decoding them: a batch is turned into
columns by unpacking every struct at once, and text that recurs (shapes, grids, names) is looked up
by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw
from msgspec.structs import astuple

from advisor.model.frames import place
from advisor.model.growing import MISSING
from advisor.model.trace_columns import TraceColumns
from collectors import kineto_structs as structs
from collectors.api_calls import call_kind, sync_kind
from collectors.kineto_numbers import INVALID, nanoseconds
from collectors.kineto_structs import Event

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Batch: TypeAlias = dict[str, Any]

# So many events at a time become columns: enough for numpy, few enough for the cache.
FLUSH_EVENTS = 2_048
STEP_PREFIX = "ProfilerStep"
_MAX_DURATION_NS = 24 * 3600 * 10**9
_SIZE_COLUMNS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_NUL = b"\0"  # no JSON text holds this byte, so it may separate them
_COUNTED: tuple[tuple[type[Event], str, str], ...] = (
    (structs.Memory, "memory_event", "instants such as allocations were not used"),
    (structs.Sync, "sync_event", "device-side durations of synchronisations were not used"),
    (structs.CounterRange, "counter_range", "CUPTI ranges with hardware counters were not used"),
)


class Columns(NamedTuple):
    """Complete events with honest times: what every one has, and its arguments by field."""

    name: Sequence[str]
    pid: Sequence[int | str | None]
    tid: Sequence[int | str | None]
    args: Sequence[Sequence[Any]]
    times: Batch

    def where(self, chosen: NDArray[np.bool_]) -> Columns:
        """The chosen ones."""
        rows = np.flatnonzero(chosen).tolist()

        def pick(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows]

        return Columns(
            pick(self.name),
            pick(self.pid),
            pick(self.tid),
            [pick(field) for field in self.args],
            {name: values[rows] for name, values in self.times.items()},
        )


class Codes:
    """Codes of text that recurs, by the bytes it was written in; several columns share a key."""

    def __init__(self, width: int, read: Callable[[bytes], Iterable[int]]) -> None:
        self._rows: dict[bytes, int] = {}
        self._table = np.empty((64, width), dtype=np.int64)
        self._read = read

    def of(self, fields: Sequence[Sequence[Any]]) -> Ints:
        """A row of codes per column, for as many fields as `read` splits a key into."""
        keys = list(map(_NUL.join, zip(*fields, strict=True)))
        rows = _looked_up(self._rows, keys, self._add)  # may replace the table
        return self._table[rows].T

    def _add(self, key: bytes) -> None:
        row = self._rows[key] = len(self._rows)
        if row == len(self._table):
            self._table = np.concatenate((self._table, np.empty_like(self._table)))
        self._table[row] = tuple(self._read(key))


class Collector:
    """Sorts events by table and hands full batches to the builder."""

    def __init__(self, builder: TraceColumns, kinds: dict[type[Event], type[Event]]) -> None:
        self.builder = builder
        self.events = 0
        self._kinds = kinds
        self._pending: dict[type[Event], list[Event]] = {kind: [] for kind in kinds.values()}
        # Lists are emptied in place, so where to append never changes.
        self._add = {kind: self._pending[base].append for kind, base in kinds.items()}
        self._waiting = 0
        self._kernels = 0
        self._threads: dict[tuple[Any, Any], int] = {}
        self._op_texts = Codes(5, self._texts)
        self._stacks = Codes(1, self._source)
        self._comm_texts = Codes(3, self._texts)
        self._limits = Codes(1, lambda key: (builder.text(_limiter(key)),))
        self._sizes = Codes(6, _grid_and_block)

    def take(self, events: list[Event]) -> None:
        """Accept the events of one chunk."""
        self.events += len(events)
        if len(self._add) < len(self._kinds):  # the decoder has learnt a category
            self._add = {kind: self._pending[base].append for kind, base in self._kinds.items()}
        add = self._add
        for event in events:
            add[type(event)](event)
        self._waiting += len(events)
        if self._waiting >= FLUSH_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Turn everything waiting into columns."""
        self._waiting = 0
        for kind, code, message in _COUNTED:
            self.builder.warn(code, f"{message}, only counted", len(self._pending[kind]))
        for kind, events in self._pending.items():
            writer = _WRITERS.get(kind)
            if writer is not None and events:
                columns = self._columns(events)
                if len(columns.name):
                    writer(self, columns)
            events.clear()

    def _columns(self, events: list[Event]) -> Columns:
        ph, name, ts, dur, pid, tid, *args = zip(*map(astuple, events), strict=True)
        if ph.count("X") < len(ph):
            complete = [event for event in events if event.ph == "X"]
            return self._columns(complete) if complete else Columns((), (), (), [], {})
        fields = list(zip(*map(astuple, args[0]), strict=True)) if args else []
        start, duration = nanoseconds(ts), nanoseconds(dur)
        found = Columns(name, pid, tid, fields, {"start_ns": start, "duration_ns": duration})
        good = (start != INVALID) & (duration >= 0) & (duration <= _MAX_DURATION_NS)
        if good.all():
            return found
        self._excluded(start, duration)
        return found.where(good)

    def _excluded(self, start: Ints, duration: Ints) -> None:
        untimed = (start == INVALID) | (duration == INVALID)
        self.builder.warn(
            "event_untimed",
            "events without a readable time were left out",
            int(untimed.sum()),
        )
        self.builder.warn(
            "duration_impossible",
            "events with a negative duration, or one above a day, were left out",
            int((~untimed & ((duration < 0) | (duration > _MAX_DURATION_NS))).sum()),
        )

    def host(self, columns: Columns) -> Batch:
        """Times, name and thread: what every host event has."""
        return {
            **columns.times,
            "name": self.names(columns.name),
            "thread": self.threads(columns),
        }

    def names(self, names: Sequence[str]) -> Ints:
        """The codes of names."""
        return np.array(self.builder.texts(names), dtype=np.int64)

    def threads(self, columns: Columns) -> Ints:
        """The numbers of host threads."""
        pairs = list(zip(columns.pid, columns.tid, strict=True))
        return _looked_up(self._threads, pairs, self._add_thread)

    def _add_thread(self, pair: tuple[Any, Any]) -> None:
        self._threads[pair] = self.builder.thread(*pair)

    def activity(self, columns: Columns) -> Batch:
        """Times, name, device, stream and ids of a device activity.

        Device and stream come from the arguments, else from the row the event is drawn in.
        """
        device, stream, correlation, new, old = map(_ints, columns.args[:5])
        for index in np.flatnonzero((device == MISSING) | (stream == MISSING)).tolist():
            pid, tid = columns.pid[index], columns.tid[index]
            if device[index] == MISSING and isinstance(pid, int) and _is_int64(pid):
                device[index] = pid
            if stream[index] == MISSING and isinstance(tid, int) and _is_int64(tid):
                stream[index] = tid
        return {
            **columns.times,
            "name": self.names(columns.name),
            "device": device,
            "stream": stream,
            "correlation": correlation,
            "external_id": _either(new, old),
        }

    def kernels(self, columns: Columns) -> None:
        """Kernels, and the collectives among them."""
        args = columns.args
        batch = self.activity(columns)
        registers, shared, graph, node = map(_ints, args[5:9])
        batch["registers_per_thread"], batch["shared_bytes"] = registers, shared
        batch["graph_id"], batch["graph_node_id"] = _zero_is_absent(graph), _zero_is_absent(node)
        batch["occupancy_estimated"] = _fractions(args[9], args[10])
        batch["occupancy_limiter"] = self._limits.of([args[11]])[0]
        batch |= dict(zip(_SIZE_COLUMNS, self._sizes.of(args[12:14]), strict=True))
        self.builder.add("kernels", batch)
        if any(args[14]):
            self._comms(columns.where(np.array(list(map(bool, args[14])))), args[14])
        self._kernels += len(columns.name)

    def _comms(self, columns: Columns, collectives: Sequence[Raw]) -> None:
        rows = [row for row, text in enumerate(collectives) if text]
        batch: Batch = {"kernel": np.array(rows) + self._kernels}
        text, before, after, dtype, group, size = columns.args[14:]
        batch["elements_in"], batch["elements_out"] = _ints(before), _ints(after)
        batch["group_size"] = _ints(size)
        codes = self._comm_texts.of([text, dtype, group])
        batch["collective"], batch["dtype"], batch["group"] = codes
        self.builder.add("comms", batch)

    def copies(self, columns: Columns) -> None:
        """Copies between memories."""
        batch = self.activity(columns)
        text = self.builder.text
        directions = {name: text(_direction(name)) for name in set(columns.name)}
        batch["kind"] = np.full(len(columns.name), text("copy"))
        batch["direction"] = [directions[name] for name in columns.name]
        batch["bytes"] = _ints(columns.args[5])
        self.builder.add("copies", batch)

    def sets(self, columns: Columns) -> None:
        """Memsets."""
        batch = self.activity(columns)
        batch["kind"] = np.full(len(columns.name), self.builder.text("set"))
        batch["bytes"] = _ints(columns.args[5])
        self.builder.add("copies", batch)

    def ops(self, columns: Columns) -> None:
        """Operators; steps that files before 2022 list among them become ranges."""
        steps = {name for name in set(columns.name) if name.startswith(STEP_PREFIX)}
        if steps:
            apart = np.array([name in steps for name in columns.name])
            self.ranges(columns.where(apart))
            columns = columns.where(~apart)
            if not columns.name:
                return
        batch = self.host(columns)
        new, old, record, sequence, forward = map(_ints, columns.args[:5])
        batch["external_id"], batch["record_function_id"] = _either(new, old), record
        batch["sequence_number"], batch["forward_thread"] = sequence, forward
        shapes, shapes_2021, dtypes, strides, values = self._op_texts.of(columns.args[5:10])
        batch["input_shapes"] = np.maximum(shapes, shapes_2021)  # -1 where absent
        batch["input_dtypes"], batch["input_strides"] = dtypes, strides
        batch["input_values"] = values
        if any(columns.args[10]):
            batch["source"] = self._stacks.of([columns.args[10]])[0]
        self.builder.add("ops", batch)

    def calls(self, columns: Columns) -> None:
        """API calls: synchronising ones to `syncs`, all others to `launches`."""
        batch = self.host(columns)
        batch["correlation"], new, old = map(_ints, columns.args)
        text = self.builder.text
        kinds = {name: (sync_kind(name), call_kind(name)) for name in set(columns.name)}
        syncs = {name: text(sync) for name, (sync, _) in kinds.items()}
        others = {name: text(call) for name, (_, call) in kinds.items()}
        kind = np.array([syncs[name] for name in columns.name], dtype=np.int64)
        is_sync = kind >= 0
        if is_sync.any():
            sync = {column: values[is_sync] for column, values in batch.items()}
            self.builder.add("syncs", {**sync, "kind": kind[is_sync]})
        batch["external_id"] = _either(new, old)
        batch["kind"] = np.array([others[name] for name in columns.name], dtype=np.int64)
        if not is_sync.all():
            launch = {column: values[~is_sync] for column, values in batch.items()}
            self.builder.add("launches", launch)

    def ranges(self, columns: Columns) -> None:
        """Ranges on the host."""
        self._spans(columns, "host")

    def device_ranges(self, columns: Columns) -> None:
        """Ranges on the device."""
        self._spans(columns, "device")

    def _spans(self, columns: Columns, side: str) -> None:
        batch = self.host(columns)
        batch["side"] = np.full(len(columns.name), self.builder.text(side))
        self.builder.add("ranges", batch)

    def frames(self, columns: Columns) -> None:
        """Python frames."""
        self.builder.add("frames", self.host(columns))

    def _source(self, stack: bytes) -> list[int]:
        """The innermost line of the user's program in a stack of before 2022: `a.py(12): f;…`."""
        lines = (place(line).source for line in (_text(stack) or "").split(";"))
        return [self.builder.text(next((line for line in lines if line), None))]

    def _texts(self, key: bytes) -> list[int]:
        return [self.builder.text(_text(raw)) for raw in key.split(_NUL)]


def _looked_up(known: dict[Any, int], keys: list[Any], add: Callable[[Any], None]) -> Ints:
    """The number of each key; `add` enters those that are new, which are few."""
    try:
        return np.fromiter(map(known.__getitem__, keys), dtype=np.int64, count=len(keys))
    except KeyError:
        for key in dict.fromkeys(keys):
            if key not in known:
                add(key)
    return np.fromiter(map(known.__getitem__, keys), dtype=np.int64, count=len(keys))


def _text(raw: bytes) -> str | None:
    """A JSON value as text: a string as itself, anything else on one line, nothing as None."""
    if not raw or raw == b"null":
        return None
    if raw.startswith(b'"'):
        return str(msgspec.json.decode(raw))
    return msgspec.json.format(raw, indent=0).decode(errors="replace")


def _ints(values: Sequence[Any]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, OverflowError):  # a null, or a number that is no id of ours
        return np.array([v if _is_int64(v) else MISSING for v in values], dtype=np.int64)


def _is_int64(value: int | None) -> bool:
    return value is not None and -(2**63) <= value < 2**63


def _either(new: Ints, old: Ints) -> Ints:
    """The argument under its new spelling, else under that of 2021."""
    return np.where(new == MISSING, old, new)


def _grid_and_block(key: bytes) -> tuple[int, ...]:
    grid, block = key.split(_NUL)
    return (*_triple(grid), *_triple(block))


def _triple(raw: bytes) -> tuple[int, int, int]:
    try:
        x, y, z = msgspec.json.decode(raw, type=tuple[int, int, int])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return MISSING, MISSING, MISSING
    return (x, y, z) if all(map(_is_int64, (x, y, z))) else (MISSING, MISSING, MISSING)


def _fractions(new: Sequence[float | None], old: Sequence[float | None]) -> NDArray[np.float64]:
    """Kineto's occupancy in percent, which was called "theoretical" in 2021 though it never was."""
    values, before = (np.array(column, dtype=np.float64) for column in (new, old))
    return np.where(np.isnan(values), before, values) / 100


class _Limits(msgspec.Struct):
    limitingFactors: str = ""  # noqa: N815 - the file's spelling


def _limiter(raw: bytes) -> str | None:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=_Limits).limitingFactors or None
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _zero_is_absent(ids: Ints) -> Ints:
    """CUPTI writes graph id 0 for a kernel that is in no graph."""
    return np.where(ids == 0, MISSING, ids)


def _direction(name: str) -> str | None:
    """`Memcpy HtoD (Pinned -> Device)` → HtoD."""
    words = name.split()
    return words[1] if len(words) > 1 and "to" in words[1] else None


_WRITERS: dict[type[Event], Callable[[Collector, Columns], None]] = {
    structs.Kernel: Collector.kernels,
    structs.Copy: Collector.copies,
    structs.Set: Collector.sets,
    structs.Op: Collector.ops,
    structs.Call: Collector.calls,
    structs.Range: Collector.ranges,
    structs.DeviceRange: Collector.device_ranges,
    structs.Frame: Collector.frames,
}
