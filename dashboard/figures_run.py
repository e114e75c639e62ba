"""Figures of a whole run, and of several: the step in parts, roofline, trend, causes, scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from advisor.model.comparison import RoleChange
from advisor.model.plan import FusionPlan
from advisor.units import NS_PER_MS, format_bytes, format_ns, format_value
from dashboard.figures import BLUE, GREEN, GREY, ORANGE, plain, short_label, styled, unit_of
from dashboard.parts import VERDICT_WORDS
from dashboard.split import NOT_BUSY, PARTS, Split

BYTES_PER_GB = 1_000_000_000
KEPT_SYMBOLS = {"kept": "circle", "reverted": "x", "refused": "diamond", "not_measured": "square"}


class Moved(NamedTuple):
    """Bytes moved in a time: a kernel, a plan as it is or as it would be."""

    name: str
    bytes: int
    time_ns: int
    kind: str


class Scored(NamedTuple):
    """A prediction beside its measurement, ns saved per step: (low, mid, high) of each."""

    name: str
    verdict: str
    predicted: tuple[int, int, int]
    measured: tuple[int, int, int]


def moved(plan: FusionPlan) -> list[Moved]:
    """The bytes and times of a plan per step, as it is and fused, as far as predicted."""
    prediction = plan.prediction
    if prediction is None:
        return []
    pairs = (
        ("now", prediction.bytes_before, prediction.before_ns),
        ("fused", prediction.bytes_after, prediction.after_ns),
    )
    return [
        Moved(plan.title, size, time.mid, kind)
        for kind, size, time in pairs
        if size and time is not None and time.mid > 0
    ]


def step_split(splits: Sequence[Split]) -> go.Figure:
    """One bar a clock, in its parts."""
    drawn = [split for split in reversed(splits) if split.known]
    unit, name = unit_of([split.total_ns or 0 for split in drawn])
    figure = go.Figure()
    for part, color, _text in (*PARTS, NOT_BUSY):
        values = [split.parts_ns.get(part, 0) for split in drawn]
        if not any(values):
            continue
        shares = [
            f"{100 * value / (split.total_ns or 1):.1f} %"
            for value, split in zip(values, drawn, strict=True)
        ]
        figure.add_bar(
            y=[split.name for split in drawn],
            x=[value / unit for value in values],
            orientation="h",
            name=part,
            marker={"color": color, "line": {"color": "#ffffff", "width": 1}},
            text=shares,
            textposition="inside",
            insidetextanchor="middle",
            customdata=shares,
            hovertemplate=f"{part}: %{{x:.3g}} {name}, %{{customdata}}<extra></extra>",
        )
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"})
    figure = styled(figure, f"time per step, {name}", 2 * len(drawn), legend=True)
    figure.update_layout(legend={"traceorder": "normal"}, height=150 + 60 * len(drawn))
    return figure


def memory_roofline(points: Sequence[Moved], bandwidth: int | None) -> go.Figure:
    """Time against bytes, both logarithmic; on the line a kernel moves its bytes at full rate."""
    figure = go.Figure()
    symbols = {"now": ("circle", ORANGE), "fused": ("diamond", GREEN), "kernel": ("square", BLUE)}
    for kind, (symbol, color) in symbols.items():
        own = [point for point in points if point.kind == kind]
        if own:
            figure.add_scatter(
                x=[point.bytes for point in own],
                y=[point.time_ns / NS_PER_MS for point in own],
                mode="markers",
                name=kind,
                marker={"symbol": symbol, "color": color, "size": 10},
                text=[
                    f"{short_label(p.name, '')}: {format_bytes(p.bytes)} in {format_ns(p.time_ns)}"
                    for p in own
                ],
                hovertemplate="%{text}<extra>" + kind + "</extra>",
            )
    if bandwidth and points:
        low, high = min(p.bytes for p in points) / 2, max(p.bytes for p in points) * 2
        figure.add_scatter(
            x=[low, high],
            y=[1_000 * edge / bandwidth for edge in (low, high)],
            mode="lines",
            name=f"{bandwidth / BYTES_PER_GB:,.0f} GB/s",
            line={"color": GREY, "dash": "dash"},
            hoverinfo="skip",
        )
    figure = styled(figure, "bytes moved per step", 7, legend=True)
    figure.update_xaxes(type="log", exponentformat="SI")
    figure.update_yaxes(type="log", title="time per step, ms", showgrid=True)
    return figure


def trend(points: Sequence[tuple[str, str, float]], unit: str, metric: str) -> go.Figure:
    """One metric over runs in order of time: (moment, run, value)."""
    scale, name = unit_of([round(v) for *_, v in points]) if unit == "ns" else (1, unit)
    figure = go.Figure(
        go.Scatter(
            x=[moment for moment, _, _ in points],
            y=[value / scale for *_, value in points],
            mode="lines+markers",
            marker={"color": BLUE, "size": 9},
            line={"color": BLUE},
            customdata=[[run, format_value(value, unit)] for _, run, value in points],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
    )
    figure = styled(figure, "when the run was made", 6)
    figure.update_yaxes(title=f"{plain(metric)}, {name}", rangemode="tozero", showgrid=True)
    return figure


def causes(changes: Sequence[RoleChange]) -> go.Figure:
    """Change of kernel time per step by role: the bars add up to the change of their sum."""
    known = [(c.role, c.time.change) for c in changes if c.time.change]
    known.sort(key=lambda pair: pair[1])
    unit, name = unit_of([abs(round(change)) for _, change in known])
    figure = go.Figure(
        go.Bar(
            x=[change / unit for _, change in known],
            y=[plain(role) for role, _ in known],
            orientation="h",
            marker={"color": [ORANGE if change > 0 else GREEN for _, change in known]},
            text=[f"{'slower' if change > 0 else 'faster'}" for _, change in known],
            hovertemplate="%{y}: %{x:+.3g} " + name + "<extra></extra>",
        )
    )
    return styled(
        figure, f"change of kernel time per step, {name}; right of 0 is slower", len(known)
    )


def calibration(rows: Sequence[Scored]) -> go.Figure:
    """Measured against predicted saving; on the diagonal a prediction came true."""
    unit, name = unit_of([max(abs(v) for v in (*r.predicted, *r.measured)) for r in rows])
    figure = go.Figure()
    colors = {"kept": GREEN, "reverted": ORANGE, "refused": "#D55E00", "not_measured": GREY}
    for verdict, symbol in KEPT_SYMBOLS.items():
        own = [row for row in rows if row.verdict == verdict]
        if not own:
            continue
        figure.add_scatter(
            x=[row.predicted[1] / unit for row in own],
            y=[row.measured[1] / unit for row in own],
            mode="markers",
            name=VERDICT_WORDS[verdict].lower(),
            marker={"symbol": symbol, "size": 11, "color": colors[verdict]},
            error_x=_ends([row.predicted for row in own], unit),
            error_y=_ends([row.measured for row in own], unit),
            text=[short_label(row.name, "") for row in own],
            hovertemplate="%{text}: predicted %{x:.3g}, measured %{y:.3g} "
            + name
            + "<extra></extra>",
        )
    edges = [v / unit for row in rows for v in (*row.predicted, *row.measured)] or [0.0]
    ends = [min(0.0, *edges), max(edges)]
    figure.add_scatter(
        x=ends, y=ends, mode="lines", name="as predicted", hoverinfo="skip",
        line={"color": GREY, "dash": "dash"},
    )  # fmt: skip
    figure = styled(figure, f"predicted saving per step, {name}", 9, legend=True)
    figure.update_yaxes(title=f"measured, {name}", showgrid=True)
    return figure


def _ends(values: Sequence[tuple[int, int, int]], unit: int) -> dict[str, object]:
    return {
        "type": "data",
        "array": [(high - mid) / unit for _, mid, high in values],
        "arrayminus": [(mid - low) / unit for low, mid, _ in values],
        "color": GREY,
    }
