"""A window of a timeline as a picture of fixed size, whatever number of kernels lies in it.

Each column of a track is a slice of time; its height is filled from below with the roles in their
order, each as far as its kernels fill the slice. The busy time of a group up to a moment t is
`busy[i] + min(t − start[i], duration[i])`, i the last span that starts before t: one binary search
an edge and group, so the cost is columns × groups × log(kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from advisor.store.timeline import Group, Timeline, Track, TrackKind
from dashboard.roles import GROUPS, group_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Codes: TypeAlias = NDArray[np.uint8]

COLUMNS, LEVELS, BAND_LEVELS = 900, 8, 2
EMPTY, BAND = 0, len(GROUPS) + 1  # codes of a cell; 1 … len(GROUPS) are the role groups
MAX_TRACKS = 32
MAX_NAMED = 120


class Window(NamedTuple):
    """[first, last) in ns after the origin."""

    first_ns: int
    last_ns: int


class Named(NamedTuple):
    """One span, as a click or a pointer finds it."""

    track: int
    role: str
    name: str
    op: str | None
    module: str | None
    start_ns: int
    duration_ns: int


class Picture(NamedTuple):
    """`cells` is [rows, columns] of codes; `tracks` are those shown, from below upwards.

    `named` are the spans where few enough lie in the window to be told one by one; `kernels` is how
    many there are.
    """

    window: Window
    tracks: tuple[int, ...]
    cells: Codes
    named: tuple[Named, ...]
    kernels: int
    banded: bool


def whole(timeline: Timeline) -> Window:
    """All of it; never empty."""
    return Window(0, max(timeline.index.length_ns, 1))


def clipped(timeline: Timeline, first_ns: float, last_ns: float) -> Window:
    """A window inside the timeline, in order and at least a microsecond wide."""
    full = whole(timeline).last_ns
    low, high = sorted((int(first_ns), int(last_ns)))
    low = min(max(low, 0), full - 1)
    return Window(low, max(min(high, full), min(low + 1_000, full)))


def shown_tracks(timeline: Timeline, kinds: Sequence[TrackKind]) -> tuple[int, ...]:
    """The tracks of these kinds, the busiest where there are too many; the first stands on top."""
    found = [i for i, track in enumerate(timeline.index.tracks) if track.kind in kinds]
    if len(found) > MAX_TRACKS:
        busy = dict.fromkeys(found, 0)
        for group in timeline.index.groups:
            if group.track in busy and group.last > group.first:
                last = group.last - 1
                busy[group.track] += int(timeline.busy[last] + timeline.duration[last])
        found = sorted(sorted(found, key=lambda i: -busy[i])[:MAX_TRACKS])
    return tuple(reversed(found))


def picture(
    timeline: Timeline,
    window: Window,
    kinds: Sequence[TrackKind] = ("stream",),
    banded: frozenset[int] | None = None,
) -> Picture:
    """The window as cells; `banded` are the calls (rows of `index.calls`) marked above all."""
    tracks = shown_tracks(timeline, kinds)
    # Whole numbers: of floats, every search would first convert all starts.
    edges = np.linspace(window.first_ns, window.last_ns, COLUMNS + 1).astype(np.int64)
    shares = {track: np.zeros((len(GROUPS), COLUMNS)) for track in tracks}
    inside: list[tuple[Group, int, int]] = []
    for group in timeline.index.groups:
        if group.track not in shares:
            continue
        low, high = rows_within(timeline, group, window)
        if high > low:
            shares[group.track][group_of(group.role)] += _busy_shares(timeline, group, edges)
            inside.append((group, low, high))
    count = sum(high - low for _, low, high in inside)
    rows = [_filled(shares[track]) for track in tracks]
    if banded is not None:
        rows.append(_band(timeline, inside, banded, edges))
    return Picture(
        window=window,
        tracks=tracks,
        cells=np.concatenate(rows) if rows else np.zeros((0, COLUMNS), dtype=np.uint8),
        named=_named(timeline, inside) if count <= MAX_NAMED else (),
        kernels=count,
        banded=banded is not None,
    )


def rows_within(timeline: Timeline, group: Group, window: Window) -> tuple[int, int]:
    """[low, high): the spans of a group that touch the window."""
    starts = timeline.start[group.first : group.last]
    high = int(np.searchsorted(starts, window.last_ns, side="left"))
    low = int(np.searchsorted(starts, window.first_ns, side="right"))
    if low and starts[low - 1] + timeline.duration[group.first + low - 1] > window.first_ns:
        low -= 1
    return group.first + low, group.first + high


def at(timeline: Timeline, track: int, moment_ns: float, reach_ns: float) -> Named | None:
    """The span of a track at a moment, else the nearest within reach; None if there is none."""
    best: tuple[float, Named] | None = None
    for group in timeline.index.groups:
        if group.track != track or group.last == group.first:
            continue
        starts = timeline.start[group.first : group.last]
        place = int(np.searchsorted(starts, int(moment_ns), side="right"))
        for row in (place - 1, place):
            if 0 <= row < len(starts):
                found = _span(timeline, group, group.first + row)
                end = found.start_ns + found.duration_ns
                away = max(found.start_ns - moment_ns, moment_ns - end, 0.0)
                if away <= reach_ns and (best is None or away < best[0]):
                    best = (away, found)
    return best[1] if best else None


def calls_of(timeline: Timeline, ops: frozenset[str], modules: frozenset[str]) -> frozenset[int]:
    """The calls of these operators in these modules."""
    return frozenset(
        place
        for place, call in enumerate(timeline.index.calls)
        if call.op in ops and call.module in modules
    )


def track_name(track: Track, ranks: bool) -> str:
    """`rank 0 · GPU 0 stream 7`, or what a rank does."""
    rank = f"rank {track.rank}"
    if track.kind != "stream":
        words = {"compute": "computes", "communication": "communicates", "exposed": "exposed"}
        return f"{rank} {words[track.kind]}"
    device = "GPU" if track.device is None else f"GPU {track.device}"
    stream = "" if track.stream is None else f" stream {track.stream}"
    return f"{rank} · {device}{stream}" if ranks else f"{device}{stream}"


def _busy_shares(timeline: Timeline, group: Group, edges: Ints) -> NDArray[np.float64]:
    """The share of each slice that the spans of a group fill."""
    rows = slice(group.first, group.last)
    starts = timeline.start[rows]
    place = np.searchsorted(starts, edges, side="right") - 1
    last = np.maximum(place, 0)
    begun = timeline.busy[rows][last] + np.minimum(
        edges - starts[last], timeline.duration[rows][last]
    )
    until = np.where(place >= 0, begun, 0)
    found: NDArray[np.float64] = np.diff(until) / np.maximum(np.diff(edges), 1)
    return found


def _filled(shares: NDArray[np.float64]) -> Codes:
    """Levels of one track, from below; what is there at all is seen in the lowest."""
    tops = np.cumsum(shares, axis=0)
    level = (np.arange(LEVELS) + 0.5)[:, None] / LEVELS
    code = np.sum(level[:, None, :] >= tops[None, :, :], axis=1) + 1
    cells = np.where(level < tops[-1][None, :], code, EMPTY).astype(np.uint8)
    faint = (tops[-1] > 0) & (cells[0] == EMPTY)
    cells[0][faint] = np.argmax(shares, axis=0)[faint] + 1
    gap = np.zeros((2, cells.shape[1]), dtype=np.uint8)
    return np.concatenate((cells, gap))


def _band(
    timeline: Timeline,
    inside: Sequence[tuple[Group, int, int]],
    banded: frozenset[int],
    edges: Ints,
) -> Codes:
    """A row above all tracks, filled wherever a kernel of the chosen calls runs."""
    wanted = np.zeros(len(timeline.index.calls) + 1, dtype=bool)  # the last place serves -1
    wanted[list(banded)] = True
    change = np.zeros(COLUMNS + 1, dtype=np.int64)
    width = (edges[-1] - edges[0]) / COLUMNS
    for _, low, high in inside:
        rows = np.flatnonzero(wanted[timeline.call[low:high]]) + low
        start = timeline.start[rows]
        end = start + timeline.duration[rows]
        columns = [((t - edges[0]) / width).astype(np.int64) for t in (start, end)]
        first, last = (np.clip(column, 0, COLUMNS - 1) for column in columns)
        np.add.at(change, first, 1)
        np.add.at(change, last + 1, -1)
    covered = np.cumsum(change[:-1]) > 0
    row = np.where(covered, BAND, EMPTY).astype(np.uint8)
    return np.repeat(row[None, :], BAND_LEVELS, axis=0)


def _named(timeline: Timeline, inside: Sequence[tuple[Group, int, int]]) -> tuple[Named, ...]:
    return tuple(_span(timeline, group, row) for group, a, b in inside for row in range(a, b))


def _span(timeline: Timeline, group: Group, row: int) -> Named:
    index = timeline.index
    name, call = int(timeline.name[row]), int(timeline.call[row])
    known = index.calls[call] if call >= 0 else None
    return Named(
        track=group.track,
        role=group.role,
        name=index.names[name] if name >= 0 else "",
        op=known.op if known else None,
        module=known.module if known else None,
        start_ns=int(timeline.start[row]),
        duration_ns=int(timeline.duration[row]),
    )
