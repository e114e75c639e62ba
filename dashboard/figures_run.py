"""Figures of a whole run, and of several: the step in parts, roofline, trend, causes, scores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import plotly.graph_objects as go

from advisor.model.comparison import RoleChange
from advisor.model.overfusion import Bisection, Share
from advisor.model.plan import FusionPlan
from advisor.units import NS_PER_MS, NS_PER_S, UNKNOWN, format_bytes, format_ns
from dashboard.commits import Place
from dashboard.figures import BLUE, GREEN, GREY, ORANGE, plain, short_label, styled, unit_of
from dashboard.log_axes import bytes_ticks, time_ticks
from dashboard.parts import VERDICT_WORDS
from dashboard.split import NOT_BUSY, PARTS, Split

COMPILED = "compile"  # the mode of a workload whose present times are of compiled kernels
BYTES_PER_GB = 1_000_000_000
_MAX_TICKS = 12
_MAX_LINE = 120
_ROOM = 0.6
_WORD_ROOM = 0.15
_LEAST_SPAN = timedelta(minutes=1)
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


def moved(plan: FusionPlan, mode: str) -> list[Moved]:
    """The bytes and times of a plan per step, as it is and fused, as far as predicted.

    Bytes before are those of single ops: what the kernels of a compiled step move is another
    figure, which no plan has, so that of those only the fused kernel is a point.
    """
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
        if size and time.mid > 0 and (kind == "fused" or mode != COMPILED)
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
            insidetextfont={"color": "#ffffff" if color == BLUE else "#000000"},
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
    sizes: list[float] = [point.bytes for point in points]
    times: list[float] = [point.time_ns for point in points]
    if bandwidth and points:
        sizes += [min(sizes) / 2, max(sizes) * 2]
        times += [NS_PER_S * edge / bandwidth for edge in sizes[-2:]]
        figure.add_scatter(
            x=sizes[-2:],
            y=[time / NS_PER_MS for time in times[-2:]],
            mode="lines",
            name=f"{bandwidth / BYTES_PER_GB:,.0f} GB/s",
            line={"color": GREY, "dash": "dash"},
            hoverinfo="skip",
        )
    figure = styled(figure, "bytes moved per step", 7, legend=True)
    if points:
        figure.update_xaxes(**bytes_ticks(sizes))
        figure.update_yaxes(**time_ticks(times))
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log", title="time per step", showgrid=True)
    return figure


def trend(places: Sequence[Place], metric: str) -> go.Figure:
    """One metric over runs: by commit where one is known, else by the time of the run.

    Of several runs of a commit the median, with bars to the least and the largest.
    """
    unit = places[0].points[0].unit
    scale, name = unit_of([round(p.middle) for p in places]) if unit == "ns" else (1, unit)
    by_commit = any(place.commit is not None for place in places)
    times = [place.points[0].created for place in places]
    spread = {
        "type": "data",
        "array": [(place.ends[1] - place.middle) / scale for place in places],
        "arrayminus": [(place.middle - place.ends[0]) / scale for place in places],
        "color": GREY,
    }
    figure = go.Figure(
        go.Scatter(
            x=list(range(len(places))) if by_commit else times,
            y=[place.middle / scale for place in places],
            mode="lines+markers",
            marker={"color": BLUE, "size": 9},
            line={"color": BLUE},
            error_y=spread if any(len(place.points) > 1 for place in places) else None,
            text=[
                "<br>".join(plain(line[:_MAX_LINE]) for line in place.lines()) for place in places
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    figure = styled(figure, "commit" if by_commit else "when the run was made", 6)
    figure.update_xaxes(**(_commit_ticks(places) if by_commit else _time_range(times)))
    figure.update_yaxes(title=f"{plain(metric)}, {name}", rangemode="tozero", showgrid=True)
    return figure


def _commit_ticks(places: Sequence[Place]) -> dict[str, object]:
    """Labels at as many places as there is room for, the newest among them."""
    every = -(-len(places) // _MAX_TICKS)
    shown = list(range(len(places) - 1, -1, -every))
    labels = [short_label(places[index].label, "").strip() for index in shown]
    # Room beside the first and the last: plotly leaves out a label that would be cut off.
    ends = [-_ROOM, len(places) - 1 + _ROOM]
    return {"tickmode": "array", "tickvals": shown, "ticktext": labels, "range": ends}


def _time_range(times: Sequence[str]) -> dict[str, object]:
    """Ends around the times of runs: of one alone plotly would show thousandths of seconds."""
    try:
        found = [datetime.fromisoformat(text) for text in times]
        room = max((max(found) - min(found)) / 20, _LEAST_SPAN)
        return {"range": [(min(found) - room).isoformat(), (max(found) + room).isoformat()]}
    except (ValueError, TypeError, OverflowError):  # a report may hold anything
        return {}


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
            insidetextfont={"color": "#000000"},
            hovertemplate="%{y}: %{x:+.3g} " + name + "<extra></extra>",
        )
    )
    title = f"change of kernel time per step, {name}; right of 0 is slower"
    return _signed(styled(figure, title, len(known)), [change / unit for _, change in known])


def shares(found: Bisection) -> go.Figure:
    """The change of a step as shares that add up to it, each by its cause."""
    known = sorted(found.shares, key=lambda share: share.change_ns)
    unit, name = unit_of([abs(share.change_ns) for share in known])
    figure = go.Figure(
        go.Bar(
            x=[share.change_ns / unit for share in known],
            y=[_share_label(share, number) for number, share in enumerate(known, 1)],
            orientation="h",
            marker={"color": [ORANGE if share.change_ns > 0 else GREEN for share in known]},
            text=["slower" if share.change_ns > 0 else "faster" for share in known],
            insidetextfont={"color": "#000000"},
            customdata=[plain(share.text) for share in known],
            hovertemplate="%{customdata}: %{x:+.3g} " + name + "<extra></extra>",
        )
    )
    figure = styled(figure, f"change of the step, {name}; right of 0 is slower", len(known))
    return _signed(figure, [share.change_ns / unit for share in known])


def _signed(figure: go.Figure, changes: Sequence[float]) -> go.Figure:
    """With room beside the bars for their words, which else lie on the names of the rows."""
    low, high = min((0.0, *changes)), max((0.0, *changes))
    room = _WORD_ROOM * (high - low)
    return figure.update_xaxes(range=[low - room * (low < 0), high + room * (high > 0)])


def _share_label(share: Share, number: int) -> str:
    """The cause of a share and its first kernel, told from others by its number."""
    words = [(share.cause or UNKNOWN).replace("_", " "), *share.kernels[:1]]
    return short_label(", ".join(words), f"{number}.")


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
