"""A fusion op by op: what each costs in registers, spills and occupancy, where a run holds it."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.resources import Cliff, CliffPoint, Fit
from advisor.report.resources import cliff_verdict
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_bytes, format_fraction
from dashboard.figures import BLUE, GREEN, GREY, ORANGE, plain, styled
from dashboard.parts import error_state, graph, message, section, table

FIT_COLORS: dict[Fit, str] = {"use": BLUE, "avoid": ORANGE, "unknown": GREY}
FIT_WORDS: dict[Fit, str] = {"use": "to use", "avoid": "to avoid", "unknown": "not known"}


def cliff_sections(
    run: RunDirectory, plan_id: str, title: str, *, may_start: bool
) -> list[Component]:
    """A section a GPU that the run holds a cliff of; how to make one where there is none.

    Who may apply gets a button that starts the job; sizes are read from binaries, nothing runs.
    """
    try:
        cliffs = run.cliffs(plan_id)
    except AdvisorError as error:
        return [section(f"Op by op: {title}", error_state(error))]
    if not cliffs:
        command = f"fusion-advisor cliff {run.id} --only {plan_id} --save"
        text = f"In the folder of the runs, `{command}` finds out; it needs no GPU."
        if not may_start:
            found = message("What each op costs is not on record", text)
            return [section(f"Op by op: {title}", found)]
        note = (
            "Registers, spills and occupancy of the kernel with its first op, the first two, and "
            "so on: it shows whether one more op is too many. Compiled, not run; no GPU is needed."
        )
        name: Any = {"type": "cliff", "plan": plan_id}
        button = dmc.Button("Find out what each op costs", id=name, n_clicks=0, variant="default")
        return [section(f"Op by op: {title}", html.Div(button), note=note)]
    return [_section(cliff) for cliff in cliffs]


def _section(cliff: Cliff) -> Component:
    label = "Registers and occupancy of the kernel with one more op each"
    head = ("Ops", "The last one", "Inputs, outputs", "Registers", "Spills, per thread",
            "Occupancy, theoretical (limiter)", "Costs", "Verdict")  # fmt: skip
    return section(
        f"Op by op on {cliff.gpu}: {cliff.title}",
        message("Cliff" if cliff.falls_at is not None else "No cliff", cliff_verdict(cliff)),
        graph(figure(cliff), f"cliff-{cliff.plan_id}-{cliff.gpu}", label),
        table(head, [_row(point) for point in cliff.points], f"Op by op on {cliff.gpu}"),
        note=f"All launched as {cliff.config}; compiled, not run.",
    )


def _row(point: CliffPoint) -> tuple[str, ...]:
    row = point.resources
    known = row.spill_store_bytes is not None or row.spill_load_bytes is not None
    limiter = f" ({row.limiter.replace('_', ' ')})" if row.limiter else ""
    return (
        str(point.ops),
        point.op,
        f"{point.inputs}, {point.outputs}",
        UNKNOWN if row.registers is None else str(row.registers),
        format_bytes((row.spill_store_bytes or 0) + (row.spill_load_bytes or 0))
        if known
        else UNKNOWN,
        f"{format_fraction(row.occupancy)}{limiter}",
        point.loss,
        FIT_WORDS[point.verdict] + ("" if point.verdict == "use" else f": {point.why}"),
    )


def figure(cliff: Cliff) -> go.Figure:
    """Registers as bars, coloured by the verdict, and occupancy as a line; what is not known is
    left out."""
    chart = go.Figure()
    for verdict, color in FIT_COLORS.items():
        own = [
            p for p in cliff.points if p.verdict == verdict and p.resources.registers is not None
        ]
        if own:
            chart.add_bar(
                x=[point.ops for point in own],
                y=[point.resources.registers for point in own],
                name=f"registers, {FIT_WORDS[verdict]}",
                marker={"color": color},
                customdata=[plain(point.op) for point in own],
                hovertemplate="%{customdata}<br>%{y} registers<extra></extra>",
            )
    held = [point for point in cliff.points if point.resources.occupancy is not None]
    chart.add_scatter(
        x=[point.ops for point in held],
        y=[100 * (point.resources.occupancy or 0.0) for point in held],
        name="occupancy, %",
        mode="lines+markers",
        line={"color": GREEN, "shape": "hv"},
        yaxis="y2",
        hovertemplate="%{y:.0f} % occupancy<extra></extra>",
    )
    chart = styled(chart, "ops in the kernel", 8, legend=True)
    chart.update_yaxes(title="registers per thread", rangemode="tozero", showgrid=True)
    chart.update_layout(
        yaxis2={"title": "occupancy, %", "overlaying": "y", "side": "right", "range": [0, 105]}
    )
    return chart
