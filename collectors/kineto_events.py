"""Kineto events as typed structs; lists of events in, batches for the `TraceBuilder` out.

Spellings of all ages: 2021 (`Operator`, `external id`, `theoretical occupancy %`), 2022-26.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw

from advisor.model.growing import MISSING
from advisor.model.trace import TraceBuilder
from collectors.api_calls import call_kind, sync_kind
from collectors.kineto_numbers import INVALID, nanoseconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

# So many events at a time become columns: enough for numpy, few enough for the cache.
FLUSH_EVENTS = 2_048
STEP_PREFIX = "ProfilerStep"
_MAX_DURATION_NS = 24 * 3600 * 10**9


def _named(name: str, default: Any = Raw()) -> Any:  # noqa: B008 - an immutable empty value
    return msgspec.field(name=name, default=default)


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that any reader of ours uses; all others are skipped by the decoder."""

    external: int | None = _named("External id", MISSING)
    external_2021: int | None = _named("external id", MISSING)
    correlation: int | None = MISSING
    device: int | None = MISSING
    stream: int | None = MISSING
    registers: int | None = _named("registers per thread", MISSING)
    shared: int | None = _named("shared memory", MISSING)
    occupancy: float | None = _named("est. achieved occupancy %", None)
    occupancy_2021: float | None = _named("theoretical occupancy %", None)
    limits: Raw = _named("occupancy")
    graph: int | None = _named("graph id", MISSING)
    graph_node: int | None = _named("graph node id", MISSING)
    grid: Raw = Raw()
    block: Raw = Raw()
    bytes_: int | None = _named("bytes", MISSING)
    shapes: Raw = _named("Input Dims")
    shapes_2021: Raw = _named("Input dims")
    dtypes: Raw = _named("Input type")
    strides: Raw = _named("Input Strides")
    values: Raw = _named("Concrete Inputs")
    record: int | None = _named("Record function id", MISSING)
    sequence: int | None = _named("Sequence number", MISSING)
    forward: int | None = _named("Fwd thread id", MISSING)
    collective: Raw = _named("Collective name")
    elements_in: int | None = _named("In msg nelems", MISSING)
    elements_out: int | None = _named("Out msg nelems", MISSING)
    dtype: Raw = Raw()
    group: Raw = _named("Process Group Name")
    group_size: int | None = _named("Group size", MISSING)


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One trace event; times stay text until they are turned into integers exactly."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Raw = Raw()
    dur: Raw = Raw()
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args = NO_ARGS


# Category as written → table it feeds.
CATEGORIES: dict[str, str] = {
    "kernel": "kernels",
    "Kernel": "kernels",
    "gpu_memcpy": "copies",
    "Memcpy": "copies",
    "gpu_memset": "copies",
    "Memset": "copies",
    "cpu_op": "ops",
    "Operator": "ops",
    "cuda_runtime": "calls",
    "cuda_driver": "calls",
    "Runtime": "calls",
    "user_annotation": "ranges",
    "gpu_user_annotation": "device_ranges",
    "python_function": "frames",
}


def _fields(*names: str) -> attrgetter[tuple[Any, ...]]:
    return attrgetter(*(f"args.{name}" for name in names))


# All arguments of an event are fetched at once: going through the events per argument costs more.
_PLACE = _fields("device", "stream", "correlation", "external", "external_2021")
_OP = _fields("external", "external_2021", "record", "sequence", "forward")
_OP_TEXTS = _fields("shapes", "shapes_2021", "dtypes", "strides", "values")
_SIZES = _fields("grid", "block")
_KERNEL = _fields("registers", "shared", "graph", "graph_node")
_CALL = _fields("correlation", "external", "external_2021")
_BYTES = _fields("bytes_", "device")
_COMM = _fields("elements_in", "elements_out", "group_size")
_COMM_TEXTS = _fields("collective", "dtype", "group")
_SIZE_COLUMNS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_NUL = b"\0"  # no JSON text holds this byte, so it may separate them
_NAME, _TS, _DUR = attrgetter("name"), attrgetter("ts"), attrgetter("dur")
_PROCESS_THREAD = attrgetter("pid", "tid")


class Collector:
    """Sorts events by table and hands full batches to the builder."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self.events = 0
        self._pending: dict[str, list[Event]] = {table: [] for table in CATEGORIES.values()}
        self._waiting = 0
        self._texts: dict[bytes, list[int]] = {}
        self._sizes: dict[bytes, tuple[int, ...]] = {}
        self._kernels = 0

    def take(self, events: list[Event]) -> None:
        """Accept the events of one chunk."""
        self.events += len(events)
        add = {category: self._pending[table].append for category, table in CATEGORIES.items()}
        find = add.get
        for event in events:
            append = find(event.cat)
            if append is not None:
                append(event)
        self._waiting += len(events)
        if self._waiting >= FLUSH_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Turn everything waiting into columns."""
        kept = {table: _complete(events) for table, events in self._pending.items()}
        self._pending = {table: [] for table in kept}
        self._waiting = 0
        every = [event for events in kept.values() for event in events]
        if not every:
            return
        both = [*map(_TS, every), *map(_DUR, every)]
        times, spans = np.split(nanoseconds(_NUL.join(both).split(_NUL)), 2)
        at = 0
        for table, events in kept.items():
            start, duration = times[at : at + len(events)], spans[at : at + len(events)]
            at += len(events)
            good = (start != INVALID) & (duration >= 0) & (duration <= _MAX_DURATION_NS)
            if not good.all():
                self._excluded(start, duration)
            if good.any():
                batch: dict[str, Any] = {"start_ns": start[good], "duration_ns": duration[good]}
                _WRITERS[table](self, list(compress(events, good.tolist())), batch)

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

    def _names(self, events: list[Event]) -> list[int]:
        return self.builder.texts(map(_NAME, events))

    def _threads(self, events: list[Event]) -> list[int]:
        pairs = list(map(_PROCESS_THREAD, events))
        codes = {pair: self.builder.thread(*pair) for pair in dict.fromkeys(pairs)}
        return [codes[pair] for pair in pairs]

    def _texts_of(self, events: list[Event], fields: attrgetter[Any]) -> Ints:
        """Codes of JSON arguments kept as text, a row each; each combination is read once."""
        known = self._texts
        keys = list(map(_NUL.join, map(fields, events)))
        for key in dict.fromkeys(keys):
            if key not in known:
                known[key] = [self.builder.text(_text(raw)) for raw in key.split(_NUL)]
        return np.array([known[key] for key in keys], dtype=np.int64).T

    def _grids_and_blocks(self, events: list[Event]) -> Ints:
        """Six rows: grid x, y, z, block x, y, z."""
        known = self._sizes
        keys = list(map(_NUL.join, map(_SIZES, events)))
        for key in set(keys).difference(known):
            grid, block = key.split(_NUL)
            known[key] = (*_triple(grid), *_triple(block))
        return np.array([known[key] for key in keys], dtype=np.int64).T


def _text(raw: bytes) -> str | None:
    """A JSON value as text: a string as itself, anything else on one line, nothing as None."""
    if not raw or raw == b"null":
        return None
    if raw.startswith(b'"'):
        return str(msgspec.json.decode(raw))
    return msgspec.json.format(raw, indent=0).decode(errors="replace")


def _complete(events: list[Event]) -> list[Event]:
    return [event for event in events if event.ph == "X"]


def _ints(events: list[Event], fields: attrgetter[Any]) -> Iterator[Ints]:
    """Integer arguments, a column each."""
    for values in zip(*map(fields, events), strict=True):
        try:
            yield np.array(values, dtype=np.int64)
        except (TypeError, OverflowError):  # a null, or a number that is no id of ours
            yield np.array([v if _is_int64(v) else MISSING for v in values], dtype=np.int64)


def _is_int64(value: int | None) -> bool:
    return value is not None and -(2**63) <= value < 2**63


def _either(new: Ints, old: Ints) -> Ints:
    """The argument under its new spelling, else under that of 2021."""
    return np.where(new == MISSING, old, new)


def _triple(raw: bytes) -> tuple[int, int, int]:
    try:
        x, y, z = msgspec.json.decode(raw, type=tuple[int, int, int])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return MISSING, MISSING, MISSING
    return x, y, z


def _fractions(events: list[Event]) -> NDArray[np.float64]:
    """Kineto's occupancy in percent, which was called "theoretical" in 2021 though it never was."""
    values = [
        new if new is not None else old
        for new, old in map(attrgetter("args.occupancy", "args.occupancy_2021"), events)
    ]
    return np.array(values, dtype=np.float64) / 100


def _places(events: list[Event], batch: dict[str, Any]) -> None:
    """Device and stream: from the arguments, else from the row the event is drawn in."""
    device, stream, correlation, new, old = _ints(events, _PLACE)
    for index in np.flatnonzero((device == MISSING) | (stream == MISSING)):
        event = events[index]
        if device[index] == MISSING and isinstance(event.pid, int):
            device[index] = event.pid
        if stream[index] == MISSING and isinstance(event.tid, int):
            stream[index] = event.tid
    batch["device"], batch["stream"] = device, stream
    batch["correlation"], batch["external_id"] = correlation, _either(new, old)


def _kernels(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    batch["name"] = self._names(events)
    _places(events, batch)
    batch |= dict(zip(_SIZE_COLUMNS, self._grids_and_blocks(events), strict=True))
    registers, shared, graph, node = _ints(events, _KERNEL)
    batch["registers_per_thread"], batch["shared_bytes"] = registers, shared
    batch["occupancy_estimated"] = _fractions(events)
    batch["occupancy_limiter"] = [self.builder.text(_limiter(e.args.limits)) for e in events]
    batch["graph_id"], batch["graph_node_id"] = _zero_is_absent(graph), _zero_is_absent(node)
    self.builder.add("kernels", batch)
    _comms(self, events)
    self._kernels += len(events)


def _limiter(limits: Raw) -> str | None:
    raw = bytes(limits)
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=_Limits).limitingFactors or None
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


class _Limits(msgspec.Struct):
    limitingFactors: str = ""  # noqa: N815 - the file's spelling


def _zero_is_absent(ids: Ints) -> Ints:
    """CUPTI writes graph id 0 for a kernel that is in no graph."""
    return np.where(ids == 0, MISSING, ids)


def _comms(self: Collector, events: list[Event]) -> None:
    rows = [i for i, event in enumerate(events) if bytes(event.args.collective)]
    if rows:
        chosen = [events[i] for i in rows]
        batch: dict[str, Any] = {"kernel": np.array(rows) + self._kernels}
        batch["elements_in"], batch["elements_out"], batch["group_size"] = _ints(chosen, _COMM)
        batch["collective"], batch["dtype"], batch["group"] = self._texts_of(chosen, _COMM_TEXTS)
        self.builder.add("comms", batch)


def _copies(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    batch["name"] = self._names(events)
    _places(events, batch)
    text = self.builder.text
    sets = ["memset" in event.cat.lower() for event in events]
    batch["kind"] = [text("set" if is_set else "copy") for is_set in sets]
    batch["direction"] = [
        text(None if is_set else _direction(event.name))
        for event, is_set in zip(events, sets, strict=True)
    ]
    batch["bytes"], _ = _ints(events, _BYTES)
    self.builder.add("copies", batch)


def _direction(name: str) -> str | None:
    """`Memcpy HtoD (Pinned -> Device)` → HtoD."""
    words = name.split()
    return words[1] if len(words) > 1 and "to" in words[1] else None


def _ops(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    """Operators; steps that files before 2022 list among them become ranges."""
    steps = [i for i, e in enumerate(events) if e.name.startswith(STEP_PREFIX)]
    if steps:
        apart = {name: values[steps] for name, values in batch.items()}
        _ranges(self, [events[i] for i in steps], apart)
        keep = np.ones(len(events), dtype=bool)
        keep[steps] = False
        batch = {name: values[keep] for name, values in batch.items()}
        events = list(compress(events, keep.tolist()))
        if not events:
            return
    batch["name"] = self._names(events)
    batch["thread"] = self._threads(events)
    new, old, record, sequence, forward = _ints(events, _OP)
    batch["external_id"], batch["record_function_id"] = _either(new, old), record
    batch["sequence_number"], batch["forward_thread"] = sequence, forward
    shapes, shapes_2021, dtypes, strides, values = self._texts_of(events, _OP_TEXTS)
    batch["input_shapes"] = np.maximum(shapes, shapes_2021)  # -1 where absent
    batch["input_dtypes"], batch["input_strides"], batch["input_values"] = dtypes, strides, values
    self.builder.add("ops", batch)


def _calls(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    """API calls: synchronising ones to `syncs`, all others to `launches`."""
    names = [event.name for event in events]
    kinds = {name: (sync_kind(name), call_kind(name)) for name in set(names)}
    batch["name"] = np.array(self._names(events))
    batch["thread"] = np.array(self._threads(events))
    batch["correlation"], new, old = _ints(events, _CALL)
    text = self.builder.text
    is_sync = np.array([kinds[name][0] is not None for name in names])
    sync = {column: values[is_sync] for column, values in batch.items()}
    sync["kind"] = [text(kinds[name][0]) for name in names if kinds[name][0] is not None]
    batch["external_id"] = _either(new, old)
    launch = {column: values[~is_sync] for column, values in batch.items()}
    launch["kind"] = [text(kinds[name][1]) for name in names if kinds[name][0] is None]
    self.builder.add("syncs", sync)
    self.builder.add("launches", launch)


def _ranges(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    _named_spans(self, events, batch, "host")


def _device_ranges(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    _named_spans(self, events, batch, "device")


def _named_spans(self: Collector, events: list[Event], batch: dict[str, Any], side: str) -> None:
    batch["name"] = self._names(events)
    batch["thread"] = self._threads(events)
    batch["side"] = [self.builder.text(side)] * len(events)
    self.builder.add("ranges", batch)


def _frames(self: Collector, events: list[Event], batch: dict[str, Any]) -> None:
    batch["name"] = self._names(events)
    batch["thread"] = self._threads(events)
    self.builder.add("frames", batch)


Writer: TypeAlias = "Callable[[Collector, list[Event], dict[str, Any]], None]"
_WRITERS: dict[str, Writer] = {
    "kernels": _kernels,
    "copies": _copies,
    "ops": _ops,
    "calls": _calls,
    "ranges": _ranges,
    "device_ranges": _device_ranges,
    "frames": _frames,
}
