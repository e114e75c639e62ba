"""One module per source of traces: bytes in, `Trace` out. `READERS` is the whole list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from advisor.errors import UnreadableError
from advisor.model.trace import Trace
from collectors import kineto, ncu_trace
from collectors.bytes_in import Source


class Reader(NamedTuple):
    """A format: `sniff` looks at the first bytes after decompression, `read` makes the trace."""

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[Path], Trace]


READERS: tuple[Reader, ...] = (
    Reader("kineto", kineto.sniff, kineto.read),
    Reader("ncu", ncu_trace.sniff, ncu_trace.read),
)


# What files that are no trace begin with, what they are then, and what to do ("": record a trace).
_OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"<", "it is a web page", ""),
    (b"\x1f\x8b", "it is compressed twice", "unpack it once"),
    (b"\x28\xb5\x2f\xfd", "it is compressed twice", "unpack it once"),
    (b"PK\x03\x04", "it is compressed twice", "unpack it once"),
    (b"\xff\xfe", "it is UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "it is UTF-16 text", "save it as UTF-8"),
    (b"SQLite format 3", "it is an SQLite database", ""),
)


class UnknownFormatError(UnreadableError):
    """No reader, or more than one, recognises a file."""

    code = "unknown-format"


def read_trace(path: Path) -> Trace:
    """The trace in `path`, by the one reader that knows its content; raises `UnreadableError`."""
    head = Source(path).head()
    matches = [reader for reader in READERS if reader.sniff(head)]
    if len(matches) == 1:
        return matches[0].read(path)
    known = ", ".join(reader.name for reader in matches or READERS)
    if matches:
        raise UnknownFormatError("matches several formats", where=str(path), why=known)
    text = head.lstrip()
    why, remedy = next((other for magic, *other in _OTHERS if text.startswith(magic)), ("", ""))
    raise UnknownFormatError(
        "is no trace this program reads",
        where=str(path),
        why=why or f"its content matches none of: {known}",
        remedy=remedy or "export it with torch.profiler's export_chrome_trace",
    )
