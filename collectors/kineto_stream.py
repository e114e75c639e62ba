"""The events of a Kineto JSON file, chunk by chunk, whatever its layout, damage or size.

A chunk is cut at the last place in its tail that looks like a border between two events. Cutting
inside a string or a nested object leaves JSON that cannot be decoded, so a chunk that decodes was
cut rightly; one that does not is scanned exactly (strings and brackets) and, if it is damaged
rather than badly cut, repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from advisor.errors import UnreadableError
from collectors.bytes_in import Source
from collectors.kineto_structs import FAILURES, Event, EventDecoder

MAX_METADATA_BYTES = 32 << 20
# No honest event is this long; beyond it a quote must be missing.
RESYNC_BYTES = 16 << 20
# An event with more brackets and strings than this is none; following it would take long.
_MOST_TOKENS = 1 << 21
# Objects taken from a buffer at a time: the places of millions of empty ones would fill memory.
_MOST_SPANS = 1 << 16
# A file is given up where so much was unreadable, and it is most of what was read.
_MOST_LOST_BYTES, _MOST_LOST_EVENTS = 64 << 20, 20_000
_TAIL_BYTES = (1 << 11, 1 << 16)
_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\\]+"\s*:)')
# Where nothing proves a cut, only what begins as Kineto's events do is taken for one.
EVENT_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat)"\s*:)')
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Escapes are counted: the expression keeps its state for every one of them.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*){0,%d}"' % (1 << 18)
_TOKEN = re.compile(_STRING + rb'|[{}\[\]"]', re.DOTALL)
_STRING_OR_NUMBER = re.compile(
    _STRING + rb"|-?\b(?:nan|inf|infinity)\b|-?1\.#\w+", re.DOTALL | re.IGNORECASE
)
# Half of a surrogate pair is no character: Python writes one for a byte that was no UTF-8.
_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rb'\\(?:(["\\/bfnrt]|%s\\%s|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(%s|%s)|(.?))'
    % (_HIGH, _LOW, _HIGH, _LOW),
    re.DOTALL,
)
_END = re.compile(rb'\s*(?:,\s*"|\}|\Z)')
_LOST_QUOTE = re.compile(rb'(?<!\\)\\"(?=\s*(?:,\s*"[^"\\]*"\s*:|\}))')
_CONTROL = re.compile(rb"[\x00-\x1f]")


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
    """Iterate to get lists of events; `metadata` and `damage` are complete afterwards.

    `whole` is False if the array never ended; `dropped_bytes` then counts what followed the last
    complete event. With `inside` the source begins within the array, between two events; what
    follows the array is then kept as `tail`, to `describe` the stream of the beginning.
    """

    def __init__(self, source: Source, *, inside: bool = False) -> None:
        self.decoder = EventDecoder()
        self.tail = b""
        self._inside = inside
        self.metadata: dict[str, Any] = {}
        self.damage = Damage()
        self.dropped_bytes = 0
        self.whole = False
        self._source = source
        self._position = 0
        self._head = b""
        self._bare_array = False
        self._scan_from = 0
        self._read_events = 0
        self._lost_bytes = self._lost_events = 0

    def __iter__(self) -> Iterator[list[Event]]:
        chunks = self._source.chunks()
        buffer = b"" if self._inside else self._open(chunks)
        for chunk in chunks:
            events, used = self._next(buffer)
            self._read_events += len(events)
            yield events
            buffer = buffer[used:] + chunk
            if self.whole:
                break
        else:
            used = 1
            while used and not self.whole:
                events, used = self._exactly(buffer, final=True)
                yield events
                buffer = buffer[used:]
        if self.whole:
            self._finish(buffer, chunks)
        else:
            self.dropped_bytes = len(buffer)
            self.metadata = _metadata(self._head + b"]}") or {}

    def _next(self, buffer: bytes) -> tuple[list[Event], int]:
        """(events, bytes used) of a buffer that more follows; nothing if it should grow first."""
        cut = _last_border(buffer)
        if cut is not None:
            decoded = self.decoder.decode(buffer[: cut[0]])
            if decoded is not None:
                self._used(cut[1])
                return decoded, cut[1]
        if len(buffer) < self._scan_from or (cut is None and len(buffer) < RESYNC_BYTES):
            return [], 0
        too_long = len(buffer) >= RESYNC_BYTES
        events, used = self._exactly(buffer, final=too_long)
        if too_long and not used:
            # Neither an event nor a border in all of it: drop it, or memory would have no bound.
            self.damage.note("event_dropped", self._position)
            used = len(buffer) - _TAIL_BYTES[-1]
            self._lose(used)
            self._used(used)
        return events, used

    def _lose(self, size: int, events: int = 1) -> None:
        """Count what could not be read; raises `UnreadableError` where that is most of the file."""
        self._lost_bytes += size
        self._lost_events += events
        bytes_lost = self._lost_bytes > max(_MOST_LOST_BYTES, self._position // 2)
        if bytes_lost or self._lost_events > max(_MOST_LOST_EVENTS, self._read_events):
            where = min(self.damage.first.values(), default=self._position)
            raise UnreadableError(
                "is damaged beyond use",
                where=str(self._source.path),
                why=f"most of its events cannot be read, the first at byte {where}",
                remedy="record or copy it again",
            )

    def _used(self, size: int) -> None:
        self._position += size
        self._scan_from = 0

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
                self._head = buffer[: found.end()].removeprefix(b"\xef\xbb\xbf")
                self._position = found.end()
                return buffer[found.end() :]
            if len(buffer) > MAX_METADATA_BYTES:
                break
        raise UnreadableError(
            "has no event array", where=str(self._source.path), remedy="is it a Kineto trace?"
        )

    def _exactly(self, buffer: bytes, *, final: bool) -> tuple[list[Event], int]:
        """(events, bytes used), found by counting brackets outside strings.

        With `final`, a buffer in which no event ever closes (a quote went missing) is cut at
        whatever looks like a border.
        """
        spans, behind_end = _spans(buffer)
        if behind_end is not None and not _END.match(buffer, behind_end):
            behind_end = None  # a bracket that only a missing quote made look like the end
        if not spans and behind_end is None:
            if not final:
                # Scanning again before the buffer has doubled would cost quadratic time.
                self._scan_from = 2 * len(buffer)
                return [], 0
            spans = _pieces(buffer)
        if not spans and behind_end is None:
            return [], 0
        self.whole = behind_end is not None
        events = self.decoder.decode(buffer[spans[0][0] : spans[-1][1]]) if spans else []
        if events is None:
            events = [
                event
                for start, end in spans
                for event in self._salvaged(buffer[start:end], self._position + start)
            ]
        used = behind_end if behind_end is not None else spans[-1][1]
        self._used(used)
        # A border guessed inside an event leaves objects that are no events.
        kept = [event for event in events if event.ph]
        if len(kept) < len(events):
            self._lose(0, len(events) - len(kept))
        return kept, used

    def _salvaged(self, text: bytes, position: int) -> list[Event]:
        """The events in a piece of the array; more than one where a missing quote hid a border."""
        decoded = self.decoder.decode(text)
        if decoded is None:
            decoded = self.decoder.decode(repair(text, Damage(), 0))
            if decoded is not None:
                repair(text, self.damage, position)
        if decoded is not None:
            return decoded
        pieces = _pieces(text + b',{"ph":') if EVENT_BORDER.search(text) else []
        if len(pieces) > 1:
            return [e for a, b in pieces for e in self._salvaged(text[a:b], position + a)]
        event = self._leniently(repair(_LOST_QUOTE.sub(rb"\\\\" + b'"', text), Damage(), 0))
        self.damage.note("event_dropped" if event is None else "event_repaired", position)
        if event is None:
            self._lose(len(text))
            return []
        return [event]

    def _leniently(self, text: bytes) -> Event | None:
        """An event without those arguments that break the schema; None if the rest does too."""
        try:
            raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except FAILURES:
            return None
        args = raw.pop("args", None)
        try:
            fields = msgspec.json.decode(args, type=dict[str, msgspec.Raw]) if args else {}
        except FAILURES:
            fields = {}
        kept = {
            name: value
            for name, value in fields.items()
            if self.decoder.decode(msgspec.json.encode({**raw, "args": {name: value}})) is not None
        }
        found = self.decoder.decode(msgspec.json.encode({**raw, "args": kept}))
        return found[0] if found else None

    def _finish(self, tail: bytes, chunks: Iterator[bytes]) -> None:
        """Read the metadata behind the array; `tail` begins behind its `]`."""
        parts, size = [tail], len(tail)
        for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_METADATA_BYTES:
                self.damage.note("metadata_skipped", self._position)
                break
        self.tail = b"".join(parts)
        if not self._inside:
            self.describe(self.tail)

    def describe(self, tail: bytes) -> None:
        """Read the metadata around the array; `tail` is what follows its `]`."""
        if self._bare_array:
            return
        found = _metadata(self._head + b"]" + tail)
        if found is None:
            self.damage.note("metadata_skipped", self._position)
            found = _metadata(self._head + b"]}")
        self.metadata = found or {}


def repair(text: bytes, damage: Damage, position: int) -> bytes:
    """Make bad escapes, control characters, NaN, infinities and invalid UTF-8 valid, counted."""

    def fix(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if not token.startswith(b'"'):
            damage.note("number_not_finite", position)
            return b"null"
        fixed, bad, halves = _escapes(token)
        damage.note("escape_repaired", position, bad)
        damage.note("utf8_repaired", position, halves)
        fixed, controls = _CONTROL.subn(lambda m: b"\\u%04x" % m.group()[0], fixed)
        damage.note("control_character_repaired", position, controls)
        return fixed

    try:
        text.decode()
    except UnicodeDecodeError:
        damage.note("utf8_repaired", position)
        text = text.decode("utf-8", "replace").encode()
    return _STRING_OR_NUMBER.sub(fix, text)


def _escapes(token: bytes) -> tuple[bytes, int, int]:
    """(a string with escapes that JSON knows, how many escaped nothing, halves of characters)."""
    bad = halves = 0

    def fix(match: re.Match[bytes]) -> bytes:
        nonlocal bad, halves
        if match.group(1) is not None:
            return match.group()
        if match.group(2) is not None:
            halves += 1
            return b"\\ufffd"
        bad += 1
        return b"\\\\" + match.group(3)

    return _ESCAPE.sub(fix, token), bad, halves


def _last_border(buffer: bytes) -> tuple[int, int] | None:
    """(end of an event, start of the next) at the last likely border in the buffer's tail."""
    for tail in _TAIL_BYTES:
        found = None
        for found in _BORDER.finditer(buffer, max(0, len(buffer) - tail)):  # noqa: B007
            pass
        if found is not None:
            return found.start() + 1, found.end()
    return None


def _spans(buffer: bytes) -> tuple[list[tuple[int, int]], int | None]:
    """Complete events of an array's inside as (start, end); the place behind its `]`, if there.

    Stops early after `_MOST_SPANS` events, and at one of more than `_MOST_TOKENS`.
    """
    spans: list[tuple[int, int]] = []
    depth = start = tokens = 0
    for token in _TOKEN.finditer(buffer):
        tokens += 1
        if tokens > _MOST_TOKENS:
            break
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
                tokens = 0
                if len(spans) == _MOST_SPANS:
                    break
        elif character == b'"':
            break  # a string that does not end in this buffer
    return spans, None


def _pieces(text: bytes) -> list[tuple[int, int]]:
    """What lies before each guessed border, inside a string or not."""
    spans, start = [], 0
    for border in EVENT_BORDER.finditer(text):
        spans.append((start, border.start() + 1))
        start = border.end()
    return spans


def _metadata(text: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except FAILURES:
        try:
            found = msgspec.json.decode(repair(text, Damage(), 0))
        except FAILURES:
            return None
    return found if isinstance(found, dict) else None
