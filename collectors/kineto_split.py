"""Where to cut a large file so that two processes can read it.

Both look for the first border between two events behind the same byte, so they agree without
talking. Strings cannot look like a border (their quotes are escaped), but a list of objects inside
an event can: the first part then ends in the middle of an event, which its reader notices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import zstandard

from collectors.bytes_in import Source
from collectors.kineto_stream import EVENT_BORDER

# A border is looked for in so many bytes; events longer than this are not split.
WINDOW_BYTES = 1 << 20
# Below these sizes a second process costs more than it saves.
_PLAIN_BYTES, _PACKED_BYTES = 48 << 20, 4 << 20
_USUAL_RATIO = 14
# The child starts later, and decompresses the first part without using it.
_FIRST_SHARE_PLAIN, _FIRST_SHARE_PACKED = 0.51, 0.53


class Before(Source):
    """The content up to the first border behind byte `at`; all of it if there is no border."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.found = False
        self._at = at

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Pieces of the content from `start` to the border."""
        position, window = start, b""
        whole = super().chunks(start)
        for chunk in whole:
            lead = max(self._at - position, 0)
            position += len(chunk)
            if chunk[:lead]:
                yield chunk[:lead]
            window += chunk[lead:]
            border = EVENT_BORDER.search(window, 0, WINDOW_BYTES)
            if border:
                self.found = True
                yield window[: border.start() + 1]
                return
            if len(window) >= WINDOW_BYTES:
                break
        if window:
            yield window
        yield from whole


class Behind(Source):
    """The content from behind that border on; nothing if there is none."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.begin = at
        self._at = at

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Pieces of the content behind the border (`start` counts from there: only 0 is of use)."""
        window = b""
        whole = super().chunks(self._at + start)
        for chunk in whole:
            window += chunk
            border = EVENT_BORDER.search(window, 0, WINDOW_BYTES)
            if border:
                self.begin = self._at + border.end()
                yield window[border.end() :]
                yield from whole
                return
            if len(window) >= WINDOW_BYTES:
                return


def place_to_split(source: Source) -> int | None:
    """A byte of the content so that both parts take equally long; None if it is not worth it."""
    if source.packing is None:
        worth = source.size_bytes >= _PLAIN_BYTES
        return int(source.size_bytes * _FIRST_SHARE_PLAIN) if worth else None
    if source.size_bytes < _PACKED_BYTES:
        return None
    return int(_unpacked_bytes(source) * _FIRST_SHARE_PACKED)


def _unpacked_bytes(source: Source) -> int:
    """The size of the content as far as the file says it; a wrong guess only costs balance."""
    if source.packing == "gzip":
        with source.path.open("rb") as file:
            file.seek(-4, 2)
            (low,) = struct.unpack("<I", file.read(4))  # the size modulo 2³²
        while low < source.size_bytes * 2:
            low += 1 << 32
        return int(low)
    if source.packing == "zstd":
        with source.path.open("rb") as file:
            size = zstandard.frame_content_size(file.read(32))
        if size > 0:
            return int(size)
    return source.size_bytes * _USUAL_RATIO
