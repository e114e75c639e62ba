"""The two processes that read a large file: this one the first part, a child the second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import numpy as np

from advisor.model.trace_columns import TraceColumns
from collectors.bytes_in import Source
from collectors.kineto_part import LENGTH, Ended, TableHead, collect
from collectors.kineto_split import Before, place_to_split
from collectors.kineto_stream import EventStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_HEADER_BYTES = 1 << 30
# Isolated: neither the working directory nor the environment may put modules before ours.
_START = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from collectors.kineto_part import main; main(sys.argv[1], sys.argv[2])"
)


class _ChildFailedError(Exception):
    """The child ended early or sent nonsense: the file is read by one process instead."""


class _Child:
    """The process that reads the second part; ended with the block, whatever happens."""

    def __init__(self, source: Source, at: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, str(source.path.absolute()), str(at)]
            + [entry for entry in sys.path if entry],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._out = cast("BinaryIO", self._process.stdout)

    def __enter__(self) -> _Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()

    def ended(self) -> Ended:
        """Its header, once it has read its part."""
        (length,) = LENGTH.unpack(self._bytes(LENGTH.size))
        if length > _MOST_HEADER_BYTES:
            raise _ChildFailedError
        try:
            return msgspec.msgpack.decode(self._bytes(length), type=Ended)
        except msgspec.DecodeError as error:
            raise _ChildFailedError from error

    def columns(self, head: TableHead) -> Iterator[tuple[str, NDArray[Any]]]:
        """The columns of the next table."""
        for name, kind in head.columns:
            values = np.empty(head.rows, dtype=np.dtype(kind))
            self._fill(values.data.cast("B"))
            yield name, values

    def _bytes(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, target: memoryview) -> None:
        filled = 0
        while filled < len(target):
            got = cast("Any", self._out).readinto(target[filled:])
            if not got:
                raise _ChildFailedError
            filled += got


def read_by_two(source: Source, columns: TraceColumns) -> tuple[EventStream, Ended] | None:
    """Read `source` with a child; None (and `columns` of no use) where one process has to do it.

    That is: a small file, a single processor, or damage at the cut.
    """
    at = place_to_split(source)
    if at is None or not sys.executable or _processors() < 2:
        return None
    first = Before(source.path, at)
    with suppress(_ChildFailedError), _Child(source, at) as child:
        stream = EventStream(first)
        mine = collect(first, stream, columns)
        if not first.found:
            return stream, mine
        theirs = child.ended()
        if mine.whole or mine.dropped_bytes or mine.truncated or _lost(mine) or _lost(theirs):
            return None
        columns.absorb(theirs.labels, _tables(child, theirs.tables))
        if theirs.whole:
            stream.describe(theirs.tail)
        return stream, _joined(mine, theirs)
    return None


def _lost(part: Ended) -> bool:
    """Events that could not be read: the file may be damaged, or the cut inside one of them."""
    return "event_dropped" in part.damage.counts


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tables(
    child: _Child, heads: list[TableHead]
) -> Iterator[tuple[str, int, Iterator[tuple[str, NDArray[Any]]]]]:
    for head in heads:
        yield head.name, head.rows, child.columns(head)


def _joined(mine: Ended, theirs: Ended) -> Ended:
    damage = mine.damage
    for kind, count in theirs.damage.counts.items():
        damage.note(kind, theirs.damage.first[kind], count)
    return Ended(
        events=mine.events + theirs.events,
        whole=theirs.whole,
        dropped_bytes=theirs.dropped_bytes,
        truncated=theirs.truncated,
        tail=b"",
        damage=damage,
    )
