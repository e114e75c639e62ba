"""Figures as pure functions of records; colours are Okabe and Ito's, told apart by every reader."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from advisor.model.applied import Comparison, KernelTiming, PlanVerdict, Timing
from advisor.model.findings import Finding
from advisor.model.report import KernelRow
from advisor.units import NS_PER_MS, NS_PER_US
from dashboard.names import kernel_name
from dashboard.roles import GROUPS, group_of

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8A8F98"
GRID = "rgba(128,128,128,0.25)"  # seen on light and dark pages
KIND_COLORS = {"opportunity": BLUE, "regression": ORANGE, "note": GREY}
_MAX_NAME = 34
_ROW_PX = 34


def savings(findings: Sequence[Finding]) -> go.Figure:
    """Exposed saving per step of each priced finding, with its interval, the largest on top."""
    priced = [(f, f.exposed_saving_ns) for f in findings if f.exposed_saving_ns is not None]
    priced.sort(key=lambda pair: pair[1].mid)
    unit, name = unit_of([saving.high for _, saving in priced])
    figure = go.Figure(
        go.Bar(
            x=[saving.mid / unit for _, saving in priced],
            y=[short_label(f.title, f"#{len(priced) - i}") for i, (f, _) in enumerate(priced)],
            orientation="h",
            marker={"color": [KIND_COLORS[finding.kind] for finding, _ in priced]},
            error_x={
                "type": "data",
                "array": [(s.high - s.mid) / unit for _, s in priced],
                "arrayminus": [(s.mid - s.low) / unit for _, s in priced],
                "color": GREY,
            },
            hovertemplate="%{x:.3g} " + name + "<extra></extra>",
        )
    )
    return styled(figure, f"exposed saving per step, {name}", len(priced))


def kernel_savings(known: Sequence[tuple[Finding, int]]) -> go.Figure:
    """Kernel time, ns, that goes with findings where what the step gets back of it is unknown."""
    known = sorted(known, key=lambda pair: pair[1])
    unit, name = unit_of([saving for _, saving in known])
    figure = go.Figure(
        go.Bar(
            x=[saving / unit for _, saving in known],
            y=[short_label(f.title, f"#{len(known) - i}") for i, (f, _) in enumerate(known)],
            orientation="h",
            marker={"color": [KIND_COLORS[finding.kind] for finding, _ in known]},
            hovertemplate="%{x:.3g} " + name + "<extra></extra>",
        )
    )
    return styled(figure, f"kernel time saved per step, {name}", len(known))


def kernels(rows: Sequence[KernelRow], limit: int = 12) -> go.Figure:
    """Time per step of the longest kernels, coloured by their group of roles."""
    longest = sorted(rows, key=lambda row: row.time_ns)[-limit:]
    unit, name = unit_of([row.time_ns for row in longest])
    labels = [
        short_label(kernel_name(row.name), f"#{len(longest) - i}") for i, row in enumerate(longest)
    ]
    figure = go.Figure()
    groups = sorted({group_of(row.role) for row in longest})
    for group in groups:
        own = [
            (label, row)
            for label, row in zip(labels, longest, strict=True)
            if group_of(row.role) == group
        ]
        figure.add_bar(
            x=[row.time_ns / unit for _, row in own],
            y=[label for label, _ in own],
            orientation="h",
            name=GROUPS[group].name,
            marker={"color": GROUPS[group].color},
            customdata=[plain(row.role) for _, row in own],
            hovertemplate="%{x:.3g} " + name + ", %{customdata}<extra></extra>",
        )
    figure.update_yaxes(categoryorder="array", categoryarray=labels)
    return styled(figure, f"time per step, {name}", len(longest), legend=len(groups) > 1)


def comparison(rows: Sequence[tuple[str, Comparison]]) -> go.Figure:
    """Before and after of each comparison, with the intervals of the medians."""
    timings = [t for _, c in rows for t in (c.before, c.after)]
    unit, name = unit_of([timing.high_ns for timing in timings])
    figure = go.Figure()
    for word, color in (("after", GREEN), ("before", GREY)):
        own = [c.before if word == "before" else c.after for _, c in rows]
        figure.add_bar(
            y=[label for label, _ in rows],
            x=[timing.median_ns / unit for timing in own],
            orientation="h",
            name=word,
            marker={"color": color},
            error_x=_interval(own, unit),
            hovertemplate="%{x:.4g} " + name + "<extra>" + word + "</extra>",
        )
    return styled(figure, f"median time, {name}", 2 * len(rows), legend=True)


def predicted_measured(verdict: PlanVerdict) -> go.Figure | None:
    """The predicted and the measured saving on one axis, None unless both are known."""
    if verdict.predicted_ns is None or verdict.measured is None:
        return None
    predicted, measured = verdict.predicted_ns, verdict.measured
    points = (
        ("measured", measured.gain_low_ns, measured.gain_mid_ns, measured.gain_high_ns, GREEN),
        ("predicted", predicted.low, predicted.mid, predicted.high, BLUE),
    )
    unit, name = unit_of([point[3] for point in points])
    figure = go.Figure()
    for word, low, mid, high, color in points:
        figure.add_scatter(
            x=[mid / unit],
            y=[word],
            mode="markers",
            marker={"color": color, "size": 12},
            error_x={
                "type": "data",
                "array": [(high - mid) / unit],
                "arrayminus": [(mid - low) / unit],
                "thickness": 3,
                "color": color,
            },
            hovertemplate="%{x:.4g} " + name + "<extra>" + word + "</extra>",
        )
    figure.update_xaxes(rangemode="tozero")
    return styled(figure, f"saving per step, {name}", 2)


def kernel_timing(timing: KernelTiming) -> go.Figure:
    """One kernel at one shape against eager, Inductor and a copy of the same bytes."""
    named = (
        ("copy of the same bytes", timing.copy, GREY),
        ("Inductor", timing.inductor, ORANGE),
        ("op by op", timing.eager, ORANGE),
        ("generated kernel", timing.kernel, GREEN),
    )
    known = [(name, value, color) for name, value, color in named if value is not None]
    unit, name = unit_of([value.high_ns for _, value, _ in known])
    figure = go.Figure(
        go.Bar(
            x=[value.median_ns / unit for _, value, _ in known],
            y=[label for label, _, _ in known],
            orientation="h",
            marker={"color": [color for _, _, color in known]},
            error_x=_interval([value for _, value, _ in known], unit),
            hovertemplate="%{x:.4g} " + name + "<extra></extra>",
        )
    )
    return styled(figure, f"median time, {name}", len(known))


def _interval(timings: Sequence[Timing], unit: int) -> dict[str, object]:
    return {
        "type": "data",
        "array": [(t.high_ns - t.median_ns) / unit for t in timings],
        "arrayminus": [(t.median_ns - t.low_ns) / unit for t in timings],
        "color": "#5c5f66",
    }


def unit_of(values_ns: Sequence[int]) -> tuple[int, str]:
    largest = max(values_ns, default=0)
    return (NS_PER_MS, "ms") if largest >= NS_PER_MS else (NS_PER_US, "µs")


def plain(text: str) -> str:
    """Text that plotly shows as it is: it reads tags and entities in labels as markup."""
    visible = "".join(c if c.isprintable() else " " for c in text)
    return visible.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def short_label(text: str, rank: str) -> str:
    """A short label, told from others of the same beginning by its rank."""
    short = text if len(text) <= _MAX_NAME else text[: _MAX_NAME - 1] + "…"
    return plain(f"{rank} {short}")


def styled(figure: go.Figure, axis: str, rows: int, *, legend: bool = False) -> go.Figure:
    figure.update_layout(
        height=70 + _ROW_PX * max(rows, 1) + (30 if legend else 0),
        margin={"l": 8, "r": 16, "t": 30 if legend else 8, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#7a7f87"},
        bargap=0.35,
        showlegend=legend,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "reversed"},
    )
    figure.update_xaxes(title=axis, gridcolor=GRID, zeroline=False)
    figure.update_yaxes(automargin=True, gridcolor=GRID, showgrid=False, zeroline=False)
    return figure
