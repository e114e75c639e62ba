"""Figures of a run and of two, and the parts of a step: what they say, and what they do not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.model.actions import ACTIONS
from advisor.model.applied import ActionVerdict
from advisor.model.base import decode
from advisor.model.report import Metric, Report
from advisor.report.compare import compare_reports
from advisor.report.compare_document import comparison_document
from advisor.store import RunDirectory, RunStore
from dashboard.access import Access
from dashboard.applicable import applicable
from dashboard.context import Context
from dashboard.documents import sections
from dashboard.figures_run import calibration, causes, memory_roofline, moved, step_split
from dashboard.jobs import JobRunner
from dashboard.page import finding_path, run_path
from dashboard.pages.calibration import scores
from dashboard.split import NOT_BUSY, splits
from tests.builders.run_applied import applied_of, comparison
from tests.builders.run_plan import norm_plan
from tests.builders.run_report import report_of
from tests.dashboard.conftest import ROOT
from tests.dashboard.test_pages import page, words

RUNS = ROOT / "sample_traces" / "runs"


@pytest.fixture
def context(store: RunStore) -> Context:
    """A server's state that lets apply."""
    return Context(store=store, runner=JobRunner(store), access=Access(allow_apply=True))


def real(name: str) -> Report:
    """The report of a recorded run."""
    return decode((RUNS / name / "report.json").read_bytes(), Report, name)


@pytest.mark.parametrize("name", [path.name for path in sorted(RUNS.iterdir())])
def test_the_parts_of_a_real_step_add_up(name: str) -> None:
    report = real(name)
    clean, profiled = splits(report)
    for split in (clean, profiled):
        assert split.known, split.why
        assert all(value >= 0 for value in split.parts_ns.values())
        assert sum(split.parts_ns.values()) == pytest.approx(split.total_ns, abs=5)
    assert clean.total_ns == report.metrics["step_ns"].value
    assert NOT_BUSY[0] not in profiled.parts_ns
    assert "launch" not in clean.parts_ns
    figure = step_split((clean, profiled))
    drawn = sum(bar.x[-1] for bar in figure.data)
    assert drawn == pytest.approx((clean.total_ns or 0) / 1e6, rel=1e-3)


def test_what_a_report_cannot_say_is_unknown() -> None:
    report = report_of(norm_plan(), "t", "x.py:f")
    clean, profiled = splits(report)
    assert not clean.known
    assert not profiled.known
    assert clean.total_ns == 6_420_000
    two = real("llama_prefill_eager")
    span = two.metrics["gpu_span_per_step_ns"]
    busy = two.metrics["gpu_busy_per_step_ns"]
    summed = replace(two, metrics=two.metrics | {
        "gpu_busy_per_step_ns": replace(busy, value=2 * (span.value or 0))
    })  # fmt: skip
    assert not any(split.known for split in splits(summed)), "busy time of several devices"
    slow = Metric(value=1, unit="ns", provenance="measured", definition="d")
    short = replace(two, metrics=two.metrics | {"step_ns": slow})
    assert "slower under the profiler" in splits(short)[0].why


def test_causes_add_up_to_the_change_of_kernel_time() -> None:
    before, after = real("llama_train_eager"), real("llama_train_compile")
    found = compare_reports(before, after, ("a", "b"), ("graph_hash", "mode"))
    bars = causes(found.roles).data[0]
    change = sum(k.time_ns for k in after.kernels) - sum(k.time_ns for k in before.kernels)
    assert sum(bars.x) == pytest.approx(change / 1e6, rel=1e-6)
    text = words(sections(comparison_document(found)))
    for expected in ("Comparable", "Kernel time per step by role", "step_ns", "✓"):
        assert expected in text


def test_a_plan_is_two_points_of_the_roofline() -> None:
    points = moved(norm_plan(), "eager")
    assert [(p.kind, p.bytes, p.time_ns) for p in points] == [
        ("now", 2_300_000_000, 1_480_000), ("fused", 302_000_000, 122_000),
    ]  # fmt: skip
    assert [p.kind for p in moved(norm_plan(), "compile")] == ["fused"]
    figure = memory_roofline(points, 4_000_000_000_000)
    line = figure.data[-1]
    assert line.y[0] == pytest.approx(1000 * line.x[0] / 4e12)
    assert memory_roofline([], None).data == ()


def test_predictions_are_scored_with_what_became_of_them(
    context: Context, store: RunStore, run: RunDirectory
) -> None:
    applied = applied_of(norm_plan())
    (row,) = scores(applied)
    assert (row.predicted[1], row.measured[1], row.verdict) == (1_358_000, 1_294_000, "kept")
    assert calibration([row]).data[0].y[0] == pytest.approx(1.294)
    assert "fusion-advisor apply" in page(context, f"/run/{run.id}/calibration")
    run.write_applied(applied)
    text = page(context, f"/run/{run.id}/calibration")
    for expected in ("1 of 1", "95.3 %", "Kept", "yes"):
        assert expected in text


def test_actions_are_on_the_page_and_can_be_named(context: Context, run: RunDirectory) -> None:
    action = ActionVerdict(
        kind="cuda_graph",
        title="compiled graphs replayed as CUDA graphs",
        verdict="kept",
        reason="the step is faster beyond noise",
        step=comparison(6_000_000, 5_000_000),
        sites=2,
        by_hand="mode=reduce-overhead",
    )
    applied = applied_of(run.plan(run.plan_ids()[0]))
    run.write_applied(replace(applied, actions=(action,), duration_ns=63_000_000_000))
    for path in (run_path(run.id), finding_path(run.id, "launch-bound-1")):
        text = page(context, path)
        assert "compiled graphs replayed" in text
        assert "1 ms (950 µs … 1.05 ms)" in text
        assert "mode=reduce-overhead" in text
    assert "in 63 s" in page(context, run_path(run.id))
    names = [name for name, _ in applicable(run.report())]
    assert "row-program-1" in names
    assert "launch-bound-1" in names, "an action answers its rule"
    assert "register-spill-1" not in names
    assert {item.kind for item in ACTIONS} <= set(names)
    assert run.plan_ids()[0] in names
