"""`/run/ID/timeline` and `/run/ID/overlap`: streams and ranks over time."""

from __future__ import annotations

import re

from dash import html
from dash.development.base_component import Component

from advisor.model.report import Report
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_value
from dashboard.context import Context
from dashboard.page import Page
from dashboard.pages.frame import finding_link, frame
from dashboard.parts import figure_card, message, section, table, worth_text
from dashboard.timeline_panel import panel

_OVERLAP_RULES = ("straggler-rank", "exposed-communication")


def layout(context: Context, run: str, finding: str | None = None) -> Component:
    """Streams × time; a finding in the address is marked."""
    directory = context.store.open(run)
    report = context.report(directory)
    picture = panel(context, directory, report, ("stream",), finding)
    note = "Each stream's height is how full that slice of time is, by role; zoom in for kernels."
    return frame(directory, report, "Timeline", section("Timeline", picture, note=note))


def overlap(context: Context, run: str) -> Component:
    """Ranks × time: what each computes, communicates, and communicates with nothing beside it."""
    directory = context.store.open(run)
    report = context.report(directory)
    note = "The lowest row of a rank is exposed: communication while that rank computes nothing."
    picture = panel(context, directory, report, ("compute", "communication", "exposed"))
    blocks = [_cards(report), section("Ranks over time", picture, note=note)]
    blocks.append(_findings(directory, report))
    return frame(directory, report, "Overlap", *blocks)


def _cards(report: Report) -> Component:
    named = (
        ("comm_union_per_step_ns", "Communication"),
        ("exposed_comm_per_step_ns", "of it, exposed"),
    )
    cards = [figure_card("Ranks of the job", str(report.workload.world_size))]
    for name, label in named:
        metric = report.metrics.get(name)
        value = UNKNOWN if metric is None else format_value(metric.value, metric.unit)
        text = metric.definition if metric else ""
        cards.append(figure_card(label, value, f"rank {report.workload.rank}, per step", text))
    return html.Div(cards, className="cards")


def _findings(run: RunDirectory, report: Report) -> Component:
    found = [finding for finding in report.findings if finding.rule in _OVERLAP_RULES]
    if not found:
        text = (
            "The report says nothing of ranks that wait. To compare ranks, analyze the traces of "
            "all of them together: fusion-advisor analyze RANK0 RANK1 … --out RUN"
        )
        return section("Stragglers and exposed communication", message("No finding", text))
    rows = [(finding_link(run, f.id, f.title), worth_text(f), f.action) for f in found]
    head = ("Finding", "Saving per step", "What to do")
    return section("Stragglers and exposed communication", table(head, rows, "Findings of overlap"))


TIMELINE = Page(
    name="timeline",
    pattern=re.compile(
        r"/run/(?P<run>[\w-]+)/timeline(?:/(?P<finding>[a-z0-9][a-z0-9_.-]{0,79}))?"
    ),
    layout=layout,
    title="Timeline",
)
OVERLAP = Page(
    name="overlap",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/overlap"),
    layout=overlap,
    title="Overlap",
)
