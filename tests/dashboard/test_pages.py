"""Layouts and figures as functions of records: what they say in every state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import plotly
import pytest
from dash.development.base_component import Component
from msgspec.structs import replace

from advisor.model.applied import KernelResources
from advisor.model.base import Range, Record
from advisor.model.findings import Alternative, Evidence
from advisor.model.report import KernelRow, Recommended, Source, Tool
from advisor.model.resources import Cliff, CliffPoint, Fit
from advisor.model.run import Progress
from advisor.report.words import ranked
from advisor.store import RunDirectory, RunStore
from advisor.store.jobrecord import JobRecord
from dashboard import figures, subgraph
from dashboard.access import Access
from dashboard.app import render
from dashboard.cliffs import figure as cliff_figure
from dashboard.context import Context
from dashboard.jobpanel import _refresh, blocked, status
from dashboard.jobs import JobRunner
from dashboard.jobview import view_of
from dashboard.page import finding_path, run_path
from dashboard.pages.kernels import row_of
from dashboard.parts import worth_text
from tests.builders.run import sample_run
from tests.builders.run_applied import applied_of, comparison
from tests.builders.run_plan import norm_plan, range_of
from tests.builders.run_report import findings, report_of

HOSTILE = "<script>alert(1)</script>\"'&amp;`{{7*7}}`\u202egnp.exe " + "x" * 10_000


def words(component: object) -> str:
    """All text of a layout."""
    return " ".join(_strings(component))


def _strings(item: object) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _strings(part)
    elif isinstance(item, dict):
        yield from _strings(list(item.values()))
    elif isinstance(item, Component):
        yield from _strings([v for k, v in item.to_plotly_json()["props"].items() if k != "style"])


def page(context: Context, path: str) -> str:
    """The text of the page of a path; proves that it can be sent."""
    component, _title = render(context, path)
    json.dumps(component, cls=plotly.utils.PlotlyJSONEncoder)
    return words(component)


def test_an_empty_store_says_how_to_make_a_run(context: Context) -> None:
    assert "fusion-advisor profile TARGET" in page(context, "/")


def test_an_unmeasured_run_says_what_would_measure_it(context: Context, store: RunStore) -> None:
    run = sample_run(store, applied=False)
    report = run.report()
    plan = norm_plan()
    kernel = Alternative(route="generated_kernel", text="one kernel", saving_ns=range_of(900_000))
    found = replace(findings(plan, "norm")[0], exposed_saving_ns=None, alternatives=(kernel,))
    unmeasured = replace(
        report, findings=(found,), kernels=(), sources=(Source(kind="compiled graphs"),),
        recommended=Recommended(),
    )  # fmt: skip
    run.write_report(unmeasured)
    text = page(context, run_path(run.id))
    assert "Kernel time saved is predicted" in text
    assert "Kernels were not timed" in text
    assert "of kernel time" in page(context, finding_path(run.id, found.id))
    run.write_report(replace(report, kernels=(), findings=(), recommended=Recommended()))
    text = page(context, run_path(run.id))
    assert "No rule found anything to fuse" in text
    assert "No kernels in the trace" in text


def test_runs_stand_newest_first_whatever_they_are_called(
    context: Context, store: RunStore
) -> None:
    old, new = sample_run(store, applied=False), sample_run(store, applied=False)
    shutil.copytree(new.path, store.root / "a-name-of-ones-own")
    own = store.open("a-name-of-ones-own")
    for run, created in ((old, "2026-01-02"), (new, "2026-01-01"), (own, "2026-01-03")):
        run.write_report(replace(run.report(), created=f"{created}T00:00:00+00:00"))
    text = page(context, "/")
    assert text.index(own.id) < text.index(old.id) < text.index(new.id)


def test_the_overview_holds_metrics_actions_and_warnings(context: Context, store: RunStore) -> None:
    text = page(context, run_path(sample_run(store).id))
    for expected in (
        "6.42 ms", "measured", "Median of the step without a profiler", "unknown", "modelled",
        "1.5 ms (1.2 ms … 1.8 ms) of a 6.42 ms step, 23.4 %", "1.36 ms (1.09 ms to 1.63 ms)",
        "launch-outside-window",
        "against torch.compile", "beyond noise", "Kept", "9 of 9",
    ):  # fmt: skip
        assert expected in text


def test_a_finding_holds_its_proof(context: Context, store: RunStore) -> None:
    text = page(context, finding_path(sample_run(store).id, "row-program-1"))
    for expected in (
        "model.layers.3.post_attention_layernorm", "modeling_llama.py:64", "aten::mean", "310 µs",
        "tl.rsqrt", "75.0 % (registers)", "the compiler timed out", "none", "adversarial",
        "2 of 2 cases passed", "93.4 %", "Library call", "not priced", "Predicted against measured",
        "columns 32768", "calibrated copy curve",
    ):  # fmt: skip
        assert expected in text


def test_a_finding_shows_what_each_op_costs(context: Context, store: RunStore) -> None:
    run = sample_run(store)
    path = finding_path(run.id, "row-program-1")
    plan = run.plan(run.plan_ids()[0])
    assert "Find out what each op costs" in page(context, path)
    run.write_cliff(cliff_record(plan.id))
    text = page(context, path)
    assert "Op 2, v1 = v0 * v0, is one too many on h200: spills" in text
    assert "to avoid: spills" in text
    (run.path / "cliffs" / f"{plan.id}.a100.json").write_text("{")
    assert "not a valid Cliff" in page(context, path), "a damaged record is said, the page stands"


def test_the_chart_of_a_cliff_leaves_out_what_is_not_known() -> None:
    drawn = cliff_figure(cliff_record("0" * 16))
    bars = [trace for trace in drawn.data if trace.type == "bar"]
    assert [(tuple(bar.x), tuple(bar.y)) for bar in bars] == [((1,), (32,)), ((2,), (255,))]
    assert tuple(drawn.data[-1].y) == (100.0, 12.5)


def cliff_record(plan_id: str) -> Cliff:
    """Three points: one to use, one that spills, one that could not be compiled."""
    rows = (
        KernelResources(gpu="h200", config="rows=1 warps=4", registers=32, occupancy=1.0),
        KernelResources(
            gpu="h200", config="rows=1 warps=4", registers=255, occupancy=0.125,
            spill_store_bytes=64, spill_load_bytes=64, limiter="registers",
        ),
        KernelResources(gpu="h200", config="rows=1 warps=4", error="not compiled within 60 s"),
    )  # fmt: skip
    verdicts: tuple[tuple[Fit, str], ...] = (
        ("use", "no spills"), ("avoid", "spills: 64 B stored"), ("avoid", "not compiled"),
    )  # fmt: skip
    points = [
        CliffPoint(
            ops=number,
            op="v1 = v0 * v0",
            inputs=1,
            outputs=1,
            resources=row,
            verdict=verdict,
            why=why,
        )
        for number, (row, (verdict, why)) in enumerate(zip(rows, verdicts, strict=True), 1)
    ]
    return Cliff(
        tool=Tool(name="fusion-advisor", version="1"),
        plan_id=plan_id,
        title="norm",
        gpu="h200",
        config="rows=1 warps=4",
        points=tuple(points),
        falls_at=2,
    )


def test_states_before_applying_and_without_a_plan(context: Context, run: RunDirectory) -> None:
    text = page(context, finding_path(run.id, "row-program-1"))
    assert "Not generated yet" in text
    assert "Predicted against measured" not in text
    unpriced = page(context, finding_path(run.id, "launch-bound-1"))
    assert "cannot judge" in unpriced
    assert "Capture the region in a CUDA graph" in unpriced
    assert "No source location" in unpriced


def test_without_a_gpu_the_page_says_what_is_missing(context: Context, run: RunDirectory) -> None:
    plan = norm_plan()
    full = applied_of(plan)
    bare = _changed(full.plans[0], timings=(), measured=None, verdict="not_measured")
    whole = _changed(full.set, verdict="not_measured", plans=(), against_eager=None)
    run.write_applied(_changed(full, plans=(bare,), set=whole))
    assert "Timing needs the GPU" in page(context, finding_path(run.id, "row-program-1"))
    assert "Not measured" in page(context, run_path(run.id))


def _changed(record: Any, **changes: object) -> Any:
    assert isinstance(record, Record)
    return type(record)(**{f: getattr(record, f) for f in record.__struct_fields__} | changes)


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/run/absent", "/run/..", "/run/a/finding/b", "/run/a/findings", "/run/%2e%2e",
     "/run/a/finding/../../x", "/run/x y"],
)  # fmt: skip
def test_whatever_is_not_there_is_a_page_that_says_so(context: Context, path: str) -> None:
    text = page(context, path)
    assert "Cannot show this" in text
    assert "All runs" in text


def test_a_broken_report_is_a_row_and_a_page(context: Context, run: RunDirectory) -> None:
    (run.path / "report.json").write_text('{"schema_version": 99}')
    assert "unreadable" in page(context, "/")
    assert "Cannot show this" in page(context, run_path(run.id))


def test_a_changed_file_is_read_again(context: Context, run: RunDirectory) -> None:
    assert "RMS norm" in page(context, run_path(run.id))
    run.write_report(report_of(norm_plan(), "Another title", "x.py:f"))
    assert "Another title" in page(context, run_path(run.id))


def test_hostile_names_stay_text(context: Context, store: RunStore) -> None:
    run = sample_run(store, title=HOSTILE, target=HOSTILE)
    for path in (
        "/",
        run_path(run.id),
        finding_path(run.id, "row-program-1"),
        f"/run/{run.id}/findings",
    ):
        component, _ = render(context, path)
        assert HOSTILE in words(component)
        for part in component._traverse():
            assert getattr(part, "_type", "") != "Markdown"
            assert getattr(part, "dangerously_allow_html", None) is None
            assert not getattr(part, "dangerously_allow_code", False)
    for figure in (
        figures.savings(findings(norm_plan(), HOSTILE)),
        figures.kernels([_changed(r, name=HOSTILE, role=HOSTILE) for r in run.report().kernels]),
    ):
        assert "<script" not in figure.to_json().encode().decode("unicode_escape")


def test_who_may_not_apply_is_told_why(store: RunStore, run: RunDirectory) -> None:
    runner = JobRunner(store)
    closed = Context(store=store, runner=runner, access=Access())
    assert f"fusion-advisor apply -- {run.path}" in blocked(closed, run)


def test_findings_stand_as_on_the_terminal(context: Context, run: RunDirectory) -> None:
    component, _title = render(context, f"{run_path(run.id)}/findings")
    rows = component["findings-grid"].rowData
    assert [row["title"] for row in rows] == [f.title for f in ranked(run.report())]


def test_the_page_tells_what_was_predicted_from_what_decided(
    context: Context, store: RunStore
) -> None:
    run = sample_run(store)
    applied = run.applied()
    assert applied is not None
    (verdict,) = applied.plans
    region = _changed(comparison(6_000_000, 5_000_000), clock="gpu_busy")
    run.write_applied(_changed(applied, plans=(_changed(verdict, region=region),)))
    text = page(context, finding_path(run.id, "row-program-1"))
    assert "as predicted, all sites" in text
    assert "compiled step, without and with it" in text


def test_the_list_says_of_a_saving_what_the_page_of_its_run_says(
    context: Context, run: RunDirectory
) -> None:
    report = run.report()
    bound = replace(report.recommended, set_saving_ns=Range(low=0, mid=300_000, high=500_000))
    run.write_report(replace(report, recommended=bound))
    assert "at most 500 \u00b5s" in page(context, run_path(run.id))
    assert "at most 500 \u00b5s" in (listed := page(context, "/"))
    assert "(modelled)" not in listed
    modelled = replace(report, hardware=replace(report.hardware, present=False))
    run.write_report(replace(modelled, workload=replace(report.workload, mode="eager")))
    assert f"{report.hardware.name} (modelled)" in page(context, "/")


def test_a_run_whose_name_is_no_id_is_told(context: Context, run: RunDirectory) -> None:
    assert "not shown" not in page(context, "/")
    run.path.rename(run.path.with_name("llama.eager"))
    text = page(context, "/")
    assert "1 folder with a run not shown" in text
    assert "llama.eager" in text


def test_without_exposure_the_kernel_time_is_shown() -> None:
    launch, _spill, _norm = findings(norm_plan(), "t")
    priced = Alternative(route="generated_kernel", text="t", saving_ns=range_of(50_000))
    unsure = _changed(launch, id="z", alternatives=(priced,))
    assert worth_text(unsure) == "cannot judge; of kernel time 50 µs (40 µs to 60 µs)"
    assert worth_text(launch) == "cannot judge"
    told = Evidence(kind="time", text="t", values={"kernel_saving_ns": 70_000})
    other = _changed(unsure, evidence=(told,))
    assert worth_text(other) == "cannot judge; of kernel time 70 µs", "as in the terminal"


def test_the_page_of_a_finding_names_the_kernel_time_of_the_list(
    context: Context, run: RunDirectory
) -> None:
    launch, _spill, _norm = findings(norm_plan(), "t")
    priced = Alternative(route="generated_kernel", text="t", saving_ns=range_of(50_000))
    told = Evidence(kind="time", text="t", values={"kernel_saving_ns": 70_000})
    why = Evidence(kind="cannot_judge", text="no step was timed")
    found = _changed(launch, id="z", alternatives=(priced,), evidence=(told, why))
    kept = _changed(run.report(), findings=(found,), recommended=Recommended())
    run.write_report(kept)
    text = page(context, finding_path(run.id, "z"))
    card = text.split("Kernel time saved, predicted")[1]
    assert "70 µs" in card[:60]
    assert "by a generated kernel 50 µs (40 µs to 60 µs)" in text


def test_a_finding_of_several_kernels_shows_each(context: Context, run: RunDirectory) -> None:
    first = norm_plan()
    second = _changed(first, id="b" * 16, title="the other kernel")
    run.write_plan(second)
    whole = report_of(first, "t", "x.py:f")
    norm = whole.findings[-1]
    both = Alternative(route="generated_kernel", text="both", plan_ids=(first.id, second.id))
    summary = _changed(whole.plans[0], id=second.id)
    run.write_report(
        _changed(
            whole,
            findings=(*whole.findings[:-1], _changed(norm, alternatives=(both,))),
            plans=(*whole.plans, summary),
        )
    )
    text = page(context, finding_path(run.id, norm.id))
    assert "The fusion: the other kernel" in text
    assert "Generated kernel: the other kernel" in text


def test_the_savings_figure_is_the_report_in_milliseconds() -> None:
    bars = figures.savings(findings(norm_plan(), "t")).data[0]
    assert list(bars.x) == [0.18, 1.358]
    assert [round(v, 4) for v in bars.error_x.array] == [0.09, 0.2716]
    assert bars.y[1] == "#1 t"


def test_before_and_after_in_the_figure() -> None:
    result = applied_of(norm_plan()).set
    assert result.against_eager is not None
    figure = figures.comparison([("against eager", result.against_eager)])
    assert {bar.name: list(bar.x) for bar in figure.data} == {"before": [6.42], "after": [5.13]}


def test_the_subgraph_is_the_dataflow_of_the_plan() -> None:
    plan = norm_plan()
    elements = [e["data"] for e in subgraph.elements(plan)]
    nodes = {e["id"]: e.get("parent") for e in elements if "id" in e}
    edges = {(e["source"], e["target"]) for e in elements if "source" in e}
    assert {n for n, parent in nodes.items() if parent == "kernel"} == {op.name for op in plan.ops}
    assert edges == {
        ("in0", "v0"), ("v0", "v1"), ("v1", "v2"), ("v2", "v3"), ("v3", "v4"), ("v0", "v5"),
        ("v4", "v5"), ("v5", "v6"), ("in1", "v7"), ("v6", "v7"), ("v7", "out0"),
    }  # fmt: skip


def test_a_job_record_of_nonsense_is_a_message_not_a_crash(
    context: Context, run: RunDirectory
) -> None:
    (run.path / "job.json").write_text("[]")
    assert "RMS norm" in page(context, run_path(run.id))
    assert "cannot be read" in words(_refresh(context, run.id, None))


def test_a_stage_lists_its_plans(run: RunDirectory) -> None:
    times = {"time": "2026-01-01T00:00:00+00:00", "job": "j", "stage": "verify"}
    events = [
        Progress(**times, state="failed", plan="a" * 16, message="wrong constant"),
        Progress(**times, state="done", plan="b" * 16, value="12 cases"),
    ]
    record = JobRecord(id="0" * 16, kind="apply", queued=times["time"], started=times["time"])
    text = words(status(view_of(record, events, alive=True), run))
    assert text.index("wrong constant") < text.index("12 cases")


def test_the_list_reads_each_report_once(
    context: Context, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        sample_run(store)
    first = page(context, "/")
    monkeypatch.setattr(RunDirectory, "report", None)
    assert page(context, "/") == first


def test_kernels_have_the_names_of_the_terminal_and_no_estimate_of_nothing() -> None:
    name = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<a, AdamFunctor<b>>(c)"
    known = KernelRow(
        name=name, role="optimizer", library="pytorch", count=1, time_ns=10, occupancy_estimated=0.0
    )
    row = row_of(known, 10)
    assert row["name"] == "multi_tensor_apply_kernel[AdamFunctor]"
    assert row["full"] == name
    assert row["occupancy_text"] == "unknown", "a kernel that ran occupied something"
    assert (
        row_of(replace(known, occupancy_estimated=0.5), 10)["occupancy_text"] == "50.0 % estimated"
    )
    assert figures.kernels([known]).data[0].y[0] == "#1 multi_tensor_apply_kernel[AdamFun…"
