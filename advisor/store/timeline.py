"""The timeline of a run as arrays on disk: what a page of any width is drawn from in milliseconds.

A track is one row of the picture: a stream, or what a rank computes, communicates, and communicates
without computing. Its spans are sorted by start and do not overlap within one (track, role) group;
`busy` is the time that the spans of the group before each one take. So the busy time of a group
between two moments is found by two binary searches, however many kernels lie between them.

The directory is a cache: it is written whole beside its place and renamed, and may be deleted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from advisor.errors import InvalidRecordError, UnreadableError
from advisor.model.base import Record, decode, encode
from advisor.store.files import read_bounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

TIMELINE_VERSION = 1
TrackKind = Literal["stream", "compute", "communication", "exposed"]
ARRAYS: tuple[str, ...] = ("start", "duration", "busy", "name", "call")
_MAX_INDEX_BYTES = 64 << 20


class Track(Record, frozen=True, kw_only=True):
    """One row; `stream` is None for what is derived of all streams of a rank."""

    kind: TrackKind
    rank: int
    device: int | None = None
    stream: int | None = None


class Call(Record, frozen=True, kw_only=True):
    """The operator behind a kernel, and the modules around it, as far as they were recorded."""

    op: str
    module: str | None = None


class Group(Record, frozen=True, kw_only=True):
    """The spans [first, last) of all arrays are of this track and role, sorted by start."""

    track: int
    role: str
    first: int
    last: int


class Step(Record, frozen=True, kw_only=True):
    """A step as the host went through it."""

    rank: int
    name: str
    start_ns: int
    end_ns: int


class TimelineIndex(Record, frozen=True, kw_only=True):
    """What the arrays mean; times are ns after the first activity, which was at `origin_ns`."""

    version: int = TIMELINE_VERSION
    origin_ns: int
    length_ns: int
    kernels: int
    tracks: tuple[Track, ...]
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        if self.version != TIMELINE_VERSION:
            raise InvalidRecordError(f"timeline version {self.version} is not {TIMELINE_VERSION}")
        edge = 0
        for group in self.groups:
            if group.first != edge or group.last < edge or not 0 <= group.track < len(self.tracks):
                raise InvalidRecordError("the groups of a timeline do not follow each other")
            edge = group.last


@dataclass(frozen=True)
class Timeline:
    """Index and arrays, which are mapped, not read.

    `name` is a row of `index.names`, `call` one of `index.calls`; -1 is none.
    """

    index: TimelineIndex
    start: Ints
    duration: Ints
    busy: Ints
    name: Ints
    call: Ints


def write_timeline(place: Path, timeline: Timeline) -> None:
    """Write the directory whole or not at all; one that another process wrote meanwhile stands."""
    timeline.index.check()
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".timeline-"))
    try:
        (made / "index.json").write_bytes(encode(timeline.index))
        for name in ARRAYS:
            np.save(made / f"{name}.npy", getattr(timeline, name), allow_pickle=False)
        made.chmod(0o700)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    except OSError as error:
        raise UnreadableError(
            "cannot write the timeline", where=str(place), why=error.strerror or str(error)
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def open_timeline(place: Path) -> Timeline:
    """The timeline of a directory; raises `UnreadableError` or `InvalidRecordError`."""
    path = place / "index.json"
    index = decode(read_bounded(path, _MAX_INDEX_BYTES), TimelineIndex, str(path))
    total = index.groups[-1].last if index.groups else 0
    arrays = [_mapped(place / f"{name}.npy", total) for name in ARRAYS]
    os.utime(place)  # used last: what lies longest unused is dropped first
    return Timeline(index, *arrays)


def _mapped(path: Path, rows: int) -> NDArray[np.int64]:
    try:
        found: NDArray[np.int64] = np.load(path, mmap_mode="r" if rows else None)
    except (OSError, ValueError) as error:
        raise UnreadableError("cannot read the timeline", where=str(path)) from error
    if found.shape != (rows,) or found.dtype.kind != "i":
        raise InvalidRecordError("the arrays of a timeline do not fit its index", where=str(path))
    return found


def drop_oldest(folder: Path, kept: int) -> None:
    """Keep the `kept` timelines of a folder that were used last."""
    found = [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[kept:]:
        shutil.rmtree(path, ignore_errors=True)
