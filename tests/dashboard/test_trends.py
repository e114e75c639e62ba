"""The trend of a metric over commits: its places, what it says of each, and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.model.report import Commit, Metric
from advisor.store import RunStore
from dashboard import trends
from dashboard.access import Access
from dashboard.commits import Point, places
from dashboard.context import Context
from dashboard.figures_run import trend
from tests.builders.run import sample_run
from tests.dashboard.chromium import Served, needs_chromium, opened
from tests.dashboard.test_pages import HOSTILE, page, words
from tests.dashboard.test_server_safety import BASE

OLD = Commit(id="aaaaaaaaaaaa", committed="2026-01-01T00:00:00+00:00", dirty=False)
NEW = Commit(id="bbbbbbbbbbbb", committed="2026-02-01T00:00:00+00:00", dirty=False)
EDITED = replace(OLD, dirty=True)


def made(day: int, value: float, commit: Commit | None, run: str = "") -> Point:
    """A run of a day in March."""
    return Point(f"2026-03-{day:02}T12:00:00+00:00", run or f"run-{day}", value, "ns", commit)


def saved(store: RunStore, day: int, value: int | None, commit: Commit | None) -> str:
    """A run on disk, with or without a time of the step."""
    run = sample_run(store, applied=False, when=datetime(2026, 3, day))
    report = run.report()
    step = Metric(value=value, unit="ns", provenance="measured", definition="d")
    changed = replace(report.workload, commit=commit)
    when = f"2026-03-{day:02}T12:00:00+00:00"
    metrics = report.metrics | {"step_ns": step}
    run.write_report(replace(report, created=when, workload=changed, metrics=metrics))
    return run.id


def test_commits_stand_in_their_order_whenever_they_were_profiled() -> None:
    found = places([made(1, 5.0, NEW), made(2, 9.0, OLD), made(3, 8.0, EDITED)])
    assert [place.label for place in found] == [
        "aaaaaaaaaaaa", "aaaaaaaaaaaa with changes", "bbbbbbbbbbbb",
    ]  # fmt: skip


def test_runs_of_a_commit_are_their_median_but_for_changed_trees() -> None:
    clean = [made(day, value, OLD) for day, value in ((1, 9.0), (2, 1.0), (3, 2.0))]
    edited = [made(4, 7.0, EDITED), made(5, 3.0, EDITED)]
    first, *others = places([*edited, *clean])
    assert (first.middle, first.ends) == (2.0, (1.0, 9.0))
    assert [place.middle for place in others] == [7.0, 3.0], "what changed may differ"
    assert "median of 3 runs" in " ".join(first.lines())


def test_a_commit_without_a_time_stands_by_its_first_run() -> None:
    told = Commit(id="cccccccccccc")
    found = places([made(9, 1.0, None), made(5, 2.0, told), made(12, 3.0, told)])
    assert [place.label for place in found] == ["cccccccccccc", "2026-03-09 12:00:00 UTC"]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 28), st.floats(0, 1e12), st.sampled_from([None, OLD, NEW, EDITED])
        ),
        max_size=30,
    )
)
def test_no_run_is_lost_and_the_median_lies_in_its_spread(
    drawn: list[tuple[int, float, Commit | None]],
) -> None:
    given_points = [made(d, v, c, f"run-{i}") for i, (d, v, c) in enumerate(drawn)]
    found = places(given_points)
    assert sorted(p.run for place in found for p in place.points) == sorted(
        point.run for point in given_points
    )
    assert all(place.ends[0] <= place.middle <= place.ends[1] for place in found)


def test_the_figure_labels_places_by_commit_or_by_time() -> None:
    figure = trend(places([made(1, 5e6, OLD), made(2, 7e6, OLD), made(3, 4e6, NEW)]), "step")
    (line,) = figure.data
    assert list(line.y) == [6.0, 4.0]
    assert list(line.error_y.array) == [1.0, 0.0]
    assert set(figure.layout.xaxis.ticktext) == {"aaaaaaaaaaaa", "bbbbbbbbbbbb"}
    assert "commit aaaaaaaaaaaa, 2026-01-01 00:00:00 UTC" in line.text[0]
    assert "run-1, made 2026-03-01 12:00:00 UTC" in line.text[0]
    by_time = trend(places([made(1, 5e6, None), made(2, 7e6, None)]), "step")
    assert list(by_time.data[0].x) == ["2026-03-01T12:00:00+00:00", "2026-03-02T12:00:00+00:00"]
    assert by_time.layout.xaxis.ticktext is None


def test_labels_have_room_however_many_commits_there_are() -> None:
    many = [made(1, 1e6, Commit(id=f"{n:012x}"), f"run-{n}") for n in range(200)]
    figure = trend(places(many), "step")
    assert 199 in figure.layout.xaxis.tickvals, "the newest is named"
    assert len(figure.layout.xaxis.tickvals) <= 12


def test_hostile_commits_stay_text() -> None:
    commit = Commit(id=HOSTILE, committed=HOSTILE)
    figure = trend(places([made(1, 1e6, commit, HOSTILE), made(2, 1e6, commit)]), "step")
    shown = [*figure.data[0].text, *figure.layout.xaxis.ticktext]
    assert all("<script" not in text and "\u202e" not in text for text in shown)
    assert all(len(text) < 100 for text in figure.layout.xaxis.ticktext)
    assert max(len(text) for text in figure.data[0].text) < 2_000


def test_eager_and_compiled_runs_are_two_lines(context: Context, store: RunStore) -> None:
    ids = [saved(store, day, 1_000_000 * day, OLD) for day in (1, 2, 3)]
    run = store.open(ids[2])
    report = run.report()
    run.write_report(replace(report, workload=replace(report.workload, mode="compile")))
    (series,) = trends.repeated(context)
    assert series.startswith("zoo_models.py:llama_prefill · eager · ")
    assert {p.run for p in trends.points(context, series, "step_ns")} == set(ids[:2])


def test_the_page_lists_commits_and_what_has_no_value(context: Context, store: RunStore) -> None:
    saved(store, 1, 4_000_000, OLD)
    saved(store, 2, None, NEW)
    (series,) = trends.repeated(context)
    text = words(trends.chart(context, series, "step_ns"))
    assert "aaaaaaaaaaaa" in text
    assert "bbbbbbbbbbbb" not in text, "an unknown value is no point"
    run = saved(store, 3, 5_000_000, EDITED)
    assert "source at commit aaaaaaaaaaaa with changes" in page(context, f"/run/{run}")


@pytest.fixture
def served(store: RunStore) -> Iterator[Served]:
    """Runs of two commits behind a real server."""
    for day, commit in ((1, NEW), (2, OLD), (3, OLD), (4, replace(OLD, id="<b>x</b>" * 9))):
        saved(store, day, 1_000_000 * day, commit)
    server = Served(store, "ok", Access())
    yield server
    server.stop()


@needs_chromium
def test_the_trend_in_the_browser(browser: Any, served: Served) -> None:
    with opened(browser) as shown:
        shown.goto(served.url("/"))
        ticks = shown.locator("#trend-chart .xtick text")
        ticks.first.wait_for(state="attached")
        assert "bbbbbbbbbbbb" in ticks.all_text_contents()
        assert ticks.count() == 3
        assert all(tick.is_visible() for tick in ticks.all())
        assert any("<b>x</b>" in text for text in ticks.all_text_contents()), "shown as text"
        point = shown.locator("#trend-chart .point").last
        point.hover(force=True)
        told = shown.locator("#trend-chart .hovertext")
        told.wait_for()
        text = told.text_content()
        assert "commit bbbbbbbbbbbb" in text
        assert "made 2026-03-01" in text


@pytest.mark.parametrize("value", [["a"], {"x": 1}, 5, True])
def test_values_of_other_kinds_are_names_of_nothing(
    client: Callable[..., Any], store: RunStore, value: object
) -> None:
    inputs = [{"id": f"trend-{name}", "property": "value", "value": value}
              for name in ("target", "metric")]  # fmt: skip
    chart: dict[str, Any] = {"output": "trend-chart.children", "inputs": inputs}
    chart |= {"outputs": {"id": "trend-chart", "property": "children"}}
    place = [{"id": "url", "property": "pathname", "value": value}]
    shown = [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}]
    route: dict[str, Any] = {
        "output": "..page.children...title.data..",
        "outputs": shown,
        "inputs": place,
    }
    for asked in (chart, route):
        body = asked | {"changedPropIds": [f"{asked['inputs'][0]['id']}.value"]}
        assert client().post("/_dash-update-component", base_url=BASE, json=body).status_code == 200
