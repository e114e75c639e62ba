"""Inputs of the reading benchmark: recorded traces repeated to any size, ids and times shifted.

Each repetition starts where the one before ended, and every id that events share (correlation,
External id, flow id, Python frame id, …) gets an offset, so that the result is one long valid trace
whose figures are known: so many times those of the parts.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SHIFTED = re.compile(
    rb'"(ts|correlation|External id|id|Ev Idx|Record function id|Sequence number|Python id'
    rb'|Python parent id)": (\d+)(?:\.(\d{3}))?'
)
_EVENTS = re.compile(rb'"traceEvents": \[')
# Names of processes and threads, borders of the window: a trace has them once.
_ONCE = re.compile(rb',?\s*\{\s*"name": "[^"]*", "ph": "[Mi]".*?\n  \}(?=,|\s*$)', re.DOTALL)
_ID_STEP = 1 << 22
_GAP_NS = 1_000_000


class Part(NamedTuple):
    """The events of one trace, cut at every number that shifts."""

    texts: list[bytes]
    is_time: list[bool]
    numbers: list[int]
    first_ns: int
    length_ns: int
    kernels: int
    kernel_time_sum_ns: int


class Tiled(NamedTuple):
    """A written file and what it holds."""

    path: Path
    size_bytes: int
    kernels: int
    kernel_time_sum_ns: int


def tile(sources: list[Path], target: Path, size_bytes: int) -> Tiled:
    """Write about `size_bytes` of `sources`, over and over, to `target`."""
    facts = json.loads((sources[0].parent / "facts.json").read_text())
    texts = [gzip.decompress(path.read_bytes()) for path in sources]
    head = texts[0][: _start(texts[0])]
    parts = [_part(text, facts[path.name]) for text, path in zip(texts, sources, strict=True)]
    kernels = total = written = 0
    with target.open("wb") as file:
        written += file.write(head)
        for index, part in enumerate(_endless(parts)):
            if written >= size_bytes:
                break
            written += file.write(b"," if index else b"")
            written += file.write(_shifted(part, index, written))
            kernels += part.kernels
            total += part.kernel_time_sum_ns
        written += file.write(b'],\n  "traceName": "tiled.json"\n}\n')
    return Tiled(target, written, kernels, total)


def _start(text: bytes) -> int:
    found = _EVENTS.search(text)
    if found is None:
        raise ValueError("a recorded trace has no event array")
    return found.end()


def _part(text: bytes, fact: dict[str, int]) -> Part:
    end = text.rindex(b"]", 0, text.rindex(b'"traceName"'))
    events = _ONCE.sub(b"", text[_start(text) : end])
    texts, is_time, numbers = [], [], []
    at = 0
    for match in _SHIFTED.finditer(events):
        texts.append(events[at : match.start(2)])
        at = match.end()
        time = match[1] == b"ts"
        is_time.append(time)
        numbers.append(int(match[2] + (match[3] or b"000")) if time else int(match[2]))
    texts.append(events[at:])
    times = [n for n, time in zip(numbers, is_time, strict=True) if time]
    return Part(
        texts,
        is_time,
        numbers,
        min(times),
        max(times) - min(times),
        fact["kernels"],
        fact["kernel_time_sum_ns"],
    )


def _shifted(part: Part, index: int, written: int) -> bytes:
    """The events of one repetition; time goes on with the bytes written, which only grow."""
    ids = index * _ID_STEP
    shift = written * 1_000 + _GAP_NS * index - part.first_ns
    pieces = []
    for text, time, number in zip(part.texts, part.is_time, part.numbers, strict=False):
        pieces.append(text)
        if time:
            micros, nanos = divmod(number + shift, 1_000)
            pieces.append(b"%d.%03d" % (micros, nanos))
        else:
            pieces.append(b"%d" % (number + ids))
    pieces.append(part.texts[-1])
    return b"".join(pieces)


def _endless(parts: list[Part]) -> Iterator[Part]:
    while True:
        yield from parts
