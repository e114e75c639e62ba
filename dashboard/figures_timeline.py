"""Streams × time: a picture of cells as one image, its axes, and names where they fit."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from advisor.store.timeline import Timeline
from advisor.units import NS_PER_MS, NS_PER_US, format_ns
from dashboard.figures import GRID, short_label
from dashboard.roles import GROUPS
from dashboard.timeline_view import BAND, BAND_LEVELS, COLUMNS, LEVELS, Picture, track_name

TRACK_LEVELS = LEVELS + 2
BAND_COLOR = "#AA3377"
_LEVEL_PX = 5
_SCALE_TOP = BAND + 1


def timeline(source: Timeline, shown: Picture) -> go.Figure:
    """The picture; time is in the unit of the axis title, rows are levels (see `track_at`)."""
    unit, name = axis_unit(source)
    first, last = shown.window.first_ns / unit, shown.window.last_ns / unit
    rows = len(shown.cells)
    step = (last - first) / COLUMNS
    figure = go.Figure(
        go.Heatmap(
            z=shown.cells,
            x0=first + step / 2,
            dx=step,
            y0=0.5,
            dy=1,
            zmin=0,
            zmax=_SCALE_TOP,
            colorscale=_colors(),
            showscale=False,
            hovertemplate=f"%{{x:.6g}} {name}<extra></extra>",
        )
    )
    _add_names(figure, shown, unit)
    ranks = len({track.rank for track in source.index.tracks}) > 1
    labels = [track_name(source.index.tracks[place], ranks) for place in shown.tracks]
    places = [TRACK_LEVELS * i + LEVELS / 2 for i in range(len(labels))]
    if shown.banded:
        labels.append("finding")
        places.append(rows - BAND_LEVELS / 2)
    figure.update_layout(
        height=70 + _LEVEL_PX * max(rows, 8),
        margin={"l": 8, "r": 16, "t": 8, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#7a7f87"},
        dragmode="pan",
        showlegend=False,
        uirevision="timeline",
    )
    figure.update_xaxes(
        title=f"time, {name}", range=[first, last], gridcolor=GRID,
        zeroline=False, minallowed=0, maxallowed=source.index.length_ns / unit,
    )  # fmt: skip
    figure.update_yaxes(
        tickvals=places, ticktext=labels, range=[0, max(rows, 1)], fixedrange=True,
        automargin=True, showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure


def axis_unit(source: Timeline) -> tuple[int, str]:
    """Milliseconds, or microseconds for a short timeline: one unit for all windows of it."""
    return (NS_PER_MS, "ms") if source.index.length_ns >= NS_PER_MS else (NS_PER_US, "µs")


def track_at(shown_tracks: tuple[int, ...], level: float) -> int | None:
    """The track of a height in the figure; None for the band and the gaps beyond."""
    place = int(level // TRACK_LEVELS)
    return shown_tracks[place] if 0 <= place < len(shown_tracks) else None


def _add_names(figure: go.Figure, shown: Picture, unit: int) -> None:
    """Points to hover in the middle of each kernel, once they can be told one by one."""
    if not shown.named:
        return
    height = {track: TRACK_LEVELS * i + LEVELS / 2 for i, track in enumerate(shown.tracks)}
    figure.add_scatter(
        x=[_middle(shown, n.start_ns, n.start_ns + n.duration_ns) / unit for n in shown.named],
        y=[height[n.track] for n in shown.named],
        mode="markers",
        marker={"size": 14, "opacity": 0},
        text=[f"{short_label(n.name or n.role, '')}<br>{n.role}, {format_ns(n.duration_ns)}"
              for n in shown.named],
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _middle(shown: Picture, start_ns: int, end_ns: int) -> float:
    """The middle of what is seen of a span."""
    return (max(start_ns, shown.window.first_ns) + min(end_ns, shown.window.last_ns)) / 2


def _colors() -> list[tuple[float, str]]:
    """A band of constant colour around each code."""
    colors = ["rgba(128,128,128,0.08)", *(group.color for group in GROUPS), BAND_COLOR, BAND_COLOR]
    edges = np.clip((np.arange(len(colors) + 1) - 0.5) / _SCALE_TOP, 0, 1)
    return [
        (float(edge), color)
        for place, color in enumerate(colors)
        for edge in (edges[place], edges[place + 1])
    ]
