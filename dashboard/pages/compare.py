"""`/compare/A/B`: two runs of the same work, and `/run/ID/regressions`: with which to compare."""

from __future__ import annotations

import re
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.comparison import Difference, ReportComparison
from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.report.compare import compare_reports
from advisor.report.compare_document import LEGEND, change_words, comparison_document
from advisor.report.report_document import short
from advisor.report.words import STEP_METRIC
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_ns, format_value
from dashboard.context import Context, Summary
from dashboard.documents import sections
from dashboard.figures_run import causes, shares
from dashboard.page import Page, run_path
from dashboard.pages.frame import finding_link, frame
from dashboard.parts import (
    cannot_show,
    figure_card,
    graph,
    heading,
    message,
    moment,
    plain_name,
    section,
    table,
    worth_text,
)

_HEADLINE = {
    STEP_METRIC: "Step time",
    "gpu_busy_per_step_ns": "GPU busy per step",
    "kernels_per_step": "Kernels per step",
}
_MAX_OTHERS = 50
_MAX_MEMBERS = 6


def compare_path(before: str, after: str) -> str:
    """The address of the comparison of two runs."""
    return f"/compare/{quote(before)}/{quote(after)}"


def layout(context: Context, before: str, after: str, anyway: str | None = None) -> Component:
    """What changed from one run to the other; `anyway` accepts that the work differs."""
    runs = (context.store.open(before), context.store.open(after))
    comparison, judged = _compared(context, *runs, ())
    if anyway and not comparison.comparability.comparable:
        checks = comparison.comparability.checks
        reasons = tuple(check.name for check in checks if check.required)
        comparison, judged = _compared(context, *runs, reasons)
    links = dmc.Group(
        [
            dcc.Link(f"before: {before}", href=run_path(before), className="wrap"),
            dcc.Link(f"after: {after}", href=run_path(after), className="wrap"),
            dcc.Link("swap the two", href=compare_path(after, before)),
        ]
    )
    body = [
        *_refused(comparison), *judged, *_headline(comparison), *_lost(comparison),
        *_causes(comparison), *sections(comparison_document(comparison, metric_namer=plain_name)),
    ]  # fmt: skip
    title = heading("What changed between two runs", 1)
    return html.Div([title, links, *body], className="stack")


def _compared(
    context: Context, before: RunDirectory, after: RunDirectory, accepted: tuple[str, ...]
) -> tuple[ReportComparison, list[Component]]:
    """The comparison, and what to say where its launches cannot be judged: figures are compared."""
    try:
        return context.comparisons.of(before, after, accepted), []
    except AdvisorError as error:
        reports = [context.report(run) for run in (before, after)]
        plain = compare_reports(reports[0], reports[1], (before.id, after.id), accepted)
        return plain, [cannot_show(error)]


def _headline(comparison: ReportComparison) -> list[Component]:
    """The few figures that answer whether it got faster; all others stand in the tables below."""
    known = {metric.name: metric for metric in comparison.metrics if not metric.note}
    cards = []
    for name, label in _HEADLINE.items():
        metric = known.get(name)
        if metric is None:
            continue
        found = metric.difference
        ends = (format_value(value, metric.unit) for value in (found.before, found.after))
        cards.append(figure_card(label, " → ".join(ends), _said(found, metric.unit)))
    return [html.Div(cards, className="cards")] if cards else []


def _said(found: Difference, unit: str) -> str:
    """The change, and what the mark before it means: the legend stands far below."""
    text = change_words(found, unit).text
    mark, _, meaning = LEGEND.get(found.significance, "").partition(" ")
    return (
        f"{text.removeprefix(mark).strip()}: {meaning}" if text.startswith(mark) and mark else text
    )


def _lost(comparison: ReportComparison) -> list[Component]:
    """Each fused kernel that lost beside what it replaced, and the shares of the change."""
    found: list[Component] = []
    lost = [item for item in comparison.regressions if item.kind == "regression"]
    if lost:
        head = ("What lost", "Now", "Before", "Fused, and what it replaced", "To do")
        rows = [(item.title, *_times(item), _members(item), item.action) for item in lost]
        found.append(section("Fusions that hurt", table(head, rows, "Fusions that hurt")))
    if comparison.bisection is not None and comparison.bisection.shares:
        label = "Change of the step on the device, by cause"
        note = "The bars add up to the change from the first activity of a step to its last."
        figure = graph(shares(comparison.bisection), "shares", label)
        found.append(section("Shares of the change", figure, note=note))
    return found


def _times(finding: Finding) -> tuple[str, str]:
    """Times a step, now and before: measured, or modelled where the title says so."""
    values = finding.evidence[0].values if finding.evidence else {}
    known = [values.get(name) for name in ("fused_ns", "members_ns")]
    now, before = (format_ns(v) if isinstance(v, int) else UNKNOWN for v in known)
    return now, before


def _members(finding: Finding) -> str:
    names = [short(member.name) for member in finding.members[:_MAX_MEMBERS]]
    more = len(finding.members) - len(names)
    return "; ".join([*names, f"and {more} more"] if more > 0 else names)


def _refused(comparison: ReportComparison) -> list[Component]:
    """Two runs of different work are told apart, and compared only if somebody insists."""
    if comparison.comparability.comparable:
        return []
    path = compare_path(comparison.before.label, comparison.after.label)
    text = "No figure is compared, since a difference would say nothing. The reasons are below."
    return [
        message("Not the same work", text, "orange"),
        dcc.Link("Compare all the same", href=f"{path}/anyway"),
    ]


def _causes(comparison: ReportComparison) -> list[Component]:
    if not any(role.time.change for role in comparison.roles):
        return []
    label = "Change of kernel time per step by role"
    note = "By role of kernel; the bars add up to the change of all kernel time."
    return [section("Causes", graph(causes(comparison.roles), "causes", label), note=note)]


def regressions(context: Context, run: str) -> Component:
    """Regressions found within a run, and the runs of the same work to compare it with."""
    directory = context.store.open(run)
    report = context.report(directory)
    return frame(
        directory,
        report,
        "Regressions",
        _within(directory, report),
        _others(context, directory, report),
    )


def _within(run: RunDirectory, report: Report) -> Component:
    found = [finding for finding in report.findings if finding.kind == "regression"]
    title = "Fusions of this run that hurt"
    if not found:
        text = (
            "No rule found a fusion that costs more than it saves. Whether something got slower "
            "since an earlier run is told by a comparison, below."
        )
        return section(title, message("None found", text))
    rows = [(finding_link(run, f.id, f.title), worth_text(f), f.action) for f in found]
    return section(title, table(("Finding", "Costs per step", "Cure"), rows, title))


def _others(context: Context, run: RunDirectory, report: Report) -> Component:
    title = "Compare with another run of this workload"
    others = list(_of_workload(context, run, report))[:_MAX_OTHERS]
    if not others:
        text = (
            "The store holds no other run of it. Profile it again after a change, or pick any two "
            "runs on the list of runs."
        )
        return section(title, message("Nothing to compare with", text))
    rows = [
        (
            dcc.Link(f"{other} → this run", href=compare_path(other, run.id), className="wrap"),
            moment(summary.created),
            summary.mode,
            summary.gpu,
        )
        for other, summary in others
    ]
    return section(title, table(("Compare", "Made", "Mode", "GPU"), rows, title))


def _of_workload(context: Context, run: RunDirectory, report: Report) -> list[tuple[str, Summary]]:
    found = []
    for other in context.store.runs():
        try:
            summary = context.summary(other)
        except AdvisorError:
            continue  # it stays on the list of runs, with the reason
        if other.id != run.id and summary.target == report.workload.target:
            found.append((other.id, summary))
    return sorted(found, key=lambda pair: pair[1].created, reverse=True)


COMPARE = Page(
    name="compare",
    pattern=re.compile(r"/compare/(?P<before>[\w-]+)/(?P<after>[\w-]+)(?:/(?P<anyway>anyway))?"),
    layout=layout,
    title="Compare",
)
REGRESSIONS = Page(
    name="regressions",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/regressions"),
    layout=regressions,
    title="Regressions",
)
