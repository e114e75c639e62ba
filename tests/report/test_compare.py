"""Two reports beside each other: kernels, findings, and every form."""

from __future__ import annotations

import json
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from advisor.model.base import Warning_, decode, encode
from advisor.model.comparison import KernelChange, ReportComparison
from advisor.model.report import KernelRow, Report
from advisor.model.schemas import schema_of
from advisor.report.compare import MAY_HAVE_BEEN, MAY_STILL_BE, compare_reports
from advisor.report.compare_document import comparison_document
from advisor.report.compare_kernels import kernel_changes
from advisor.report.compare_work import CHECKS, comparability
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from advisor.report.text import render
from tests.builders.compared import base, kernel
from tests.model import strategies
from tests.model.builders import finding, price
from tests.report.test_forms import FORBIDDEN, Page, assert_harmless, rendered

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
