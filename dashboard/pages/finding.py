"""`/run/ID/finding/ID`: one finding, why it holds, what it would be, and what was proved."""

from __future__ import annotations

import re

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from advisor.errors import UnreadableError
from advisor.model.findings import Evidence, Finding
from advisor.model.plan import FusionPlan
from advisor.model.report import Report
from advisor.units import format_bytes, format_ns
from dashboard import subgraph
from dashboard.context import Context
from dashboard.jobpanel import panel
from dashboard.page import Page
from dashboard.pages.frame import frame
from dashboard.parts import (
    KIND_COLORS,
    badge,
    figure_card,
    heading,
    message,
    plain_name,
    saving_text,
    section,
    table,
)
from dashboard.proof import details_slot, result_slot

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
    parts: list[Component] = [_head(found)]
    if found.plan_id is None:
        text = f"This finding has no generated kernel. What to do: {found.action}"
        parts.append(section("Apply", message("Nothing to apply from here", text)))
        parts += [_evidence(found), _where(found), _alternatives(found)]
    else:
        plan = context.plan(directory, found.plan_id)
        parts += [panel(context, directory, found.id), result_slot(context, directory, plan.id)]
        parts += [_plan(plan), _evidence(found), _where(found), _alternatives(found)]
        parts.append(details_slot(context, directory, plan.id))
    return frame(directory, report, "", *parts)


def find(report: Report, finding_id: str) -> Finding:
    """The finding of this id; raises `UnreadableError` if the report has none."""
    for finding in report.findings:
        if finding.id == finding_id:
            return finding
    raise UnreadableError(
        "no such finding", where=finding_id, remedy="the findings page lists those of this run"
    )


def _head(finding: Finding) -> Component:
    saving = finding.exposed_saving_ns
    interval = (
        f"{format_ns(saving.low)} to {format_ns(saving.high)} at {round(100 * saving.coverage)} %"
        if saving
        else "the evidence says what is missing"
    )
    cards = [
        figure_card(
            "Exposed saving per step",
            format_ns(saving.mid) if saving else "cannot judge",
            interval,
            "Difference of the step on its critical path before and after the change.",
        ),
        figure_card("Sites", f"{len(finding.locations)}" if finding.locations else "not located"),
        figure_card("Rule", finding.rule, f"evidence {finding.provenance}"),
    ]
    return html.Div(
        [
            dmc.Group([heading(finding.title, 2), badge(finding.kind, KIND_COLORS[finding.kind])]),
            dmc.Text(finding.action, className="wrap"),
            html.Div(cards, className="cards"),
        ],
        className="stack",
    )


def _evidence(finding: Finding) -> Component:
    rows = [(e.kind.replace("_", " "), e.text, _values(e)) for e in finding.evidence]
    blocks = [table(("Kind", "Fact", "Figures"), rows, "Evidence")]
    if finding.members:
        members = [(m.name, f"{m.count:,}", format_ns(m.time_ns)) for m in finding.members]
        head = ("Op or kernel", "Per step", "Time per step")
        blocks += [heading("Members", 4), table(head, members, "Members of the finding")]
    return section("Why", *blocks)


def _values(evidence: Evidence) -> str:
    return ", ".join(f"{plain_name(k)} {_value(k, v)}" for k, v in evidence.values.items())


def _value(key: str, value: float | int | str | None) -> str:
    if isinstance(value, str) or value is None:
        return value or "unknown"
    if key.endswith("_ns"):
        return format_ns(value)
    return format_bytes(value) if key.endswith("_bytes") else f"{value:,.6g}"


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


def _plan(plan: FusionPlan) -> Component:
    prediction = plan.prediction
    blocks: list[Component] = [subgraph.component(plan)]
    if prediction is not None:
        rows = [
            (
                "Kernel time per step",
                saving_text(prediction.before_ns),
                saving_text(prediction.after_ns),
            ),
            (
                "Bytes per step",
                format_bytes(prediction.bytes_before),
                format_bytes(prediction.bytes_after),
            ),
        ]
        blocks.append(table(("Prediction", "Now", "Fused"), rows, "Prediction"))
        blocks.append(dmc.Text(f"Rests on: {prediction.basis}.", size="sm", c="dimmed"))
    guards = [f"{g.kind.replace('_', ' ')}: {g.subject} {g.value}" for g in plan.guards]
    note = f"{len(plan.ops)} ops, {len(plan.sites)} sites, plan {plan.id}"
    if guards:
        blocks.append(dmc.Text(f"Guards: {'; '.join(guards)}.", size="sm", c="dimmed"))
    return section("The fusion", *blocks, note=note)


def _alternatives(finding: Finding) -> Component:
    if not finding.alternatives:
        return section("Alternatives", message("None priced", "No other route was priced here."))
    rows = [
        (ROUTE_WORDS[a.route], a.text, saving_text(a.saving_ns) if a.saving_ns else "not priced")
        for a in finding.alternatives
    ]
    head = ("Route", "What", "Saving per step")
    return section("Alternatives", table(head, rows, "Alternatives"))


PAGE = Page(
    name="finding",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/finding/(?P<finding>[a-z0-9][a-z0-9_.-]{0,79})"),
    layout=layout,
    title="Finding",
)
