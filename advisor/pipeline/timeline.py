"""The trace of a run as a timeline on disk. A program of its own, started with limits by whoever
shows it: a trace is hostile input, and reading a gigabyte takes memory that a server should not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from advisor.errors import EXIT_OK, AdvisorError, UnreadableError
from advisor.model.range_names import STEP_PREFIX
from advisor.model.trace import Trace
from advisor.store.directory import RunDirectory
from advisor.store.timeline import (
    Call,
    Group,
    Step,
    Timeline,
    TimelineIndex,
    Track,
    TrackKind,
    write_timeline,
)
from analyzers.intervals import Spans, gaps, intersect, merge
from analyzers.kernel_roles import classify
from collectors.ranks import read_ranks

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_NONE = -1
_MAX_STEPS = 2_000


class _Part(NamedTuple):
    """Spans of one group, before the groups are put one behind the other; -1 is no name, no call.

    `kernels` is False for copies and memsets, and for what is derived.
    """

    track: Track
    role: str
    start: Ints
    duration: Ints
    name: Ints
    call: Ints
    kernels: bool


class _Labels(NamedTuple):
    """Names of kernels and the calls behind them, numbered as they are met."""

    names: dict[str, int]
    calls: dict[tuple[str, str | None], int]


def timeline_of(traces: Sequence[Trace]) -> Timeline:
    """All ranks on one axis of time, as they were recorded."""
    labels = _Labels({}, {})
    parts: list[_Part] = []
    for trace in traces:
        streams = list(_activities(trace, labels))
        parts += streams
        parts += _derived(trace.info.rank, streams)
    parts.sort(key=lambda part: (part.track.rank, _order(part.track), part.role))
    tracks = tuple(dict.fromkeys(part.track for part in parts))
    ends = np.cumsum([len(part.start) for part in parts]).tolist()
    first = min((int(part.start[0]) for part in parts), default=0)
    last = max((int((part.start + part.duration).max()) for part in parts), default=0)
    index = TimelineIndex(
        origin_ns=first,
        length_ns=last - first,
        kernels=sum(len(trace.kernels) for trace in traces),
        tracks=tracks,
        groups=tuple(
            Group(track=tracks.index(part.track), role=part.role, first=a, last=b)
            for part, (a, b) in zip(parts, pairwise([0, *ends]), strict=True)
        ),
        names=tuple(labels.names),
        calls=tuple(Call(op=op, module=module) for op, module in labels.calls),
        steps=tuple(_steps(traces, first)),
        notes=tuple(f"{w.message} ({w.count})" for t in traces for w in t.warnings),
    )
    busy = [np.cumsum(part.duration) - part.duration for part in parts]
    return Timeline(
        index,
        _joined([part.start - first for part in parts]),
        _joined([part.duration for part in parts]),
        _joined(busy),
        _joined([part.name for part in parts]),
        _joined([part.call for part in parts]),
    )


def _activities(trace: Trace, labels: _Labels) -> Iterable[_Part]:
    """Kernels, copies and memsets of each stream by role."""
    for table, of_copies in ((trace.kernels, False), (trace.copies, True)):
        if not len(table):
            continue
        texts = [str(text) for text in table["name"].cat.categories]
        codes = table["name"].cat.codes.to_numpy()
        number = np.array([labels.names.setdefault(t, len(labels.names)) for t in texts] + [_NONE])
        call = _calls(trace, table, labels.calls)
        roles = ["copy" if of_copies else classify(text).role for text in texts]
        known = {role: place for place, role in enumerate(dict.fromkeys([*roles, "other"]))}
        role = np.array([*(known[r] for r in roles), known["other"]], dtype=np.int64)[codes]
        device, stream = _numbers(table, "device"), _numbers(table, "stream")
        start, duration = table["start_ns"].to_numpy(), table["duration_ns"].to_numpy()
        order = np.lexsort((start, role, stream, device))
        edges = [np.flatnonzero(np.diff(values[order])) + 1 for values in (device, stream, role)]
        for rows in np.split(order, np.unique(np.concatenate(edges))):
            head = rows[0]
            track = Track(
                kind="stream",
                rank=trace.info.rank,
                device=_known(device[head]),
                stream=_known(stream[head]),
            )
            own = (start[rows], duration[rows], number[codes[rows]], call[rows])
            yield _Part(track, list(known)[role[head]], *own, not of_copies)


def _calls(trace: Trace, table: pd.DataFrame, known: dict[tuple[str, str | None], int]) -> Ints:
    """The number of (operator, modules) behind each row of a table, -1 where none is known."""
    row = _numbers(table, "op")
    name, module = trace.ops["name"].cat, trace.ops["module"].cat
    width = len(module.categories) + 1
    pairs = name.codes.to_numpy().astype(np.int64) * width + module.codes.to_numpy() + 1
    keys = np.append(pairs, _NONE)[row]  # -1, no operator, takes the last
    kinds, inverse = np.unique(keys, return_inverse=True)
    numbers = []
    for key in kinds.tolist():
        op, place = divmod(key, width)
        text = str(module.categories[place - 1]) if key >= 0 and place else None
        label = (str(name.categories[op]), text) if key >= 0 else None
        numbers.append(_NONE if label is None else known.setdefault(label, len(known)))
    found: Ints = np.array(numbers, dtype=np.int64)[inverse]
    return found


def _derived(rank: int, parts: Sequence[_Part]) -> Iterable[_Part]:
    """Of one rank: what it computes, what it communicates, and what of that hides behind nothing.

    Ranks of several devices are taken together: a moment is covered if any device computes.
    """
    kernels = [part for part in parts if part.kernels]
    comm = _union([part for part in kernels if part.role == "communication"])
    compute = _union([part for part in kernels if part.role != "communication"])
    exposed = intersect(comm, _outside(compute, comm))
    rows: tuple[tuple[TrackKind, Spans], ...] = (
        ("compute", compute),
        ("communication", comm),
        ("exposed", exposed),
    )
    for kind, spans in rows:
        if len(spans.starts) and len(comm.starts):
            role = "communication" if kind != "compute" else "gemm"
            none = np.full(len(spans.starts), _NONE)
            length = spans.ends - spans.starts
            yield _Part(Track(kind=kind, rank=rank), role, spans.starts, length, none, none, False)


def _union(parts: Sequence[_Part]) -> Spans:
    starts = _joined([part.start for part in parts])
    return merge(starts, starts + _joined([part.duration for part in parts]))


def _outside(spans: Spans, window: Spans) -> Spans:
    """The moments of the window's extent that lie in none of `spans`."""
    if not len(window.starts):
        return window
    low, high = int(window.starts[0]) - 1, int(window.ends[-1]) + 1
    inside = (spans.ends > low) & (spans.starts < high)
    kept = Spans(spans.starts[inside], spans.ends[inside])
    bounded = merge(
        np.concatenate((kept.starts, [low - 1, high])), np.concatenate((kept.ends, [low, high + 1]))
    )
    return gaps(bounded)


def _steps(traces: Sequence[Trace], origin: int) -> Iterable[Step]:
    for trace in traces:
        found = trace.steps(STEP_PREFIX).head(_MAX_STEPS)
        starts = (found["start_ns"].to_numpy() - origin).tolist()
        lengths = found["duration_ns"].to_numpy().tolist()
        for name, start, length in zip(found["name"].astype(str), starts, lengths, strict=True):
            yield Step(rank=trace.info.rank, name=name, start_ns=start, end_ns=start + length)


def _numbers(table: pd.DataFrame, column: str) -> Ints:
    found: Ints = table[column].to_numpy(dtype=np.int64, na_value=_NONE)
    return found


def _known(value: int) -> int | None:
    return None if value == _NONE else int(value)


def _order(track: Track) -> tuple[int, int, int]:
    kinds = ("stream", "compute", "communication", "exposed")
    device, stream = track.device, track.stream
    return (
        kinds.index(track.kind),
        _NONE if device is None else device,
        _NONE if stream is None else stream,
    )


def _joined(arrays: Sequence[NDArray[np.int64] | NDArray[np.int32]]) -> Ints:
    if not arrays:
        return np.zeros(0, dtype=np.int64)
    found: Ints = np.concatenate(arrays).astype(np.int64, copy=False)
    return found


def main(arguments: Sequence[str]) -> int:
    """`RUN PLACE`: write the timeline of a run to a place; an error is one line."""
    try:
        run = RunDirectory.at(Path(arguments[0]))
        files = run.traces()
        if not files:
            raise UnreadableError("the run kept no trace", where=run.id)
        write_timeline(Path(arguments[1]), timeline_of(read_ranks(files)))
    except AdvisorError as error:
        sys.stderr.write(f"{error.line()}\n")
        return error.exit_code
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
