"""The timeline: arrays on disk, pictures by binary search against counting one by one, lookups."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from dash import no_update
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cli.main import run as command
from advisor.errors import InvalidRecordError, UnreadableError
from advisor.pipeline.timeline import timeline_of
from advisor.store import RunDirectory, RunStore
from advisor.store.timeline import (
    Call,
    Group,
    Timeline,
    TimelineIndex,
    Track,
    drop_oldest,
    open_timeline,
    write_timeline,
)
from analyzers.metrics import trace_metrics
from collectors.ranks import read_ranks
from dashboard.context import Context
from dashboard.figures_timeline import TRACK_LEVELS, axis_unit, timeline, track_at
from dashboard.roles import GROUPS, group_of
from dashboard.timeline_panel import _redraw
from dashboard.timeline_view import (
    BAND,
    COLUMNS,
    EMPTY,
    LEVELS,
    MAX_TRACKS,
    Window,
    at,
    calls_of,
    clipped,
    picture,
    whole,
)
from dashboard.timelines import Timelines
from tests.dashboard.conftest import ROOT

TRACES = ROOT / "sample_traces"
ROLES = ("gemm", "pointwise", "communication")


def timeline_with(groups: Sequence[tuple[int, str, Sequence[tuple[int, int]]]]) -> Timeline:
    """A timeline of (track, role, [(start, duration)]) groups in order."""
    rows = [span for _, _, spans in groups for span in spans]
    edges = np.cumsum([0, *(len(spans) for _, _, spans in groups)]).tolist()
    lengths = [[d for _, d in spans] for _, _, spans in groups]
    busy = [v for own in lengths for v in (np.cumsum(own) - own).tolist()]
    index = TimelineIndex(
        origin_ns=0,
        length_ns=max((s + d for s, d in rows), default=0),
        kernels=len(rows),
        tracks=tuple(
            Track(kind="stream", rank=0, device=0, stream=number)
            for number in range(1 + max((track for track, _, _ in groups), default=0))
        ),
        groups=tuple(
            Group(track=track, role=role, first=edges[i], last=edges[i + 1])
            for i, (track, role, _) in enumerate(groups)
        ),
        names=("k",),
        calls=(Call(op="aten::mul", module="A_0.Norm_1"), Call(op="aten::mul", module="A_0")),
    )
    size = len(rows)
    return Timeline(
        index,
        np.array([s for s, _ in rows], dtype=np.int64),
        np.array([d for _, d in rows], dtype=np.int64),
        np.array(busy, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.arange(size, dtype=np.int64) % 3 - 1,
    )


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Spans that follow each other without overlap."""
    found, now = [], 0
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 900)))):
        found.append((now + gap, length))
        now += gap + length
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(spans(), min_size=1, max_size=3), st.integers(0, 5000), st.integers(1000, 9000))
def test_a_picture_holds_what_counting_finds(
    groups: list[list[tuple[int, int]]], first: int, length: int
) -> None:
    source = timeline_with([(0, role, own) for role, own in zip(ROLES, groups, strict=False)])
    window = Window(first, first + length)
    shown = picture(source, window)
    inside = [
        (s, d, role)
        for role, own in zip(ROLES, groups, strict=False)
        for s, d in own
        if s < window.last_ns and s + d > window.first_ns
    ]
    touched = [span for span in inside if span[1] > 0]
    assert shown.kernels >= len(touched)
    edges = np.linspace(window.first_ns, window.last_ns, COLUMNS + 1).astype(np.int64)
    for column in range(0, COLUMNS, 97):
        low, high = edges[column], edges[column + 1]
        filled = sum(max(0, min(s + d, high) - max(s, low)) for s, d, _ in inside)
        cells = shown.cells[:LEVELS, column] if len(shown.cells) else []
        share = filled / max(high - low, 1)
        levels = int(np.count_nonzero(cells))
        if filled:
            assert abs(levels - min(share, 1) * LEVELS) <= 1
        else:
            assert levels == 0
        present = {GROUPS[code - 1].name for code in set(map(int, cells)) - {EMPTY}}
        own = {GROUPS[group_of(r)].name for s, d, r in inside if s < high and s + d > low}
        assert present <= own


def test_bands_mark_the_calls_of_a_finding() -> None:
    source = timeline_with([(0, "pointwise", [(0, 100), (100, 100), (500, 100), (900, 100)])])
    assert calls_of(source, frozenset({"aten::mul"}), frozenset({"A_0.Norm_1"})) == {0}
    assert calls_of(source, frozenset({"aten::add"}), frozenset({"A_0"})) == set()
    shown = picture(source, whole(source), banded=frozenset({0}))
    marked = np.flatnonzero(shown.cells[-1] == BAND) / COLUMNS * 1000
    assert marked.min() == pytest.approx(100, abs=2)
    assert marked.max() == pytest.approx(200, abs=2)


def test_clicks_find_the_kernel_or_the_nearest() -> None:
    source = timeline_with([(0, "gemm", [(100, 50), (300, 50)]), (1, "gemm", [(0, 1000)])])
    for moment, reach, start in ((120, 0, 100), (290, 20, 300), (160, 20, 100), (220, 20, None)):
        found = at(source, 0, moment, reach)
        assert (None if found is None else found.start_ns) == start
    assert at(source, 7, 120, 100) is None
    tracks = picture(source, whole(source)).tracks
    assert [track_at(tracks, level) for level in (0.5, TRACK_LEVELS + 0.5, 99)] == [1, 0, None]


@given(st.floats(-1e18, 1e18), st.floats(-1e18, 1e18))
def test_any_window_is_clipped_into_the_timeline(first: float, last: float) -> None:
    source = timeline_with([(0, "gemm", [(0, 50_000)])])
    window = clipped(source, first, last)
    assert 0 <= window.first_ns < window.last_ns <= 50_000


def test_of_many_streams_the_busiest_are_shown() -> None:
    groups = [(n, "gemm", [(0, 10 + n)]) for n in range(3 * MAX_TRACKS)]
    shown = picture(timeline_with(groups), Window(0, 1000))
    assert len(shown.tracks) == MAX_TRACKS
    assert min(shown.tracks) == 2 * MAX_TRACKS


def test_an_empty_timeline_is_a_picture_too() -> None:
    source = timeline_with([])
    assert picture(source, whole(source)).kernels == 0
    assert timeline(source, picture(source, whole(source))).layout.height > 0


def test_a_written_timeline_is_read_back_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    source = timeline_with([(0, "gemm", [(0, 5), (9, 2)])])
    place = tmp_path / "t" / "a"
    write_timeline(place, source)
    write_timeline(place, source)
    found = open_timeline(place)
    assert found.index == source.index
    assert found.busy.tolist() == [0, 5]
    np.save(place / "busy.npy", np.zeros(9, dtype=np.int64))
    with pytest.raises(InvalidRecordError, match="do not fit"):
        open_timeline(place)
    np.save(place / "busy.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(UnreadableError):
        open_timeline(place)
    text = json.loads((place / "index.json").read_text())
    text["groups"][0]["first"] = 1
    (place / "index.json").write_text(json.dumps(text))
    with pytest.raises(InvalidRecordError, match="follow"):
        open_timeline(place)
    write_timeline(tmp_path / "t" / "b", source)
    drop_oldest(tmp_path / "t", 1)
    assert len(list((tmp_path / "t").iterdir())) == 1


@pytest.mark.parametrize(
    "names",
    [("unet.eager",), ("llama_prefill.eager",), ("ddp_onebucket.rank0", "ddp_onebucket.rank1")],
)
def test_sums_of_a_real_trace_are_those_of_the_metrics(names: tuple[str, ...]) -> None:
    traces = read_ranks([TRACES / f"{name}.json.gz" for name in names])
    found = timeline_of(traces)
    assert found.index.kernels == sum(len(trace.kernels) for trace in traces)
    sums: dict[tuple[int, str], int] = {}
    for group in found.index.groups:
        track = found.index.tracks[group.track]
        total = int(found.duration[group.first : group.last].sum())
        key = (track.rank, track.kind)
        sums[key] = sums.get(key, 0) + total
    for trace in traces:
        metrics, rank = trace_metrics(trace), trace.info.rank
        if metrics["comm_union_ns"].value:
            assert sums[rank, "communication"] == metrics["comm_union_ns"].value
            assert sums.get((rank, "exposed"), 0) == metrics["exposed_comm_ns"].value
        copies = int(trace.copies["duration_ns"].sum())
        assert sums[rank, "stream"] == metrics["kernel_time_sum_ns"].value + copies


def test_a_million_kernels_are_drawn_in_time() -> None:
    rows = 1_000_000
    starts = np.arange(rows, dtype=np.int64) * 1_000
    busy = np.arange(rows, dtype=np.int64) * 700
    index = TimelineIndex(
        origin_ns=0, length_ns=rows * 1_000, kernels=rows,
        tracks=(Track(kind="stream", rank=0),),
        groups=(Group(track=0, role="gemm", first=0, last=rows),), names=("k",),
        calls=(Call(op="aten::mm"),),
    )  # fmt: skip
    zeros = np.zeros(rows, dtype=np.int64)
    source = Timeline(index, starts, np.full(rows, 700, dtype=np.int64), busy, zeros, zeros)
    took = []
    for first in (0, 10**8, 5 * 10**8, 9 * 10**8):
        begun = time.perf_counter()
        shown = picture(source, clipped(source, first, first + 10**8), banded=frozenset({0}))
        timeline(source, shown).to_json()
        took.append(time.perf_counter() - begun)
    assert shown.kernels == 100_000
    assert sorted(took)[1] < 0.2
    assert axis_unit(source)[1] == "ms"


def test_a_trace_is_read_by_a_child_and_its_failure_is_told(
    run: RunDirectory, tmp_path: Path
) -> None:
    lines = Timelines(tmp_path / "cache")
    assert lines.of(run).kind == "absent"
    run.trace_path.write_bytes((TRACES / "unet.eager.json.gz").read_bytes())
    assert _settled(lines, run) == "ready"
    run.trace_path.write_bytes(b"junk")
    assert _settled(lines, run) == "failed"
    assert "no trace" in lines.of(run).text
    mute = Timelines(tmp_path / "other", build=lambda *_: [sys.executable, "-c", "exit(5)"])
    assert _settled(mute, run) == "failed"
    assert "status 5" in mute.of(run).text
    absent = Timelines(tmp_path / "third", build=lambda *_: ["/no/such/program"])
    assert _settled(absent, run) == "failed"


def _settled(lines: Timelines, run: RunDirectory) -> str:
    until = time.monotonic() + 60
    while lines.of(run).kind == "building" and time.monotonic() < until:
        time.sleep(0.05)
    return lines.of(run).kind


def test_a_resize_before_the_poll_that_draws_does_not_end_the_polling(
    context: Context, store: RunStore
) -> None:
    trace = TRACES / "bert_cudagraph.inductor.json.gz"
    assert command(["analyze", str(trace), "--out", str(store.root / "one")]) == 0
    assert _settled(context.timelines, store.open("one")) == "ready"
    scope = {"run": "one", "kinds": ["stream"]}
    moved = {"autosize": True}
    resized = _redraw(context, scope, None, "timeline-graph", moved, None)
    assert resized == (no_update,) * 5
    *_, words, ended, _ = _redraw(context, scope, None, "timeline-poll", None, None)
    assert "spans" in str(words)
    assert ended is True
