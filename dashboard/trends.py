"""One metric of one workload over its runs: which there are, and the points of the chart."""

from __future__ import annotations

from typing import NamedTuple

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.metric_names import BETTER
from advisor.report.words import STEP_METRIC
from advisor.units import format_value
from dashboard.context import Context
from dashboard.figures_run import trend
from dashboard.parts import error_state, graph, message, moment, plain_name, section, table

_MAX_RUNS = 200


class Point(NamedTuple):
    """A run's value."""

    created: str
    run: str
    value: float
    unit: str


def panel(context: Context) -> Component:
    """Choices and chart; nothing where no workload was run twice."""
    targets = repeated(context)
    if not targets:
        text = "A trend needs two runs of one workload: profile it again after a change."
        return section("Trend", message("No workload has two runs yet", text))
    chosen = targets[0]
    names = [{"value": name, "label": plain_name(name)} for name in BETTER]
    picks = dmc.Group(
        [
            dmc.Select(id="trend-target", label="Workload", data=targets, value=chosen,
                       allowDeselect=False, searchable=True, className="wide"),
            dmc.Select(id="trend-metric", label="Metric", data=names, value=STEP_METRIC,
                       allowDeselect=False, searchable=True),
        ]
    )  # fmt: skip
    shown = html.Div(chart(context, chosen, STEP_METRIC), id="trend-chart")
    return section("Trend", picks, shown, note="One metric over the runs of a workload, by time.")


def repeated(context: Context) -> list[str]:
    """Workloads with two runs or more, that of the newest run first."""
    seen: dict[str, int] = {}
    for run in context.store.runs():
        try:
            target = context.summary(run).target
        except AdvisorError:
            continue  # told in the list
        seen[target] = seen.get(target, 0) + 1
    return [target for target, count in seen.items() if count > 1]


def points(context: Context, target: str, metric: str) -> list[Point]:
    """The values of the newest runs that have the metric, in order of time."""
    found = []
    for run in context.store.runs():
        try:
            summary = context.summary(run)
            if summary.target != target:
                continue
            value = context.report(run).metrics.get(metric)
        except AdvisorError:
            continue
        if value is not None and value.value is not None:
            found.append(Point(summary.created, run.id, value.value, value.unit))
        if len(found) == _MAX_RUNS:
            break
    return sorted(found)


def chart(context: Context, target: str, metric: str) -> Component:
    """The trend as chart and as table."""
    found = points(context, target, metric)
    if not found:
        return message("No values", f"No run of this workload has {plain_name(metric)}.")
    unit = found[0].unit
    figure = trend([(p.created, p.run, p.value) for p in found], unit, plain_name(metric))
    rows = [(moment(p.created), p.run, format_value(p.value, p.unit)) for p in found]
    values = html.Details([html.Summary("Values"), table(("Made", "Run", "Value"), rows, "Trend")])
    return html.Div([graph(figure, "trend", f"{plain_name(metric)} over runs"), values])


def register(app: Dash, context: Context) -> None:
    """Redraw for another workload or metric."""

    @app.callback(
        Output("trend-chart", "children"),
        Input("trend-target", "value"),
        Input("trend-metric", "value"),
        prevent_initial_call=True,
    )
    def redraw(target: str, metric: str) -> Component:
        try:
            return chart(context, target, metric)
        except AdvisorError as error:
            return error_state(error)
