"""`/run/ID/finding/ID`: one finding, why it holds, what it would be, and what was proved."""

from __future__ import annotations

import re
from functools import partial

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from advisor.errors import UnreadableError
from advisor.model.actions import ANSWERS
from advisor.model.findings import Evidence, Finding
from advisor.model.plan import FusionPlan
from advisor.model.report import Report
from advisor.report.text import counted, headline
from advisor.report.words import sites_of, way_price
from advisor.store.directory import RunDirectory
from advisor.units import format_bytes, format_ns
from dashboard import subgraph
from dashboard.context import Context
from dashboard.figures_run import COMPILED, memory_roofline, moved
from dashboard.jobpanel import panel
from dashboard.page import Page, timeline_path
from dashboard.pages.frame import frame
from dashboard.parts import (
    KIND_COLORS,
    badge,
    figure_card,
    graph,
    guarded,
    heading,
    kernel_saving,
    kernel_time_ns,
    message,
    plain_name,
    saving_text,
    section,
    table,
)
from dashboard.proof import details_slot, result_slot
from dashboard.timeline_panel import can_band

ROUTE_WORDS = {
    "generated_kernel": "Generated kernel",
    "library": "Library call",
    "graph_rewrite": "Graph rewrite",
    "compile_region": "Compile the region",
    "cuda_graph": "CUDA graph",
    "do_not_fuse": "Do not fuse",
}
_MAX_SITES = 200


def layout(context: Context, run: str, finding: str) -> Component:
    """The page of one finding."""
    directory = context.store.open(run)
    report = context.report(directory)
    found = find(report, finding)
    stored = set(directory.plan_ids())
    plans = tuple(name for name in plans_of(found) if name in stored)
    lost = len(plans_of(found)) - len(plans)
    head, why = _head(directory, found), [_evidence(found), _where(found), _alternatives(found)]
    if lost:
        text = "A report came without its plans, so what they fuse cannot be drawn or applied."
        why.insert(0, message(f"{counted(lost, 'plan')} of this finding not in the run", text))
    if not plans and found.rule not in ANSWERS:
        text = f"No generated kernel and no action answers this finding. What to do: {found.action}"
        nothing = section("Apply", message("Nothing to apply from here", text))
        return frame(directory, report, "", head, nothing, *why)
    parts = [
        panel(context, directory, found.id),
        result_slot(context, directory, plans, ANSWERS.get(found.rule, ()), found.id),
        *_plans(context, directory, report, plans),
        *why,
        details_slot(context, directory, plans),
    ]
    return frame(directory, report, "", head, *parts)


def plans_of(finding: Finding) -> tuple[str, ...]:
    """Ids of the plans of a finding, its main one first: one finding may need several kernels."""
    others = (name for option in finding.alternatives for name in option.plan_ids)
    return tuple(dict.fromkeys((*((finding.plan_id,) if finding.plan_id else ()), *others)))


def find(report: Report, finding_id: str) -> Finding:
    """The finding of this id; raises `UnreadableError` if the report has none."""
    for finding in report.findings:
        if finding.id == finding_id:
            return finding
    raise UnreadableError(
        "no such finding", where=finding_id, remedy="the findings page lists those of this run"
    )


def _head(run: RunDirectory, finding: Finding) -> Component:
    saving = finding.exposed_saving_ns
    interval = (
        f"{format_ns(saving.low)} to {format_ns(saving.high)} at {round(100 * saving.coverage)} %"
        if saving
        else "the evidence says what is missing"
    )
    cards = [
        figure_card(
            "Exposed saving per step",
            headline(saving) if saving else "cannot judge",
            interval,
            "Difference of the step on its critical path before and after the change.",
        ),
        *_kernel_card(finding),
        *([figure_card("Sites", f"{sites:,}")] if (sites := sites_of(finding)) else []),
        figure_card("Rule", finding.rule, f"evidence {finding.provenance}"),
    ]
    return html.Div(
        [
            dmc.Group([heading(finding.title, 2), badge(finding.kind, KIND_COLORS[finding.kind])]),
            dmc.Text(finding.action, className="wrap"),
            *_in_timeline(run, finding),
            html.Div(cards, className="cards"),
        ],
        className="stack",
    )


def _in_timeline(run: RunDirectory, finding: Finding) -> list[Component]:
    if not (run.trace_path.is_file() and can_band(finding)):
        return []
    return [dcc.Link("Show its kernels in the timeline", href=timeline_path(run.id, finding.id))]


def _kernel_card(finding: Finding) -> list[Component]:
    """The kernel time that the list of findings names, and a generated kernel's if another."""
    time_ns, kernel = kernel_time_ns(finding), kernel_saving(finding)
    if time_ns is None:
        return []
    note = "all sites, per step"
    if kernel is not None and kernel.mid == time_ns:
        note = f"{format_ns(kernel.low)} to {format_ns(kernel.high)}, {note}"
    elif kernel is not None:
        note = f"{note}; by a generated kernel {saving_text(kernel)}"
    return [figure_card("Kernel time saved, predicted", format_ns(time_ns), note)]


def _evidence(finding: Finding) -> Component:
    rows = [(e.kind.replace("_", " "), e.text, _values(e)) for e in finding.evidence]
    blocks = [table(("Kind", "Fact", "Figures"), rows, "Evidence")]
    if finding.members:
        timed = any(m.time_ns is not None for m in finding.members)
        members = [
            (m.name, f"{m.count:,}", *((format_ns(m.time_ns),) if timed else ()))
            for m in finding.members
        ]
        head = ("Op or kernel", "Per step", *(("Time per step",) if timed else ()))
        blocks += [
            heading("Members", 3, small=True),
            table(head, members, "Members of the finding"),
        ]
    return section("Why", *blocks)


def _values(evidence: Evidence) -> str:
    return ", ".join(f"{plain_name(k)} {_value(k, v)}" for k, v in evidence.values.items())


def _value(key: str, value: float | int | str | None) -> str:
    if isinstance(value, str) or value is None:
        return value or "unknown"
    if key.endswith("_ns"):
        return format_ns(value)
    if "bytes" in key.split("_"):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _where(finding: Finding) -> Component:
    if not finding.locations:
        return section("Where", message("No source location", "The trace names no source lines."))
    rows = [
        (
            place.module or "unknown",
            f"{place.file}:{place.line}" if place.file and place.line else place.file or "unknown",
        )
        for place in finding.locations[:_MAX_SITES]
    ]
    more = len(finding.locations) - len(rows)
    note = f"The first {len(rows)}; {more:,} more are in the report." if more else ""
    return section("Where", table(("Module", "Source line"), rows, "Sites"), note=note)


def _plans(
    context: Context, run: RunDirectory, report: Report, names: tuple[str, ...]
) -> list[Component]:
    """A section for each plan; one that cannot be read says so in its place."""
    bandwidth, mode = report.hardware.dram_bandwidth_bytes_per_s, report.workload.mode

    def drawn(name: str) -> list[Component]:
        return [_plan(context.plan(run, name), bandwidth, mode)]

    return [part for name in names for part in guarded(partial(drawn, name))]


def _plan(plan: FusionPlan, bandwidth: int | None, mode: str) -> Component:
    prediction = plan.prediction
    blocks: list[Component] = [subgraph.component(plan)]
    if prediction is not None:
        points = moved(plan, mode)
        if points:
            kinds = " and ".join(dict.fromkeys(point.kind for point in points))
            label = f"Time against bytes moved per step, {kinds}"
            figure = memory_roofline(points, bandwidth)
            blocks.append(graph(figure, f"roofline-{plan.id}", label))
        rows = [
            (
                "Kernel time per step",
                saving_text(prediction.before_ns),
                saving_text(prediction.after_ns),
            ),
            (
                "Bytes per step",
                format_bytes(prediction.bytes_before) + (", op by op" if mode == COMPILED else ""),
                format_bytes(prediction.bytes_after),
            ),
        ]
        blocks.append(table(("Prediction", "Now", "Fused"), rows, "Prediction"))
        blocks.append(dmc.Text(f"Rests on: {prediction.basis}.", size="sm", c="dimmed"))
    guards = [f"{g.kind.replace('_', ' ')}: {g.subject} {g.value}" for g in plan.guards]
    note = f"{counted(len(plan.ops), 'op')}, {counted(len(plan.sites), 'site')}, plan {plan.id}"
    if guards:
        blocks.append(dmc.Text(f"Guards: {'; '.join(guards)}.", size="sm", c="dimmed"))
    return section(f"The fusion: {plan.title}", *blocks, note=note)


def _alternatives(finding: Finding) -> Component:
    if not finding.alternatives:
        return section("Alternatives", message("None priced", "No other route was priced here."))
    rows = [(ROUTE_WORDS[a.route], a.text, way_price(a)) for a in finding.alternatives]
    head = ("Route", "What", "Saving per step")
    return section("Alternatives", table(head, rows, "Alternatives"))


PAGE = Page(
    name="finding",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/finding/(?P<finding>[a-z0-9][a-z0-9_.-]{0,79})"),
    layout=layout,
    title="Finding",
)
