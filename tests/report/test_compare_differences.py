"""Differences of two reports claim no more than the steps support."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.model.comparison import Difference
from advisor.model.metric_names import BETTER, higher_is_better, per_step_name
from advisor.model.report import Metric
from advisor.model.shifts import interval_of_shift
from advisor.report.compare import compare_reports
from advisor.report.compare_document import change_words, comparison_document
from advisor.report.markdown import to_markdown
from advisor.report.shift import difference
from analyzers.metrics import trace_metrics
from tests.builders.compared import base, stepped
from tests.builders.trace import Timeline


def test_an_interval_needs_four_steps_each_and_is_the_extremes_there() -> None:
    assert interval_of_shift([1, 2, 3], [1, 2, 3]) is None
    assert interval_of_shift([], [1, 2]) is None
    assert interval_of_shift([1, 2, 3, 4], [11, 12, 13, 14]) == (7.0, 13.0)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 100), min_size=4, max_size=9),
    st.lists(st.integers(0, 100), min_size=4, max_size=9),
    st.integers(-1000, 1000),
)
def test_the_interval_moves_with_the_sample_and_turns_with_the_order(
    before: list[int], after: list[int], shift: int
) -> None:
    found, turned = interval_of_shift(before, after), interval_of_shift(after, before)
    assert found is not None
    assert turned is not None
    assert found[0] <= found[1]
    assert turned == (-found[1], -found[0])
    moved = interval_of_shift(before, [value + shift for value in after])
    assert moved == (found[0] + shift, found[1] + shift)


def test_the_interval_holds_the_shift_as_often_as_it_says() -> None:
    """Skewed samples, 600 times: binomial noise around 95 % is 0.9 % (one sigma)."""
    source = random.Random(7)
    hits = 0
    for _ in range(600):
        before = [source.expovariate(1.0) for _ in range(12)]
        after = [source.expovariate(1.0) + 0.5 for _ in range(15)]
        found = interval_of_shift(before, after)
        assert found is not None
        hits += found[0] <= 0.5 <= found[1]
    assert 0.92 <= hits / 600 <= 0.985


def test_large_samples_are_thinned_not_refused() -> None:
    many = difference(0, 5, list(range(5000)), [n + 2500 for n in range(5000)])
    assert many.significance == "significant"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (difference(100, 90, [99, 100, 101, 100], [89, 90, 91, 90]), "-10.0 % (-12.0 % … -8.0 %)"),
        (difference(100, 101, [90, 100, 110], [91, 101, 111]), "? +1.0 %"),
        (difference(100, 101), "¹ +1.0 %"),
        (difference(100, 101, [9, 8, 7, 6], [9, 8, 7, 6]), "~ +1.0 % (-3.0 % … +3.0 %)"),
        (difference(100, 90, [100, 100], [90, 90]), "? -10.0 %"),
        (difference(100, 90, [100, 100], [90, 90], counted=True), "-10.0 %"),
        (difference(100, 90, [100, 101], [90, 90], counted=True), "? -10.0 %"),
        (difference(100, 100, counted=True), "same"),
        (difference(None, 3), "unknown"),
        (difference(3, None), "unknown"),
    ],
)  # fmt: skip
def test_a_change_says_how_sure_it_is(found: Difference, text: str) -> None:
    assert change_words(found, "ns").text == text


def legend_of(before: Metric, after: Metric) -> str:
    """The last paragraph of a comparison whose kernels are the same."""
    sides = [replace(base(), metrics={**base().metrics, "m": m}) for m in (before, after)]
    return to_markdown(comparison_document(compare_reports(*sides))).strip().rpartition("\n\n")[2]


def test_only_marks_that_stand_there_are_explained() -> None:
    one_value = "¹ one value a run, none by step: nothing says how much of it is noise."
    assert " ".join(legend_of(stepped(100), stepped(101)).split()) == one_value
    few = legend_of(stepped(100, 99, 101), stepped(120, 119, 121))
    assert " ".join(few.split()) == "? too few steps to say (four in each run suffice)."
    assert "¹" not in legend_of(stepped(100), stepped(100))


def test_a_change_from_zero_has_no_percentage() -> None:
    assert change_words(difference(0, 1500), "ns").text == "¹ 1.5 µs"
    assert change_words(difference(0, 3, counted=True), "count").text == "+3"


@pytest.mark.parametrize(
    ("name", "before", "after", "direction"),
    [
        ("step_ns", 10, 5, "better"),
        ("step_ns", 5, 10, "worse"),
        ("fusion_coverage_time", 5, 10, "better"),
        ("attributed_time_fraction", 5, 10, "changed"),
        ("invented", 5, 10, "changed"),
    ],
)
def test_which_way_is_better(name: str, before: int, after: int, direction: str) -> None:
    found = difference(before, after, higher_is_better=higher_is_better(name))
    assert found.direction == direction


def test_per_step_names() -> None:
    assert per_step_name("gpu_busy_ns") == "gpu_busy_per_step_ns"
    assert per_step_name("kernels") == "kernels_per_step"
    assert {"gpu_idle_fraction_per_step", "starved_per_step_ns"} <= BETTER.keys()


def test_every_metric_of_a_trace_says_which_way_is_better() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 0, 100)
    line.kernel(20, 5, correlation=line.launch(10))
    assert trace_metrics(line.build()).keys() <= BETTER.keys(), "name it in metric_names.py"


def metrics_of(before: Metric | None, after: Metric | None) -> tuple[str, str]:
    sides = [
        replace(base(), metrics={**base().metrics, **({"m": m} if m else {})})
        for m in (before, after)
    ]
    (found,) = (m for m in compare_reports(*sides).metrics if m.name == "m")
    return found.note, found.difference.significance


def test_only_like_is_compared_with_like() -> None:
    plain = stepped(5)
    modelled = replace(plain, provenance="modelled")
    assert metrics_of(plain, plain) == ("", "single")
    few = stepped(5, 4, 6)
    assert metrics_of(few, few) == ("", "untested")
    assert metrics_of(plain, few) == ("", "single")
    assert metrics_of(plain, modelled) == ("measured before, modelled after", "incomparable")
    assert metrics_of(plain, replace(plain, unit="bytes"))[0] == "ns before, bytes after"
    assert metrics_of(plain, None)[0] == "not in the report after"
    assert metrics_of(None, plain)[0] == "not in the report before"
    assert metrics_of(replace(plain, value=None), plain)[0] == "unknown in a report"


def test_coverage_compares_only_over_one_captured_graph() -> None:
    coverage = {**base().metrics, "fusion_coverage_time": stepped(1)}
    before = replace(base(), metrics=coverage)
    after = replace(before, workload=replace(before.workload, graph_hash="other"))
    same = compare_reports(before, before)
    other = compare_reports(before, after, accepted=["graph_hash"])
    notes = [
        next(m.note for m in found.metrics if m.name == "fusion_coverage_time")
        for found in (same, other)
    ]
    assert notes == ["", "coverage compares only over one captured graph"]
