"""`/run/ID`: what the step costs, what to do about it in order, and what applying gave."""

from __future__ import annotations

import re

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.metric_names import per_step_name
from advisor.model.report import Metric, Report
from advisor.report.text import headline
from advisor.report.words import cannot_judge, nothing_found, share, verdicts, worth
from advisor.store.directory import RunDirectory
from advisor.units import format_value
from dashboard import arithmetic, figures, pending
from dashboard.context import Context
from dashboard.figures_run import COMPILED, Moved, memory_roofline, moved, step_split
from dashboard.jobpanel import panel
from dashboard.page import Page
from dashboard.pages.frame import finding_link, frame
from dashboard.parts import (
    badge,
    cannot_show,
    figure_card,
    graph,
    kernel_time_ns,
    message,
    plain_name,
    section,
    table,
    worth_text,
)
from dashboard.pending import is_pending
from dashboard.proof import details_slot, result_slot
from dashboard.split import NOT_BUSY, PARTS, splits

# Shown as headline figures where the report has them, in this order.
HEADLINE: tuple[tuple[str, str], ...] = (
    ("step_ns", "Step time"),
    ("gpu_busy_per_step_ns", "GPU busy"),
    ("gpu_idle_fraction_per_step", "GPU idle, under the profiler"),
    ("kernel_launches_per_step", "Kernel launches"),
    ("kernels_per_step", "Kernels"),
    ("fusion_coverage_time", "Fusion coverage, by time"),
)

_LISTED = (
    "The findings page lists what was found all the same, and what could not be judged for lack of "
    "evidence."
)
_UNCOUNTED = " What the compiled kernels move today needs counters: profile with --ncu."


def layout(context: Context, run: str) -> Component:
    """The overview of one run."""
    directory = context.store.open(run)
    if is_pending(directory):
        return pending.layout(context, directory)
    report = context.report(directory)
    return frame(
        directory,
        report,
        "Overview",
        *_first(directory, report),
        _cards(report),
        _actions(directory, report),
        _split(report),
        panel(context, directory),
        result_slot(context, directory, ()),
        details_slot(context, directory, ()),
        html.Div([_savings(report), _roofline(context, directory, report)], className="grid-2"),
        arithmetic.panel(report),
        _kernels(report),
        _metrics(report),
        _warnings(report),
    )


def _first(run: RunDirectory, report: Report) -> list[Component]:
    """What to do and what to fuse first, and what that is worth: the verdict of the terminal."""
    told = [
        section(
            label,
            dmc.Text(finding_link(run, finding.id, finding.title), size="lg", fw=600),
            dmc.Text(f"Worth {worth(report, finding)}.", className="wrap"),
            dmc.Text(f"Do: {finding.action}", className="wrap"),
        )
        for label, finding in verdicts(report)
    ]
    return [html.Div(told, className="grid-2")] if told else []


def _cards(report: Report) -> Component:
    cards = [
        _card(label, report.metrics[name]) for name, label in HEADLINE if name in report.metrics
    ]
    cards.append(
        figure_card(
            "Saving of the recommended set",
            *_together(report),
            "Findings are not additive; this is what the whole list below saves together.",
        )
    )
    return html.Div(cards, className="cards")


def _together(report: Report) -> tuple[str, str]:
    """What the recommended set saves, and beside it what that rests on, or why it is unknown."""
    whole = report.recommended.set_saving_ns
    if whole is not None:
        return headline(whole), "predicted, per step"
    chosen = [f for f in report.findings if f.id in set(report.recommended.order)]
    if not chosen:
        return "none", "nothing is recommended"
    return "cannot judge", next(filter(None, map(cannot_judge, chosen)), "not on record")


def _card(label: str, metric: Metric) -> Component:
    return figure_card(
        label, format_value(metric.value, metric.unit), metric.provenance, metric.definition
    )


def _actions(run: RunDirectory, report: Report) -> Component:
    by_id = {finding.id: finding for finding in report.findings}
    chosen = [by_id[name] for name in report.recommended.order]
    if not chosen:
        return section(
            "What to do",
            message(
                "Nothing to recommend",
                f"{nothing_found(report)} {_LISTED if report.findings else ''}".strip(),
            ),
        )
    items = [
        html.Li(
            [
                finding_link(run, finding.id, finding.title),
                html.Div(
                    [
                        dmc.Text(finding.action, size="sm"),
                        badge(worth_text(finding), "blue"),
                    ],
                ),
            ]
        )
        for finding in chosen
    ]
    whole = report.recommended.set_saving_ns
    together = share(report, whole) if whole is not None else f"unknown, {_together(report)[1]}"
    note = (
        "In this order, least effort first. Savings are per step and overlap; together: "
        f"{together}."
    )
    return section("What to do", html.Ol(items, className="actions"), note=note)


def _split(report: Report) -> Component:
    """Where the step's time goes; what the report cannot say is said to be unknown."""
    title, found = "Where the step's time goes", splits(report)
    missing = [message(f"{s.name.capitalize()}: unknown", s.why) for s in found if not s.known]
    if len(missing) == len(found):
        return section(title, *missing)
    label = "Time of the step in parts, without and under the profiler"
    parts = {name for split in found for name, value in split.parts_ns.items() if value}
    rows = [(name, text) for name, _color, text in (*PARTS, NOT_BUSY) if name in parts]
    words = html.Details(
        [html.Summary("What the parts are"), table(("Part", "Definition"), rows, "Parts")]
    )
    return section(title, graph(step_split(found), "step-split", label), words, *missing)


def _roofline(context: Context, run: RunDirectory, report: Report) -> Component:
    """Bytes against time: plans as they are and would be, and kernels with counters."""
    title = "Memory roofline"
    points = [
        Moved(row.name, row.dram_bytes, row.time_ns, "kernel")
        for row in report.kernels
        if row.dram_bytes and row.time_ns
    ]
    stored, mode = set(run.plan_ids()), report.workload.mode
    unread = []
    for name in (summary.id for summary in report.plans if summary.id in stored):
        try:
            points += moved(context.plan(run, name), mode)
        except AdvisorError as error:
            unread.append(cannot_show(error))
    if not points and not unread:
        text = (
            "It needs bytes: of kernels from counters (profile with --ncu), or of plans, which a "
            "bare trace has none of."
        )
        return section(title, message("No bytes on record", text))
    hardware = report.hardware
    label = "Time per step against bytes moved, with the rate of this GPU's memory"
    figure = memory_roofline(points, hardware.dram_bandwidth_bytes_per_s)
    note = (
        "Above the line a kernel takes longer than its bytes need. Plans: predicted bytes and "
        f"times. Memory rate of {hardware.name}: {hardware.dram_bandwidth_provenance}."
        f"{_UNCOUNTED if mode == COMPILED else ''}"
    )
    return section(title, graph(figure, "roofline", label), *unread, note=note)


def _savings(report: Report) -> Component:
    if not any(finding.exposed_saving_ns for finding in report.findings):
        why = message("No saving of the step is known", _unpriced(report))
        known = [(finding, kernel_time_ns(finding)) for finding in report.findings]
        timed = [(finding, saving) for finding, saving in known if saving is not None]
        if not timed:
            return section("Savings", why)
        label = "Kernel time saved per step by each finding, predicted"
        drawn = graph(figures.kernel_savings(timed), "kernel-savings", label)
        return section("Kernel time saved by finding, predicted", why, drawn)
    figure = figures.savings(report.findings)
    return section(
        "Exposed saving by finding",
        graph(figure, "savings", "Exposed saving per step of each finding, with intervals"),
    )


def _unpriced(report: Report) -> str:
    """Why there is no saving to draw, and what would give one."""
    if not report.findings:
        return "No rule found anything to fuse."
    if any(kernel_time_ns(finding) for finding in report.findings):
        return (
            "Kernel time saved is predicted; each finding says what from. How much of it the step "
            "gets back is known only from a timed step: profile on a GPU."
        )
    return "The evidence of each finding says what it would take to judge it."


def _kernels(report: Report) -> Component:
    if not report.kernels:
        title, text = "No kernels in the trace", "The steps of the trace launched no kernel."
        if not any("trace" in source.kind or "kineto" in source.kind for source in report.sources):
            title = "Kernels were not timed"
            text = "Nothing ran on a GPU. Profile where there is one, or analyze a trace from it."
        return section("Kernels", message(title, text))
    label = "Time per step of the longest kernels"
    return section("Longest kernels", graph(figures.kernels(report.kernels), "kernels", label))


def _metrics(report: Report) -> Component:
    if not report.metrics:
        return section("Metrics", message("No metrics", "This report holds no metrics."))
    whole = {name for name in report.metrics if per_step_name(name) in report.metrics}
    per_step = [name for name in report.metrics if name not in whole]
    window = html.Details(
        [
            html.Summary("The same, of the whole recorded window"),
            _metric_table(report, sorted(whole), "Metrics of the window"),
        ]
    )
    shown = _metric_table(report, per_step, "Metrics of the run")
    return section("Metrics and their definitions", shown, *([window] if whole else []))


def _metric_table(report: Report, names: list[str], caption: str) -> Component:
    rows = [
        (
            plain_name(name),
            format_value(report.metrics[name].value, report.metrics[name].unit),
            report.metrics[name].provenance,
            report.metrics[name].definition,
        )
        for name in names
    ]
    return table(("Metric", "Value", "Provenance", "Definition"), rows, caption)


def _warnings(report: Report) -> Component:
    if not report.warnings:
        return html.Div()
    rows = [(w.code, f"{w.count:,}", w.message) for w in report.warnings]
    head = ("Code", "Count", "What was skipped, repaired or clipped")
    return section("Warnings", table(head, rows, "Warnings of the run"))


PAGE = Page(
    name="run", pattern=re.compile(r"/run/(?P<run>[\w-]+)"), layout=layout, title="Overview"
)
