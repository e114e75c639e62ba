"""Bytes in: compression, chunking and limits, in one place for every reader.

`Source` yields decompressed chunks in bounded memory. A compressed file that ends early yields what
could be decompressed and sets `truncated`; a file that expands beyond honest limits is an error.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import zstandard
from isal import isal_zlib
from isal.igzip_lib import IsalError

from advisor.errors import UnreadableError

CHUNK_BYTES = 1 << 17
HEAD_BYTES = 1 << 18
# Damaged compressed data loses what the last read held, so reads are small.
PACKED_BYTES = 1 << 12
MAX_BYTES = 64 << 30
# Deflate cannot exceed 1032:1; profiler JSON stays under 60:1 (one repeated event: 200:1).
MAX_RATIO = 500
RATIO_FREE_BYTES = 64 << 20
_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_GZIP_WINDOW = 31


class Source:
    """A file as decompressed chunks; `truncated` says afterwards why it ended early, if so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = ""
        try:
            if path.is_dir():
                raise UnreadableError(
                    "is a directory", where=str(path), remedy="name a trace file inside it"
                )
            if path.exists() and not path.is_file():
                # Opening a pipe that nobody writes to would wait for ever.
                raise UnreadableError(
                    "is no regular file", where=str(path), remedy="save the trace to a file first"
                )
            self.size_bytes = path.stat().st_size
            with path.open("rb") as file:
                self._magic = file.read(4)
        except OSError as error:
            raise _unreadable(path, error) from error
        if not self.size_bytes:
            raise UnreadableError("is empty", where=str(path), remedy="record the trace again")

    def head(self, size: int = HEAD_BYTES) -> bytes:
        """The first `size` decompressed bytes (fewer if the file is shorter).

        Raises `UnreadableError` if nothing can be decompressed.
        """
        parts, have = [], 0
        source = Source(self.path)
        for chunk in source.chunks():
            parts.append(chunk)
            have += len(chunk)
            if have >= size:
                break
        if not parts and source.truncated:
            raise UnreadableError(
                "cannot be decompressed",
                where=str(self.path),
                why=source.truncated,
                remedy="copy or record it again",
            )
        return b"".join(parts)[:size]

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The content from byte `start` in pieces of about `CHUNK_BYTES`; raises `UnreadableError`.

        Compressed content is decompressed from its beginning all the same.
        """
        skip = 0 if self.packing is None else start
        total = 0
        try:
            for chunk in self._decompressed(start):
                total += len(chunk)
                self._check_size(total)
                if skip:
                    skip, chunk = max(skip - len(chunk), 0), chunk[skip:]  # noqa: PLW2901
                if chunk:
                    yield chunk
        except OSError as error:
            raise _unreadable(self.path, error) from error

    @property
    def packing(self) -> str | None:
        """How the content is compressed; None if it is not."""
        kinds = {_GZIP: "gzip", _ZSTD: "zstd", _ZIP: "zip"}
        return next((kind for magic, kind in kinds.items() if self._magic.startswith(magic)), None)

    def _decompressed(self, start: int) -> Iterator[bytes]:
        if self.packing == "gzip":
            return self._streamed(
                lambda: isal_zlib.decompressobj(_GZIP_WINDOW), cast("type[Exception]", IsalError)
            )
        if self.packing == "zstd":
            return self._streamed(
                lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
            )
        if self.packing == "zip":
            return self._zipped()
        return self._plain(CHUNK_BYTES, start)

    def _plain(self, size: int, start: int = 0) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(size):
                yield chunk

    def _streamed(self, make: Callable[[], Any], failure: type[Exception]) -> Iterator[bytes]:
        """gzip members or zstd frames, one after the other; zero padding behind them is ignored."""
        decoder, whole, begun = make(), True, False
        for packed in self._plain(PACKED_BYTES):
            data = packed
            while data:
                try:
                    out = decoder.decompress(data)
                except failure as error:
                    if not whole or decoder.eof or not begun:
                        self.truncated = f"compressed data is damaged ({error})"
                    return
                begun = True
                if out:
                    yield out
                whole = decoder.eof
                data = decoder.unused_data.lstrip(b"\0") if whole else b""
                if data:
                    decoder, whole = make(), False
            if whole:
                decoder = make()
        if not whole:
            self.truncated = "the compressed file ends early"

    def _zipped(self) -> Iterator[bytes]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = [m for m in archive.infolist() if _counts(m)]
                if len(members) != 1:
                    raise UnreadableError(
                        f"holds {len(members)} files",
                        where=str(self.path),
                        remedy="unpack it and name one trace",
                    )
                with archive.open(members[0]) as file:
                    while chunk := file.read(CHUNK_BYTES):
                        yield chunk
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error) as error:
            raise UnreadableError(
                "is not a readable zip file", where=str(self.path), why=str(error)
            ) from error
        except EOFError:
            self.truncated = "the zip member ends early"

    def _check_size(self, total: int) -> None:
        ratio = total / self.size_bytes
        if total > MAX_BYTES or (total > RATIO_FREE_BYTES and ratio > MAX_RATIO):
            raise UnreadableError(
                f"expands to more than {total >> 20} MiB, {ratio:.0f} times its size",
                where=str(self.path),
                why="no profiler writes such a file",
                remedy="decompress it yourself if you trust it",
            )


def _counts(member: zipfile.ZipInfo) -> bool:
    return not member.is_dir() and not member.filename.startswith("__MACOSX/")


def _unreadable(path: Path, error: OSError) -> UnreadableError:
    return UnreadableError(
        "cannot be read",
        where=str(path),
        why=error.strerror or str(error),
        remedy="give a trace of the PyTorch profiler, plain or compressed, or a CSV of `ncu`",
    )
