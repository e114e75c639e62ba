"""What applying a run proved: verdicts, source, resources, numerics, timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.actions import ActionKind
from advisor.model.applied import Applied, KernelResources, PlanVerdict
from advisor.report.text import counted
from advisor.report.verdict_words import launch_text, serves_text
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_bytes, format_fraction, format_ns
from dashboard import figures
from dashboard.cliffs import cliff_sections
from dashboard.context import Context
from dashboard.jobpanel import blocked
from dashboard.outcome import actions as action_blocks
from dashboard.outcome import comparisons, download, set_section, swapped, votes, words
from dashboard.parts import (
    error_state,
    graph,
    heading,
    message,
    section,
    table,
)


def result_slot(
    context: Context,
    run: RunDirectory,
    plans: Sequence[str],
    actions: Sequence[ActionKind] = (),
    finding: str | None = None,
) -> Component:
    """The verdicts on a finding's plans and actions, or on the set; its own store says which."""
    data = {"run": run.id, "plans": list(plans), "actions": list(actions), "finding": finding}
    scope = dcc.Store(id="proof-scope", data=data)
    first = result(context, run, plans, actions, finding)
    shown = html.Div(first, id="proof-result", className="stack")
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
            shown = result(context, run, plans, scope["actions"], scope["finding"])
            return shown, details(context, run, plans)
        except AdvisorError as error:
            return error_state(error), []


def result(
    context: Context,
    run: RunDirectory,
    plans: Sequence[str],
    actions: Sequence[str] = (),
    finding: str | None = None,
) -> list[Component]:
    """The verdicts on the plans and actions of a finding, or on the set where none is named."""
    applied = context.applied(run)
    if applied is None:
        return []
    if finding is None:
        return [set_section(run, applied)]
    verdicts = [_of_plan(applied, plan_id) for plan_id in plans]
    answers = tuple(action for action in applied.actions if action.kind in actions)
    shown = [_verdict(verdict) for verdict in verdicts if verdict is not None]
    if {*applied.set.plans, *applied.set.actions} & {*plans, *actions}:
        shown.insert(0, section("Kept", download(run, finding)))
    if answers:
        shown.append(section("Actions tried for it", *action_blocks(answers)))
    return shown


def details(context: Context, run: RunDirectory, plans: Sequence[str]) -> list[Component]:
    """Source, resources, numerics and timings of these plans, as far as there are any."""
    parts, applied = [], context.applied(run)
    for place, plan_id in enumerate(plans):
        title = context.plan(run, plan_id).title
        parts.append(_source(run, plan_id, title, unfolded=place == 0))
        verdict = _of_plan(applied, plan_id) if applied else None
        if verdict is not None:
            parts += [_resources(verdict), _numerics(verdict), _timings(verdict)]
        parts += cliff_sections(run, plan_id, title, may_start=not blocked(context, run))
    return parts


def _of_plan(applied: Applied, plan_id: str) -> PlanVerdict | None:
    return next((plan for plan in applied.plans if plan.plan_id == plan_id), None)


def _verdict(verdict: PlanVerdict) -> Component:
    blocks: list[Component] = [words(verdict.verdict, verdict.reason)]
    compared = [("as predicted, all sites", verdict.measured)]
    if verdict.region != verdict.measured:
        compared.append(("compiled step, without and with it", verdict.region))
    rows = [(label, value) for label, value in compared if value is not None]
    if rows:
        blocks.append(comparisons(rows))
    figure = figures.predicted_measured(verdict)
    if figure is not None:
        label = "Predicted and measured saving per step, with intervals"
        blocks += [
            heading("Predicted against measured", 3, small=True),
            graph(figure, f"scored-{verdict.plan_id}", label),
        ]
    blocks += votes("The plan", verdict.votes)
    note = f"Sites swapped: {swapped(verdict)}"
    if launched := launch_text(verdict):
        note += f". Launched as {launched}"
    if served := serves_text(verdict):
        note += f". Serves {served}"
    return section(f"Result: {verdict.title}", *blocks, note=note)


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
            f"{format_fraction(r.occupancy)}{_limiter(r)}",
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


def _limiter(resources: KernelResources) -> str:
    return f" ({resources.limiter.replace('_', ' ')})" if resources.limiter else ""


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
