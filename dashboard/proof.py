"""What applying a run proved: verdicts, source, resources, numerics, timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.actions import ActionKind
from advisor.model.applied import (
    ActionVerdict,
    Applied,
    Comparison,
    KernelResources,
    PlanVerdict,
    SetVerdict,
)
from advisor.model.base import Range
from advisor.report.text import counted, gain_text
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_bytes, format_fraction, format_ns
from dashboard import figures
from dashboard.cliffs import cliff_sections
from dashboard.context import Context
from dashboard.parts import (
    VERDICT_COLORS,
    VERDICT_WORDS,
    badge,
    error_state,
    graph,
    heading,
    message,
    moment,
    saving_text,
    section,
    table,
)

CLOCKS = {"gpu_busy": "GPU time of the step", "step": "step time", "kernel": "kernel time"}


def result_slot(
    context: Context, run: RunDirectory, plans: Sequence[str], actions: Sequence[ActionKind] = ()
) -> Component:
    """The verdicts on plans and actions, or on the set for none; its own store says which."""
    data = {"run": run.id, "plans": list(plans), "actions": list(actions)}
    scope = dcc.Store(id="proof-scope", data=data)
    shown = html.Div(result(context, run, plans, actions), id="proof-result", className="stack")
    return html.Div([scope, shown])


def details_slot(context: Context, run: RunDirectory, plans: Sequence[str]) -> Component:
    """What the verdicts rest on; empty for the whole set."""
    return html.Div(details(context, run, plans), id="proof-details", className="stack")


def register(app: Dash, context: Context) -> None:
    """Redraw the proof when the job panel sees that it changed: a kernel came, a job ended."""

    @app.callback(
        Output("proof-result", "children"),
        Output("proof-details", "children"),
        Input("job-generation", "data"),
        State("proof-scope", "data"),
        prevent_initial_call=True,
    )
    def redraw(_generation: object, scope: dict[str, Any]) -> object:
        try:
            run, plans = context.store.open(scope["run"]), scope["plans"]
            return result(context, run, plans, scope["actions"]), details(context, run, plans)
        except AdvisorError as error:
            return error_state(error), []


def result(
    context: Context, run: RunDirectory, plans: Sequence[str], actions: Sequence[str] = ()
) -> list[Component]:
    """The verdicts on these plans and actions, or on the set where none is named."""
    applied = context.applied(run)
    if applied is None:
        return []
    if not plans and not actions:
        return [_set(applied.set, applied)]
    verdicts = [_of_plan(applied, plan_id) for plan_id in plans]
    tried = tuple(action for action in applied.actions if action.kind in actions)
    shown = [_verdict(verdict) for verdict in verdicts if verdict is not None]
    return [*shown, *([section("Actions tried for it", *_actions(tried))] if tried else [])]


def details(context: Context, run: RunDirectory, plans: Sequence[str]) -> list[Component]:
    """Source, resources, numerics and timings of these plans, as far as there are any."""
    parts, applied = [], context.applied(run)
    for place, plan_id in enumerate(plans):
        title = context.plan(run, plan_id).title
        parts.append(_source(run, plan_id, title, unfolded=place == 0))
        verdict = _of_plan(applied, plan_id) if applied else None
        if verdict is not None:
            parts += [_resources(verdict), _numerics(verdict), _timings(verdict)]
        parts += cliff_sections(run, plan_id, title)
    return parts


def _of_plan(applied: Applied, plan_id: str) -> PlanVerdict | None:
    return next((plan for plan in applied.plans if plan.plan_id == plan_id), None)


def _set(result: SetVerdict, applied: Applied) -> Component:
    rows = [
        (label, compared)
        for label, compared in (
            ("against eager", result.against_eager),
            ("against torch.compile", result.against_compiled),
            ("GPU time", result.gpu_time),
        )
        if compared is not None
    ]
    blocks: list[Component] = [_words(result.verdict, result.reason)]
    if rows:
        label = "Median time before and after applying, with intervals"
        blocks.append(graph(figures.comparison(rows), "before-after", label))
        blocks.append(_comparisons(rows))
    plans = [(p.title, VERDICT_WORDS[p.verdict], p.reason, _swapped(p)) for p in applied.plans]
    head = ("Plan", "Verdict", "Why", "Sites swapped")
    blocks.append(table(head, plans, "Verdicts of the plans"))
    blocks += _actions(applied.actions)
    measured = [row for row in _other_figures(result) if set(row[1:]) != {UNKNOWN}]
    if measured:
        blocks.append(table(("Also measured", "Before", "After"), measured, "Other figures"))
    agree = {True: "; outputs agree", False: "; outputs differ", None: ""}[result.outputs_agree]
    took = "" if applied.duration_ns is None else f" in {format_ns(applied.duration_ns)}"
    note = f"Applied {moment(applied.created)} on {applied.device}{took}{agree}"
    return section("Result", *blocks, note=note)


def _actions(actions: Sequence[ActionVerdict]) -> list[Component]:
    """What became of each graph-level action, with its figures and how to do it by hand."""
    if not actions:
        return []
    rows = [
        (
            action.title,
            VERDICT_WORDS[action.verdict],
            gain_text(action.step),
            gain_text(action.gpu_time),
            html.Div([html.Div(text) for text in (action.reason, *action.details)]),
            UNKNOWN if action.sites is None else str(action.sites),
            action.by_hand,
        )
        for action in actions
    ]
    head = ("Action", "Verdict", "Step saves", "GPU time saves", "Why", "Places", "By hand")
    return [
        heading("Graph-level actions", 3, small=True),
        table(head, rows, "Verdicts of the actions"),
    ]


def _other_figures(result: SetVerdict) -> tuple[tuple[str, str, str], ...]:
    memory = (result.peak_memory_before_bytes, result.peak_memory_after_bytes)
    return (
        ("Peak memory", format_bytes(memory[0]), format_bytes(memory[1])),
        ("Compile time", format_ns(result.compile_before_ns), format_ns(result.compile_after_ns)),
    )


def _verdict(verdict: PlanVerdict) -> Component:
    blocks: list[Component] = [_words(verdict.verdict, verdict.reason)]
    compared = [("as predicted, all sites", verdict.measured)]
    if verdict.region != verdict.measured:
        compared.append(("compiled step, without and with it", verdict.region))
    rows = [(label, value) for label, value in compared if value is not None]
    if rows:
        blocks.append(_comparisons(rows))
    figure = figures.predicted_measured(verdict)
    if figure is not None:
        label = "Predicted and measured saving per step, with intervals"
        blocks += [
            heading("Predicted against measured", 3, small=True),
            graph(figure, f"scored-{verdict.plan_id}", label),
        ]
    return section(f"Result: {verdict.title}", *blocks, note=f"Sites swapped: {_swapped(verdict)}")


def _words(verdict: str, reason: str) -> Component:
    return dmc.Group([badge(VERDICT_WORDS[verdict], VERDICT_COLORS[verdict]), dmc.Text(reason)])


def _swapped(verdict: PlanVerdict) -> str:
    swapped = UNKNOWN if verdict.sites_swapped is None else str(verdict.sites_swapped)
    return f"{swapped} of {verdict.sites_expected}"


def _comparisons(rows: list[tuple[str, Comparison]]) -> Component:
    cells = [
        (
            label,
            CLOCKS[c.clock],
            format_ns(c.before.median_ns),
            format_ns(c.after.median_ns),
            saving_text(Range(low=c.gain_low_ns, mid=c.gain_mid_ns, high=c.gain_high_ns)),
            "beyond noise" if c.significant else "within noise",
        )
        for label, c in rows
    ]
    head = ("Compared", "Clock", "Before", "After", "Gain", "Judgement")
    return table(head, cells, "Before and after, interleaved in one process")


def _source(run: RunDirectory, plan_id: str, title: str, *, unfolded: bool) -> Component:
    source = run.kernel(plan_id)
    if source is None:
        text = "The kernel is generated from the plan when the run is applied."
        return section(f"Generated kernel: {title}", message("Not generated yet", text))
    code = dmc.CodeHighlight(code=source, language="python")
    lines = counted(source.count("\n"), "line")
    shown = html.Details(
        [html.Summary(f"Source, {lines}"), html.Div(code, className="kernel-source")],
        open=unfolded,
    )
    link = html.A(
        "Download", href=f"/api/runs/{run.id}/kernels/{plan_id}.py", download=f"{plan_id}.py"
    )
    return section(f"Generated kernel: {title}", shown, link)


def _resources(verdict: PlanVerdict) -> Component:
    rows = verdict.resources
    if not rows:
        text = "Nothing was compiled: see the result above for the reason."
        return section("Resources", message("No resources on record", text))
    cells = [
        (r.gpu, r.config, r.error, "", "", "")
        if r.error
        else (
            r.gpu,
            r.config,
            UNKNOWN if r.registers is None else str(r.registers),
            _spills(r),
            format_bytes(r.shared_bytes),
            f"{format_fraction(r.occupancy)}{f' ({r.limiter})' if r.limiter else ''}",
        )
        for r in rows
    ]
    head = (
        "GPU",
        "Configuration",
        "Registers",
        "Spills, per thread",
        "Shared memory",
        "Occupancy, theoretical (limiter)",
    )
    return section(
        f"Resources on each GPU: {verdict.title}",
        table(head, cells, "Resources of the kernel"),
        note="Read from the compiled binaries; no GPU is needed for it.",
    )


def _spills(resources: KernelResources) -> str:
    stored, loaded = resources.spill_store_bytes, resources.spill_load_bytes
    if stored is None and loaded is None:
        return UNKNOWN
    if not stored and not loaded:
        return "none"
    return f"{format_bytes(stored)} stored, {format_bytes(loaded)} loaded"


def _numerics(verdict: PlanVerdict) -> Component:
    numerics = verdict.numerics
    if numerics is None:
        text = "The kernel was not executed: see the result above for the reason."
        return section("Numerics", message("Not verified", text))
    cells = [
        (
            "✓ passed" if case.passed else "✕ failed",
            case.name,
            _ulps(case.max_error_ulps),
            _ulps(case.eager_error_ulps),
            case.detail,
        )
        for case in numerics.cases
    ]
    head = ("Verdict", "Case", "Largest error, ulps", "Eager's own, ulps", "Detail")
    where = "on the GPU" if numerics.executed_on == "gpu" else "by Triton's interpreter"
    passed = sum(case.passed for case in numerics.cases)
    cases = counted(len(numerics.cases), "case")
    note = f"{passed} of {cases} passed against float64, executed {where}."
    return section(f"Numerics: {verdict.title}", table(head, cells, "Numeric cases"), note=note)


def _ulps(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def _timings(verdict: PlanVerdict) -> Component:
    if not verdict.timings:
        text = "Timing needs the GPU the run was made for. Everything before it was checked."
        return section("Kernel timings", message("Not timed", text))
    cells = [
        (
            t.shape,
            t.config,
            format_bytes(t.bytes),
            format_ns(t.kernel.median_ns),
            format_ns(t.eager.median_ns if t.eager else None),
            format_ns(t.inductor.median_ns if t.inductor else None),
            format_fraction(t.copy_bandwidth_fraction),
            format_ns(t.launch_ns),
        )
        for t in verdict.timings
    ]
    head = (
        "Shape",
        "Configuration",
        "Bytes",
        "Kernel",
        "Op by op",
        "Inductor",
        "Of copy bandwidth",
        "Host launch",
    )
    label = "Median time of the kernel and of its rivals, first shape"
    chart = graph(figures.kernel_timing(verdict.timings[0]), f"timing-{verdict.plan_id}", label)
    return section(f"Kernel timings: {verdict.title}", chart, table(head, cells, "Kernel timings"))
