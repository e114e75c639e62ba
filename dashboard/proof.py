"""What applying a run proved: verdicts, source, resources, numerics, timings."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.applied import Applied, Comparison, KernelResources, PlanVerdict, SetVerdict
from advisor.model.base import Range
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_bytes, format_fraction, format_ns
from dashboard import figures
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

CLOCKS = {"gpu_busy": "GPU time of the region", "step": "step time", "kernel": "kernel time"}


def result_slot(context: Context, run: RunDirectory, plan_id: str | None) -> Component:
    """The verdict on a plan, or on the whole set; its own store says which, for the redraw."""
    scope = dcc.Store(id="proof-scope", data={"run": run.id, "plan": plan_id})
    shown = html.Div(result(context, run, plan_id), id="proof-result", className="stack")
    return html.Div([scope, shown])


def details_slot(context: Context, run: RunDirectory, plan_id: str | None) -> Component:
    """What the verdict rests on; empty for the whole set."""
    return html.Div(details(context, run, plan_id), id="proof-details", className="stack")


def register(app: Dash, context: Context) -> None:
    """Redraw the proof when the job panel sees that it changed: a kernel came, a job ended."""

    @app.callback(
        Output("proof-result", "children"),
        Output("proof-details", "children"),
        Input("job-generation", "data"),
        State("proof-scope", "data"),
        prevent_initial_call=True,
    )
    def redraw(_generation: object, scope: dict[str, str | None]) -> object:
        try:
            run = context.store.open(scope["run"] or "")
            return result(context, run, scope["plan"]), details(context, run, scope["plan"])
        except AdvisorError as error:
            return error_state(error), []


def result(context: Context, run: RunDirectory, plan_id: str | None) -> list[Component]:
    """The verdict on one plan, or on the set where `plan_id` is None; nothing before applying."""
    applied = context.applied(run)
    if applied is None:
        return []
    if plan_id is None:
        return [_set(applied.set, applied)]
    verdict = _of_plan(applied, plan_id)
    return [_verdict(verdict)] if verdict else []


def details(context: Context, run: RunDirectory, plan_id: str | None) -> list[Component]:
    """Source, resources, numerics and timings of one plan, as far as there are any."""
    if plan_id is None:
        return []
    parts, applied = [_source(run.kernel(plan_id))], context.applied(run)
    verdict = _of_plan(applied, plan_id) if applied else None
    if verdict is not None:
        parts += [_resources(verdict.resources), _numerics(verdict), _timings(verdict)]
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
    facts = (
        ("Outputs agree", "", {True: "yes", False: "no", None: UNKNOWN}[result.outputs_agree]),
        (
            "Peak memory",
            format_bytes(result.peak_memory_before_bytes),
            format_bytes(result.peak_memory_after_bytes),
        ),
        ("Compile time", format_ns(result.compile_before_ns), format_ns(result.compile_after_ns)),
    )
    blocks.append(table(("Also measured", "Before", "After"), facts, "Other figures"))
    return section("Result", *blocks, note=f"Applied {moment(applied.created)} on {applied.device}")


def _verdict(verdict: PlanVerdict) -> Component:
    blocks: list[Component] = [_words(verdict.verdict, verdict.reason)]
    if verdict.measured is not None:
        blocks.append(_comparisons([("region, all sites", verdict.measured)]))
    figure = figures.predicted_measured(verdict)
    if figure is not None:
        label = "Predicted and measured saving per step, with intervals"
        blocks += [heading("Predicted against measured", 4), graph(figure, "scored", label)]
    return section("Result", *blocks, note=f"Sites swapped: {_swapped(verdict)}")


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


def _source(source: str | None) -> Component:
    if source is None:
        text = "The kernel is generated from the plan when the run is applied."
        return section("Generated kernel", message("Not generated yet", text))
    code = dmc.CodeHighlight(code=source, language="python")
    return section("Generated kernel", html.Div(code, id="kernel-source"))


def _resources(rows: tuple[KernelResources, ...]) -> Component:
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
        "Resources on each GPU",
        table(head, cells, "Resources of the kernel"),
        note="Read from the compiled binaries; no GPU is needed for it.",
    )


def _spills(resources: KernelResources) -> str:
    stored, loaded = resources.spill_store_bytes, resources.spill_load_bytes
    if stored == 0 and loaded == 0:
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
    note = f"{passed} of {len(numerics.cases)} cases passed against float64, executed {where}."
    return section("Numerics", table(head, cells, "Numeric cases"), note=note)


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
        "Eager",
        "Inductor",
        "Of copy bandwidth",
        "Host launch",
    )
    label = "Median time of the kernel and of its rivals, first shape"
    chart = graph(figures.kernel_timing(verdict.timings[0]), "kernel-timing", label)
    return section("Kernel timings", chart, table(head, cells, "Kernel timings"))
