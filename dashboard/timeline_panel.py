"""The zoomable picture that the timeline and the overlap page share, and its callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.report.words import ranked
from advisor.store.directory import RunDirectory
from advisor.store.timeline import Timeline, TrackKind
from advisor.units import UNKNOWN, format_fraction, format_ns
from dashboard import figures_timeline
from dashboard.context import Context
from dashboard.page import kernel_path
from dashboard.parts import error_state, export_buttons, marked, message, table
from dashboard.roles import GROUPS
from dashboard.timeline_view import Named, Window, at, calls_of, clipped, picture, whole

POLL_MS = 700
_BUTTONS = (
    ("in", "Zoom in"),
    ("out", "Zoom out"),
    ("back", "◀"),
    ("on", "▶"),
    ("all", "Whole run"),
)
_LABELS = {"back": "Earlier", "on": "Later"}
_REACH_COLUMNS = 6
_CONFIG: Any = {
    "displaylogo": False,
    "responsive": True,
    "scrollZoom": True,
    "displayModeBar": False,
}


def panel(
    context: Context,
    run: RunDirectory,
    report: Report,
    kinds: Sequence[TrackKind],
    finding: str | None = None,
) -> Component:
    """The picture of a run, or what stands in its place while there is none."""
    state = context.timelines.of(run)
    if state.kind == "absent":
        text = (
            "A trace is kept by `profile` where there is a GPU, by `analyze --out RUN`, and for "
            "every trace that is uploaded."
        )
        return message("This run kept no trace", text)
    if state.kind == "failed":
        return message("The trace cannot be shown", state.text, "red")
    stores: list[Component] = [
        dcc.Store(id="timeline-scope", data={"run": run.id, "kinds": list(kinds)}),
        dcc.Store(id="timeline-window"),
        dcc.Interval(id="timeline-poll", interval=POLL_MS, disabled=state.kind == "ready"),
    ]
    options = [{"value": f.id, "label": f.title[:80]} for f in ranked(report) if can_band(f)]
    chosen = finding if finding in {option["value"] for option in options} else None
    figure: Any = {}
    words = _progress(state.kind)
    if state.timeline is not None:
        figure, _, words = draw(context, run, tuple(kinds), None, chosen)
    graph = dcc.Graph(id="timeline-graph", figure=figure, config=_CONFIG)
    parts = [
        *stores,
        _controls(options, chosen),
        html.Div(words, id="timeline-status", className="hint", role="status"),
        marked(html.Div(graph, role="img"), aria_label="Streams over time, coloured by role"),
        legend(),
        export_buttons("timeline-graph", csv=False),
        marked(html.Div(_hint(), id="timeline-kernel"), aria_live="polite"),
        html.Div(_beside(state.timeline, kinds), id="timeline-beside"),
    ]
    return html.Div(parts, className="stack")


def can_band(finding: Finding) -> bool:
    """Its kernels can be told in the trace: operators, and the modules that they are in."""
    return bool(finding.members) and any(place.module for place in finding.locations)


def legend() -> Component:
    """What the colours mean, in words."""
    items = [
        html.Span([html.Span(className="swatch", style={"background": g.color}), g.name])
        for g in GROUPS
    ]
    return html.Div(items, className="legend")


def _controls(options: list[dict[str, str]], chosen: str | None) -> Component:
    buttons = [
        marked(
            dmc.Button(text, id=f"timeline-{name}", variant="default", size="xs", n_clicks=0),
            aria_label=_LABELS.get(name, text),
        )
        for name, text in _BUTTONS
    ]
    select = dmc.Select(
        id="timeline-finding",
        data=options,
        value=chosen,
        clearable=True,
        size="xs",
        label="Mark the kernels of a finding",
        placeholder="none" if options else "no finding names operators and modules",
        disabled=not options,
        className="wide",
    )
    return dmc.Group([*buttons, select], gap="xs", align="end")


def _progress(kind: str) -> str:
    return "" if kind == "ready" else "Reading the trace; this happens once. Please wait …"


def _hint() -> str:
    return "Drag to move, turn the wheel to zoom, click a kernel for what it is."


def register(app: Dash, context: Context) -> None:
    """Redraw on every move, and say what was clicked."""

    @app.callback(
        Output("timeline-graph", "figure"),
        Output("timeline-window", "data"),
        Output("timeline-status", "children"),
        Output("timeline-poll", "disabled"),
        Output("timeline-beside", "children"),
        Input("timeline-graph", "relayoutData"),
        Input("timeline-finding", "value"),
        Input("timeline-poll", "n_intervals"),
        *(Input(f"timeline-{name}", "n_clicks") for name, _ in _BUTTONS),
        State("timeline-scope", "data"),
        State("timeline-window", "data"),
        prevent_initial_call=True,
    )
    def redraw(
        moved: dict[str, Any] | None,
        finding: str | None,
        _ticks: int | None,
        *rest: Any,
    ) -> object:
        scope, window = rest[-2:]
        return _redraw(context, scope, window, str(ctx.triggered_id), moved, finding)

    @app.callback(
        Output("timeline-kernel", "children"),
        Input("timeline-graph", "clickData"),
        State("timeline-scope", "data"),
        State("timeline-window", "data"),
        prevent_initial_call=True,
    )
    def clicked(event: dict[str, Any], scope: dict[str, Any], window: list[int] | None) -> object:
        return _clicked(context, event, scope, window)


def draw(
    context: Context,
    run: RunDirectory,
    kinds: tuple[TrackKind, ...],
    window: Window | None,
    finding: str | None,
) -> tuple[Any, Window, str]:
    """The figure of a window (None: all), the window itself, and what is seen in words."""
    state = context.timelines.of(run)
    timeline = state.timeline
    if timeline is None:
        return no_update, Window(0, 1), state.text or _progress(state.kind)
    window = window or whole(timeline)
    shown = picture(timeline, window, kinds, _banded(context, run, timeline, finding))
    length = format_ns(window.last_ns - window.first_ns)
    words = f"{length} from {format_ns(window.first_ns)} on: {shown.kernels:,} spans"
    hidden = sum(t.kind in kinds for t in timeline.index.tracks) - len(shown.tracks)
    if hidden > 0:
        words += f"; {hidden} quieter tracks are not shown"
    if shown.banded and finding:
        words += "; the upper row marks the finding's operators within its modules"
    return figures_timeline.timeline(timeline, shown), window, words


def _beside(timeline: Timeline | None, kinds: Sequence[TrackKind]) -> Component | None:
    """The sums by rank, where ranks are shown and communicate."""
    if timeline is None or "exposed" not in kinds:
        return None
    if not any(track.kind == "communication" for track in timeline.index.tracks):
        text = "No communication kernel is in the trace of this run, so nothing can be exposed."
        return message("Nothing communicates here", text)
    return _by_rank(timeline)


def _by_rank(timeline: Timeline) -> Component:
    """The sums of the recorded window, a row a rank."""
    sums: dict[int, dict[str, int]] = {}
    for group in timeline.index.groups:
        track = timeline.index.tracks[group.track]
        if track.kind != "stream" and group.last > group.first:
            last = group.last - 1
            total = int(timeline.busy[last] + timeline.duration[last])
            sums.setdefault(track.rank, {})[track.kind] = total
    rows = [
        (
            f"rank {rank}",
            format_ns(own.get("compute", 0)),
            format_ns(own.get("communication", 0)),
            format_ns(own.get("exposed", 0)),
            format_fraction(own.get("exposed", 0) / own["communication"])
            if own.get("communication")
            else UNKNOWN,
        )
        for rank, own in sorted(sums.items())
    ]
    head = ("Rank", "Computes", "Communicates", "Exposed", "Exposed share")
    caption = "By rank, of the whole recorded window; who spends least in collectives came last"
    return html.Div([dmc.Text(caption, size="sm"), table(head, rows, caption)])


def _banded(
    context: Context, run: RunDirectory, timeline: Timeline, finding: str | None
) -> frozenset[int] | None:
    found = next((f for f in context.report(run).findings if f.id == finding), None)
    if found is None:
        return None
    ops = frozenset(member.name for member in found.members)
    modules = frozenset(place.module for place in found.locations if place.module)
    return calls_of(timeline, ops, modules)


def _redraw(
    context: Context,
    scope: dict[str, Any],
    window: list[int] | None,
    trigger: str,
    moved: dict[str, Any] | None,
    finding: str | None,
) -> tuple[object, ...]:
    try:
        run = context.store.open(scope["run"])
        state = context.timelines.of(run)
        if state.timeline is None:
            waits = state.kind == "building"
            text = state.text or _progress(state.kind)
            return no_update, no_update, text, not waits, no_update
        wanted = _next_window(state.timeline, window, trigger, moved)
        if wanted is None:
            # A resize may come between the end of reading and the poll that draws what was read.
            return (no_update,) * 5
        kinds = tuple(scope["kinds"])
        figure, drawn, words = draw(context, run, kinds, wanted, finding)
        first = trigger == "timeline-poll"
        beside = _beside(state.timeline, kinds) if first else no_update
        return figure, list(drawn), words, True, beside
    except AdvisorError as error:
        return no_update, no_update, error.line(), True, no_update


def _next_window(
    timeline: Timeline, now: list[int] | None, trigger: str, moved: dict[str, Any] | None
) -> Window | None:
    """The window after a move; None where the move was none (a resize)."""
    here = Window(*now) if now else whole(timeline)
    if trigger == "timeline-graph":
        return _dragged(timeline, moved or {})
    length, middle = here.last_ns - here.first_ns, (here.first_ns + here.last_ns) / 2
    moves = {
        "timeline-in": (middle - length / 4, middle + length / 4),
        "timeline-out": (middle - length, middle + length),
        "timeline-back": (here.first_ns - length / 2, here.last_ns - length / 2),
        "timeline-on": (here.first_ns + length / 2, here.last_ns + length / 2),
        "timeline-all": whole(timeline),
    }
    return clipped(timeline, *moves.get(trigger, here))


def _dragged(timeline: Timeline, moved: dict[str, Any]) -> Window | None:
    if moved.get("xaxis.autorange"):
        return whole(timeline)
    ends = moved.get("xaxis.range") or [moved.get(f"xaxis.range[{i}]") for i in (0, 1)]
    if not all(isinstance(end, (int, float)) for end in ends):
        return None
    unit, _ = figures_timeline.axis_unit(timeline)
    return clipped(timeline, ends[0] * unit, ends[1] * unit)


def _clicked(
    context: Context, event: dict[str, Any], scope: dict[str, Any], window: list[int] | None
) -> object:
    try:
        run = context.store.open(scope["run"])
        timeline = context.timelines.of(run).timeline
        point = next(iter((event or {}).get("points", ())), None)
        if timeline is None or point is None:
            return _hint()
        here = Window(*window) if window else whole(timeline)
        shown = picture(timeline, here, tuple(scope["kinds"]))
        track = figures_timeline.track_at(shown.tracks, float(point["y"]))
        unit, _ = figures_timeline.axis_unit(timeline)
        reach = _REACH_COLUMNS * (here.last_ns - here.first_ns) / shown.cells.shape[1]
        found = None if track is None else at(timeline, track, float(point["x"]) * unit, reach)
        return _facts(context, run, found) if found else "Nothing runs there."
    except AdvisorError as error:
        return error_state(error)


def _facts(context: Context, run: RunDirectory, found: Named) -> Component:
    rows = context.report(run).kernels
    place = next((i for i, row in enumerate(rows) if row.name == found.name), None)
    name = found.name or found.role
    link = (
        dcc.Link(name, href=kernel_path(run.id, place), className="wrap")
        if place is not None
        else name
    )
    facts = [
        ("Kernel", link),
        ("Role", found.role),
        ("Starts at", format_ns(found.start_ns)),
        ("Takes", format_ns(found.duration_ns)),
        ("Operator", found.op or UNKNOWN),
        ("Module", found.module or UNKNOWN),
    ]
    return table(("Clicked", ""), facts, "The kernel that was clicked")
