"""`/run/ID/compiler`: where the compiler left the graph, why it compiled again, what it cost."""

from __future__ import annotations

import re

from dash import html
from dash.development.base_component import Component

from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_value
from dashboard.context import Context
from dashboard.page import Page
from dashboard.pages.frame import finding_link, frame
from dashboard.parts import figure_card, message, section, table

FIGURES: tuple[tuple[str, str], ...] = (
    ("graphs", "Graphs"),
    ("graph_breaks", "Graph breaks"),
    ("recompiles", "Recompiles"),
    ("compile_ns", "Time in the compiler"),
    ("compile_backend_ns", "of it, backend"),
    ("compile_inductor_ns", "of it, Inductor"),
    ("compile_code_generation_ns", "of it, code generation"),
    ("cache_hit_fraction", "Cache hits"),
)
_RULES = (("graph-break", "Graph breaks"), ("recompile", "Recompiles"))


def layout(context: Context, run: str) -> Component:
    """What the compiler said of itself."""
    directory = context.store.open(run)
    report = context.report(directory)
    if not any(name in report.metrics for name, _ in FIGURES):
        text = (
            "A recorded trace does not tell what the compiler did. Profile the workload itself: "
            "fusion-advisor profile TARGET --mode compile"
        )
        empty = message("The compiler was not watched", text)
        return frame(directory, report, "Compiler", empty)
    lists = [_list(directory, report, rule, title) for rule, title in _RULES]
    return frame(directory, report, "Compiler", _cards(report), *lists)


def _cards(report: Report) -> Component:
    cards = []
    for name, label in FIGURES:
        metric = report.metrics.get(name)
        value = UNKNOWN if metric is None else format_value(metric.value, metric.unit)
        text = "" if metric is None else metric.definition
        cards.append(figure_card(label, value, metric.provenance if metric else "", text))
    return html.Div(cards, className="cards")


def _list(run: RunDirectory, report: Report, rule: str, title: str) -> Component:
    found = [finding for finding in report.findings if finding.rule == rule]
    if not found:
        return section(title, message(f"No {title.lower()}", _none(report, rule)))
    rows = [
        (finding_link(run, f.id, _place(f)), "; ".join(e.text for e in f.evidence), f.action)
        for f in found
    ]
    return section(title, table(("Where", "Why", "What to do"), rows, title))


def _none(report: Report, rule: str) -> str:
    name = "graph_breaks" if rule == "graph-break" else "recompiles"
    metric = report.metrics.get(name)
    if metric is None or metric.value is None:
        return "This run did not record them; profile again with this version."
    if metric.value:
        return f"{metric.value:g} counted, but the run does not name their lines."
    return "The compiler reported none."


def _place(finding: Finding) -> str:
    place = next(iter(finding.locations), None)
    if place is None or place.file is None:
        return finding.title
    return f"{place.file}:{place.line}" if place.line else place.file


PAGE = Page(
    name="compiler",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/compiler"),
    layout=layout,
    title="Compiler",
)
