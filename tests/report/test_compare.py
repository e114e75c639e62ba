"""Two reports: the same work or not, and differences that claim no more than the steps support."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.model.base import Warning_, decode, encode
from advisor.model.comparison import Difference, KernelChange, ReportComparison
from advisor.model.metric_names import BETTER, higher_is_better, per_step_name
from advisor.model.report import KernelRow, Metric, Report
from advisor.model.schemas import schema_of
from advisor.model.shifts import interval_of_shift
from advisor.report.compare import MAY_HAVE_BEEN, MAY_STILL_BE, compare_reports
from advisor.report.compare_document import change_words, comparison_document
from advisor.report.compare_kernels import kernel_changes
from advisor.report.compare_work import CHECKS, comparability, operand_shapes, steps_of
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from advisor.report.shift import difference
from advisor.report.text import render
from analyzers.metrics import kernel_rows, trace_metrics
from collectors import read_trace
from tests.builders.trace import SHARED, Timeline
from tests.model import strategies
from tests.model.builders import finding, price, report
from tests.report.test_forms import FORBIDDEN, Page, assert_harmless, rendered


def kernel(name: str, role: str = "pointwise", **fields: object) -> KernelRow:
    values = {"library": "aten", "count": 1.0, "time_ns": 1000, **fields}
    return KernelRow(name=name, role=role, **values)  # type: ignore[arg-type]


def gemms(count: float, shape: str = "[[8, 16], [16, 4]]") -> KernelRow:
    return kernel(
        "gemm", "gemm", count=count, ops=("aten::mm",), calls={f"aten::mm {shape}": count}
    )


def stepped(value: int, *steps: int, unit: str = "ns") -> Metric:
    return Metric(value=value, unit=unit, provenance="measured", definition="d", per_step=steps)


def base(**work: object) -> Report:
    """A report of two steps with GEMMs of known shapes."""
    plain = report()
    metrics = {**plain.metrics, "gpu_busy_per_step_ns": stepped(10, 9, 11)}
    return replace(
        plain,
        workload=replace(plain.workload, graph_hash="ab", gpu="h200", **work),  # type: ignore[arg-type]
        metrics=metrics,
        kernels=(gemms(8), *plain.kernels),
    )


# --- the same work ---


def test_a_report_is_of_the_same_work_as_itself() -> None:
    found = comparability(base(), base())
    assert (found.comparable, found.reasons) == (True, ())
    assert found.score > 0.9, "only unknown versions are missing from a full score"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("graph_hash", {"graph_hash": "cd"}),
        ("shapes", {"shapes": ("4x512x1024",)}),
        ("gpu", {"gpu": "a100"}),
        ("world_size", {"world_size": 2}),
        ("rank", {"rank": 1}),
    ],
)
def test_each_part_of_the_identity_ends_the_comparison(name: str, other: dict[str, object]) -> None:
    before = base()
    after = replace(before, workload=replace(before.workload, **other))
    found = comparability(before, after)
    assert not found.comparable
    assert [reason.partition(":")[0].replace(" ", "_") for reason in found.reasons] == [name]
    assert found.score < comparability(before, before).score
    accepted = comparability(before, after, [name])
    assert (accepted.comparable, accepted.accepted) == (True, (name,))


def test_another_number_of_steps_or_another_device_is_not_comparable() -> None:
    before = base()
    longer = {**before.metrics, "gpu_busy_per_step_ns": stepped(10, 9, 10, 11)}
    assert (steps_of(before), steps_of(replace(before, metrics=longer))) == (2, 3)
    assert (
        "steps: 2 before, 3 after" in comparability(before, replace(before, metrics=longer)).reasons
    )
    absent = replace(before, hardware=replace(before.hardware, present=False))
    assert "device present: yes before, no after" in comparability(before, absent).reasons
    trace = replace(absent, workload=replace(absent.workload, mode="trace"))
    checks = {check.name: check.after for check in comparability(before, trace).checks}
    assert checks["device_present"] == "yes", "it was recorded on one, wherever it is read"


def test_mode_and_versions_are_stated_and_end_nothing() -> None:
    before = base()
    after = replace(
        before, workload=replace(before.workload, mode="compile", versions={"torch": "3"})
    )
    found = comparability(before, after)
    assert found.comparable
    assert {c.name: c.outcome for c in found.checks}["mode"] == "differ"


def test_all_reasons_are_listed() -> None:
    before = base()
    after = base(world_size=2, rank=1)
    found = comparability(before, replace(after, kernels=(gemms(8, "[[9, 9], [9, 9]]"),)))
    assert [r.partition(":")[0] for r in found.reasons] == ["world size", "rank", "work"]


def test_an_unknown_name_of_a_check_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="graph_hash, shapes"):
        comparability(base(), base(), ["colour"])


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((gemms(8),), (gemms(8), kernel("x")), "agree"),
        ((gemms(8),), (gemms(7),), "agree"),
        ((gemms(8),), (gemms(4),), "differ"),
        ((gemms(8),), (gemms(8, "[[9, 9], [9, 9]]"),), "differ"),
        # A bias in front and an output behind are no part of the work.
        ((gemms(8),), (gemms(8, "[[4], [8, 16], [16, 4], [8, 4], []]"),), "agree"),
        # Without shapes, counts may refute but never confirm.
        ((kernel("g", "gemm", count=8.0),), (kernel("g", "gemm", count=8.0),), "unknown"),
        ((kernel("g", "gemm", count=8.0),), (kernel("g", "gemm", count=4.0),), "differ"),
        ((kernel("p"),), (kernel("p"),), "unknown"),
        ((), (gemms(8),), "unknown"),
        # Attention in one kernel answers for two batched products.
        (
            (gemms(8), gemms(4, "[[2, 8, 8], [2, 8, 8]]"), gemms(4, "[[2, 8, 9], [2, 9, 8]]")),
            (gemms(8), kernel("flash", "attention", count=4.0)),
            "agree",
        ),
        (
            (gemms(8), gemms(40, "[[2, 8, 8], [2, 8, 8]]")),
            (gemms(8), kernel("flash", "attention", count=1.0)),
            "differ",
        ),
    ],
)
def test_work_is_judged_by_what_fusion_leaves_alone(
    before: tuple[KernelRow, ...], after: tuple[KernelRow, ...], outcome: str
) -> None:
    for a, b in ((before, after), (after, before)):
        found = comparability(replace(base(), kernels=a), replace(base(), kernels=b))
        assert {c.name: c.outcome for c in found.checks}["work"] == outcome


def test_traces_with_other_names_compare_by_their_work_alone() -> None:
    def trace(name: str, graph: str, rows: tuple[KernelRow, ...]) -> Report:
        work = replace(base().workload, target=name, mode="trace", graph_hash=graph)
        return replace(base(), workload=work, kernels=rows)

    assert comparability(trace("a", "1", (gemms(8),)), trace("b", "2", (gemms(8),))).comparable
    unknown = comparability(trace("a", "1", (kernel("x"),)), trace("b", "2", (kernel("x"),)))
    assert [r.partition(":")[0] for r in unknown.reasons] == ["target"]


def test_shapes_of_hostile_calls_are_unknown() -> None:
    for text in ("aten::mm", "aten::mm [", "x [[[[[", "x " + "[" * 9999, 'x ["a", {"b": 1}]'):
        assert operand_shapes(text) == ()
    assert operand_shapes("a: B [[3], [8, 16], [16, 4], [8, 4]]") == ((8, 16), (16, 4))


TRACES = ("bert.eager", "bert.inductor", "llama_decode.eager", "llama_decode.inductor")


@pytest.mark.skipif(not (SHARED / "traces/h200").is_dir(), reason="needs the recorded traces")
def test_recorded_runs_of_one_model_compare_and_others_do_not() -> None:
    reports = {}
    for name in TRACES:
        trace = read_trace(SHARED / f"traces/h200/{name}.json.gz")
        work = replace(base().workload, target=name, mode="trace", graph_hash=name)
        rows = kernel_rows(trace, trace.steps())
        reports[name] = replace(base(), workload=work, kernels=rows)
    for a, b in itertools.permutations(TRACES, 2):
        same = a.partition(".")[0] == b.partition(".")[0]
        assert comparability(reports[a], reports[b]).comparable == same, (a, b)


# --- differences ---


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


# --- kernels ---


def basis_of(before: list[KernelRow], after: list[KernelRow]) -> list[tuple[str | None, ...]]:
    changes = kernel_changes(tuple(before), tuple(after))
    return sorted(((c.before, c.after, c.basis) for c in changes), key=str)


def test_kernels_match_by_what_they_do() -> None:
    mm = {"aten::mm [[8, 16], [16, 4]]": 2.0}
    assert basis_of(
        [kernel("old_name", "gemm", calls=mm)], [kernel("new_name", "gemm", calls=mm)]
    ) == [("old_name", "new_name", "calls")]
    first = kernel("k", calls=mm, ops=("aten::mm",))
    assert basis_of([first], [replace(first, calls={"aten::mm": 3.0})]) == [
        ("k", "k", "name_and_operators")
    ]
    assert basis_of([kernel("a", ops=("aten::add",))], [kernel("b", ops=("aten::add",))]) == [
        ("a", "b", "operators_and_order")
    ]


def test_a_name_alone_matches_nothing() -> None:
    assert basis_of([kernel("k", "gemm")], [kernel("k", "conv")]) == [
        ("k", None, "none"),
        (None, "k", "none"),
    ]
    add, mul = kernel("k", ops=("aten::add",)), kernel("k", ops=("aten::mul",))
    assert [basis for _, _, basis in basis_of([add], [mul])] == ["none", "none"]


def test_generated_kernels_are_matched_by_shape_not_by_their_number() -> None:
    def fused(number: int, shape: str, first: int) -> KernelRow:
        name = f"triton_poi_fused_add_{number}"
        return kernel(name, ops=(name,), calls={f"{name} {shape}": 1.0}, first_execution=first)

    before = [fused(1, "[[8]]", 0), fused(2, "[[16]]", 1)]
    after = [fused(1, "[[16]]", 5), fused(2, "[[8]]", 4)]
    assert basis_of(before, after) == [
        ("triton_poi_fused_add_1", "triton_poi_fused_add_2", "calls"),
        ("triton_poi_fused_add_2", "triton_poi_fused_add_1", "calls"),
    ]


def test_several_candidates_are_paired_in_order() -> None:
    call = {"aten::add [[8]]": 1.0}
    before = [
        kernel("a2", calls=call, first_execution=9),
        kernel("a1", calls=call, first_execution=1),
    ]
    after = [
        kernel("b1", calls=call, first_execution=0),
        kernel("b2", calls=call, first_execution=7),
    ]
    assert basis_of(before, after) == [("a1", "b1", "calls"), ("a2", "b2", "calls")]


def test_kernel_time_has_the_interval_of_its_steps() -> None:
    before = kernel("k", calls={"x": 1.0}, time_ns=100, time_per_step_ns=(99, 100, 101, 100))
    after = replace(before, time_ns=50, time_per_step_ns=(49, 50, 51, 50))
    (change,) = kernel_changes((before,), (after,))
    assert change.time.significance == "significant"
    assert change.time.direction == "better"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_kernel_is_in_one_change(data: st.DataObject) -> None:
    rows = st.lists(strategies.records(KernelRow, role=st.sampled_from(["a", "b"])), max_size=6)
    before, after = tuple(data.draw(rows)), tuple(data.draw(rows))
    changes: tuple[KernelChange, ...] = kernel_changes(before, after)
    assert sorted(c.before for c in changes if c.before is not None) == sorted(
        k.name for k in before
    )
    assert sorted(c.after for c in changes if c.after is not None) == sorted(k.name for k in after)


# --- findings ---


def test_findings_are_new_gone_changed_or_the_same() -> None:
    same, gone = finding("same", saving=price(1, 2, 3)), finding("gone", saving=price(1, 2, 3))
    moved = finding("moved", saving=price(10, 20, 30))
    before = replace(base(), findings=(same, replace(gone, title="G"), replace(moved, title="M")))
    now = replace(moved, title="M", exposed_saving_ns=price(100, 200, 300))
    new = replace(finding("new", saving=price(1, 2, 3)), title="N")
    after = replace(base(), findings=(replace(same, id="renumbered"), now, new))
    found = compare_reports(before, after).findings
    assert [(f.status, f.before, f.after) for f in found] == [
        ("new", None, "new"),
        ("gone", "gone", None),
        ("changed", "moved", "moved"),
        ("same", "same", "renumbered"),
    ]
    assert found[2].text == "the intervals of the saving do not meet"


def test_what_a_run_cannot_show_is_not_said_to_be_gone() -> None:
    pieces = finding("pieces")
    host = replace(finding("host"), members=(), evidence=(), title="Host-bound")
    seen = replace(base(), findings=(pieces, host))
    opaque = Warning_(code="inferred-opaque", message="launches of which nothing is known")
    blind = replace(base(), findings=(), warnings=(opaque,))
    gone = {c.before: c.text for c in compare_reports(seen, blind).findings}
    assert gone == {"pieces": MAY_STILL_BE, "host": ""}
    new = {c.after: c.text for c in compare_reports(blind, seen).findings}
    assert new == {"pieces": MAY_HAVE_BEEN, "host": ""}
    both = compare_reports(replace(seen, warnings=(opaque,)), blind).findings
    assert {c.text for c in both} == {""}, "the run before showed it all the same"


# --- forms ---


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=strategies.reports(), after=strategies.reports())
def test_any_two_reports_take_every_form(before: Report, after: Report) -> None:
    for accepted in ((), CHECKS):
        comparison = compare_reports(before, after, ("<a>", "b|c"), accepted)
        data = encode(comparison)
        Draft202012Validator(schema_of("comparison")).validate(json.loads(data))
        assert encode(decode(data, ReportComparison)) == data
        document = comparison_document(comparison)
        assert_harmless(Page(to_html("t", document)))
        assert not rendered(to_markdown(document))[0] & FORBIDDEN
        assert "\x1b" not in render(to_terminal(document), width=80)
    other = comparability(after, before)
    first = comparability(before, after)
    assert first.comparable == other.comparable
    assert math.isclose(first.score, other.score)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(report=strategies.reports())
def test_any_report_compared_with_itself_shows_no_change(report: Report) -> None:
    comparison = compare_reports(report, report)
    assert comparison.comparability.comparable
    assert {f.status for f in comparison.findings} <= {"same"}
    assert {m.difference.direction for m in comparison.metrics} <= {"same", "unknown"}
    assert all(k.basis != "none" and k.time.change == 0 for k in comparison.kernels)
