"""Reading one part of a Kineto file, in this process or, for the second half, in a child.

A child writes to its standard output the length of a header, the header (`Ended`, MessagePack), and
then the columns it names, one after the other, as their bytes.
"""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from advisor.model.trace_columns import TraceColumns
from collectors.bytes_in import Source
from collectors.kineto_columns import Collector
from collectors.kineto_split import Behind
from collectors.kineto_stream import Damage, EventStream

LENGTH = struct.Struct("<Q")


class TableHead(msgspec.Struct):
    """A table that follows: its columns (name, numpy type) in order."""

    name: str
    rows: int
    columns: list[tuple[str, str]]


class Ended(msgspec.Struct):
    """How reading a part ended."""

    events: int
    whole: bool
    dropped_bytes: int
    truncated: str
    tail: bytes
    damage: Damage
    labels: tuple[list[str], list[str], dict[str, tuple[str, int]]] = ([], [], {})
    tables: list[TableHead] = []


def collect(source: Source, stream: EventStream, columns: TraceColumns) -> Ended:
    """Read all events of `stream` into `columns`."""
    collector = Collector(columns, stream.decoder.kind_of)
    with _collection_paused():
        for events in stream:
            collector.take(events)
        collector.flush()
    return Ended(
        events=collector.events,
        whole=stream.whole,
        dropped_bytes=stream.dropped_bytes,
        truncated=source.truncated,
        tail=stream.tail,
        damage=stream.damage,
    )


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Millions of short-lived tuples set off cyclic collection, and none of them is in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def send(ended: Ended, columns: TraceColumns, out: BinaryIO) -> None:
    """Write the header and the columns; each column is forgotten once it is written."""
    tables = {name: columns.taken(name) for name in columns.filled()}
    ended.labels = columns.labels()
    ended.tables = [
        TableHead(name, rows, [(column, values.dtype.str) for column, values in arrays.items()])
        for name, (rows, arrays) in tables.items()
    ]
    header = msgspec.msgpack.encode(ended)
    out.write(LENGTH.pack(len(header)))
    out.write(header)
    for head in ended.tables:
        arrays = tables.pop(head.name)[1]
        for column, _ in head.columns:
            out.write(arrays.pop(column).data.cast("B"))
    out.flush()


def main(path: str, at: str) -> None:
    """Read the part of the file that begins at the first border behind byte `at`."""
    columns = TraceColumns()
    source = Behind(Path(path), int(at))
    ended = collect(source, EventStream(source, inside=True), columns)
    ended.damage.first = {k: place + source.begin for k, place in ended.damage.first.items()}
    send(ended, columns, sys.stdout.buffer)
