"""The events of a Kineto JSON file, chunk by chunk, whatever its layout, damage or size.

A chunk is cut at the last place in its tail that looks like a border between two events. Cutting inside a string
or a nested object leaves JSON that cannot be decoded, so a chunk that decodes was cut rightly; one that does not is
scanned exactly (strings and brackets) and, if it is damaged rather than badly cut, repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from advisor.errors import UnreadableError
from collectors.bytes_in import Source
from collectors.kineto_events import Event

MAX_EVENT_BYTES = 64 << 20
MAX_METADATA_BYTES = 32 << 20
_TAIL_BYTES = 1 << 16
_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\\]+"\s*:)')
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(_STRING + rb'|[{}\[\]"]', re.DOTALL)
_STRING_OR_NUMBER = re.compile(
    _STRING + rb"|-?\b(?:nan|inf|infinity)\b|-?1\.#\w+", re.DOTALL | re.IGNORECASE
)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.?))', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_FAILURES = (msgspec.DecodeError, msgspec.ValidationError, RecursionError)
_events = msgspec.json.Decoder(list[Event], strict=False)


@dataclass
class Damage:
    """What had to be repaired or given up, counted; the first position of each kind is kept."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, position: int, count: int = 1) -> None:
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            self.first.setdefault(kind, position)


class EventStream:
    """Iterate to get lists of events; afterwards `metadata`, `damage` and `dropped_bytes` are complete."""

    def __init__(self, source: Source) -> None:
        self.metadata: dict[str, Any] = {}
        self.damage = Damage()
        self.dropped_bytes = 0
        self.whole = True
        self._source = source
        self._position = 0
        self._head = b""
        self._bare_array = False

    def __iter__(self) -> Iterator[list[Event]]:
        chunks = self._source.chunks()
        buffer = self._open(chunks)
        for chunk in chunks:
            cut = _last_border(buffer)
            if cut is not None:
                decoded = _decode(buffer[: cut[0]])
                if decoded is not None:
                    yield decoded
                    self._position += cut[1]
                    buffer = buffer[cut[1] :] + chunk
                    continue
                events, used, ended = self._exactly(buffer)
                yield events
                if ended:
                    self._finish(buffer[used:] + chunk, chunks)
                    return
                buffer = buffer[used:]
            buffer += chunk
            if len(buffer) > MAX_EVENT_BYTES:
                events, used, ended = self._exactly(buffer)
                yield events
                buffer = buffer[used:]
                if ended:
                    self._finish(buffer, chunks)
                    return
                if len(buffer) > MAX_EVENT_BYTES:
                    raise UnreadableError(
                        f"one event is longer than {MAX_EVENT_BYTES >> 20} MiB",
                        where=f"{self._source.path}:{self._position}",
                    )
        events, used, ended = self._exactly(buffer)
        yield events
        if ended:
            self._finish(buffer[used:], iter(()))
        else:
            self.whole = False
            self.dropped_bytes = len(buffer) - used
            self.metadata = _metadata(self._head + b"]}") or {}

    def _open(self, chunks: Iterator[bytes]) -> bytes:
        """Read to the start of the event array; returns the bytes behind its `[`."""
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text.startswith(b"["):
                self._bare_array = True
                self._position = len(buffer) - len(text) + 1
                return text[1:]
            found = _ARRAY.search(buffer)
            if found:
                self._head = buffer[: found.end()]
                self._position = found.end()
                return buffer[found.end() :]
            if len(buffer) > MAX_METADATA_BYTES:
                break
        raise UnreadableError(
            "has no event array", where=str(self._source.path), remedy="is it a Kineto trace?"
        )

    def _exactly(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        """(events, bytes used, whether the array ended): decode what is complete, repairing or dropping single events."""
        spans, ended_at = _spans(buffer)
        if not spans:
            self._position += ended_at or 0
            return [], ended_at or 0, ended_at is not None
        events = _decode(buffer[spans[0][0] : spans[-1][1]])
        if events is None:
            events = []
            for start, end in spans:
                event = self._repaired(buffer[start:end], self._position + start)
                if event is not None:
                    events.append(event)
        used = spans[-1][1] if ended_at is None else ended_at
        self._position += used
        return events, used, ended_at is not None

    def _repaired(self, text: bytes, position: int) -> Event | None:
        decoded = _decode(text)
        if decoded:
            return decoded[0]
        fixed = repair(text, self.damage, position)
        decoded = _decode(fixed)
        if decoded:
            return decoded[0]
        event = _leniently(fixed)
        self.damage.note("event_dropped" if event is None else "field_dropped", position)
        return event

    def _finish(self, tail: bytes, chunks: Iterator[bytes]) -> None:
        """Read the metadata behind the array; `tail` begins behind its `]`."""
        parts, size = [tail], len(tail)
        for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_METADATA_BYTES:
                self.damage.note("metadata_skipped", self._position)
                break
        if self._bare_array:
            return
        whole = self._head + b"]" + b"".join(parts)
        found = _metadata(whole)
        if found is None:
            self.damage.note("metadata_skipped", self._position)
            found = _metadata(self._head + b"]}")
        self.metadata = found or {}


def repair(text: bytes, damage: Damage, position: int) -> bytes:
    """JSON text with bad escapes, control characters, NaN, infinities and invalid UTF-8 made valid, each counted."""

    def fix(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if not token.startswith(b'"'):
            damage.note("number_not_finite", position)
            return b"null"
        fixed, bad = _escapes(token)
        damage.note("escape_repaired", position, bad)
        fixed, controls = _CONTROL.subn(lambda m: b"\\u%04x" % m.group()[0], fixed)
        damage.note("control_character_repaired", position, controls)
        return fixed

    try:
        text.decode()
    except UnicodeDecodeError:
        damage.note("utf8_repaired", position)
        text = text.decode("utf-8", "replace").encode()
    return _STRING_OR_NUMBER.sub(fix, text)


def _escapes(token: bytes) -> tuple[bytes, int]:
    bad = 0

    def fix(match: re.Match[bytes]) -> bytes:
        nonlocal bad
        if match.group(1) is not None:
            return match.group()
        bad += 1
        return b"\\\\" + match.group(2)

    return _BAD_ESCAPE.sub(fix, token), bad


def _last_border(buffer: bytes) -> tuple[int, int] | None:
    """(end of an event, start of the next) at the last likely border in the buffer's tail."""
    found = None
    for found in _BORDER.finditer(buffer, max(0, len(buffer) - _TAIL_BYTES)):  # noqa: B007
        pass
    return None if found is None else (found.start() + 1, found.end())


def _decode(body: bytes) -> list[Event] | None:
    try:
        return _events.decode(b"[" + body + b"]")
    except _FAILURES:
        return None


def _spans(buffer: bytes) -> tuple[list[tuple[int, int]], int | None]:
    """Complete events of an array's inside as (start, end), and the place behind the array's `]` if it is there."""
    spans, depth, start = [], 0, 0
    for token in _TOKEN.finditer(buffer):
        character = token.group()
        if character in (b"{", b"["):
            if depth == 0:
                start = token.start()
            depth += 1
        elif character in (b"}", b"]"):
            if depth == 0:
                return spans, token.end()
            depth -= 1
            if depth == 0:
                spans.append((start, token.end()))
        elif character == b'"':
            break  # a string that does not end in this buffer
    return spans, None


def _leniently(text: bytes) -> Event | None:
    """An event whose args break the schema, without the fields that do; None if even the rest does."""
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        args = raw.pop("args", None)
        event = msgspec.json.decode(msgspec.json.encode(raw), type=Event, strict=False)
    except _FAILURES:
        return None
    try:
        fields = msgspec.json.decode(args, type=dict[str, msgspec.Raw]) if args else {}
    except _FAILURES:
        return event
    kept = {}
    for name, value in fields.items():
        one = msgspec.json.encode({"args": {name: value}})
        if _decode(one) is not None:
            kept[name] = value
    raw["args"] = msgspec.Raw(msgspec.json.encode(kept))
    return msgspec.json.decode(msgspec.json.encode(raw), type=Event, strict=False)


def _metadata(text: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except _FAILURES:
        try:
            found = msgspec.json.decode(repair(text, Damage(), 0))
        except _FAILURES:
            return None
    return found if isinstance(found, dict) else None
