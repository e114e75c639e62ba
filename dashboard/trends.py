"""One metric of one workload over its runs and their commits: which there are, and the chart."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.metric_names import BETTER
from advisor.report.words import STEP_METRIC, commit_text
from advisor.units import UNKNOWN, format_value
from dashboard.commits import Place, Point, places
from dashboard.context import Context, Summary
from dashboard.figures_run import trend
from dashboard.parts import cannot_show, graph, message, moment, plain_name, section, table

_MAX_RUNS = 200
_NOTE = (
    "One metric over the runs of a workload, by the commit of its source where that is known, else "
    "by time. Several runs of a commit: their median, with bars to the least and the largest."
)


def panel(context: Context) -> Component:
    """Choices and chart; nothing where no workload was run twice."""
    targets = repeated(context)
    if not targets:
        text = "A trend needs two runs of one workload: profile it again after a change."
        return section("Trend", message("No workload has two runs yet", text))
    chosen = targets[0]
    names = [{"value": name, "label": plain_name(name)} for name in BETTER]
    offered = [{"value": target, "label": target} for target in targets]
    picks = dmc.Group(
        [
            dmc.Select(id="trend-target", label="Workload", data=offered, value=chosen,
                       allowDeselect=False, searchable=True, className="wide"),
            dmc.Select(id="trend-metric", label="Metric", data=names, value=STEP_METRIC,
                       allowDeselect=False, searchable=True),
        ]
    )  # fmt: skip
    shown = html.Div(chart(context, chosen, STEP_METRIC), id="trend-chart")
    return section("Trend", picks, shown, note=_NOTE)


def repeated(context: Context) -> list[str]:
    """Workloads with two runs or more, that of the newest run first."""
    seen: dict[str, int] = {}
    for run in context.store.runs():
        try:
            name = _series(context.summary(run))
        except AdvisorError:
            continue  # told in the list
        seen[name] = seen.get(name, 0) + 1
    return [name for name, count in seen.items() if count > 1]


def _series(summary: Summary) -> str:
    """What runs must share to be points of one line: eager and compiled runs are two."""
    return " · ".join((summary.target, summary.mode, summary.gpu))


def points(context: Context, series: str, metric: str) -> list[Point]:
    """The values of the newest runs that have the metric."""
    found = []
    for run in context.store.runs():
        try:
            summary = context.summary(run)
            if _series(summary) != series:
                continue
            report = context.report(run)
        except AdvisorError:
            continue
        value, commit = report.metrics.get(metric), report.workload.commit
        if value is not None and value.value is not None:
            found.append(Point(summary.created, run.id, value.value, value.unit, commit))
        if len(found) == _MAX_RUNS:
            break
    return found


def chart(context: Context, series: str, metric: str) -> Component:
    """The trend as chart and as table."""
    found = places(points(context, series, metric))
    if not found:
        return message("No values", f"No run of this workload has {plain_name(metric)}.")
    rows = [_row(place, point) for place in found for point in place.points]
    head = ("Commit", "Committed", "Made", "Run", "Value")
    values = html.Details([html.Summary("Values"), table(head, rows, "Trend")])
    drawn = graph(trend(found, plain_name(metric)), "trend", f"{plain_name(metric)} over runs")
    return html.Div([drawn, values])


def _row(place: Place, point: Point) -> tuple[str, ...]:
    commit = place.commit
    known = (UNKNOWN, UNKNOWN)
    if commit is not None:
        committed = moment(commit.committed) if commit.committed else UNKNOWN
        known = (commit_text(commit), committed)
    return (*known, moment(point.created), point.run, format_value(point.value, point.unit))


def register(app: Dash, context: Context) -> None:
    """Redraw for another workload or metric."""

    @app.callback(
        Output("trend-chart", "children"),
        Input("trend-target", "value"),
        Input("trend-metric", "value"),
        prevent_initial_call=True,
    )
    def redraw(target: object, metric: object) -> Component:
        try:
            return chart(context, str(target), str(metric))  # a request may hold anything
        except AdvisorError as error:
            return cannot_show(error)
