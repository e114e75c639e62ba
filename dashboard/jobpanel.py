"""The panel of a run's job: Apply, Revert and Cancel, and the child's events while it works."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.run import Progress
from advisor.report.progress import value_text
from advisor.report.words import INFERRED_MODE
from advisor.store.directory import RunDirectory
from dashboard.applicable import applicable
from dashboard.context import Context
from dashboard.jobview import JobView, StageView
from dashboard.parts import marked, message, section
from dashboard.security import may_apply

POLL_ACTIVE_MS, POLL_IDLE_MS = 700, 5000
STATE_COLORS = {
    "queued": "gray",
    "running": "blue",
    "done": "teal",
    "failed": "red",
    "cancelled": "orange",
}
STATE_MARKS = {"queued": "·", "running": "▸", "done": "✓", "failed": "✕", "cancelled": "⊘"}
_HIDDEN: dict[str, str] = {"display": "none"}
_SHOWN: dict[str, str] = {}
# Seconds, 0 is no limit.
_BUDGETS = ((0, "no limit"), (120, "2 minutes"), (600, "10 minutes"), (3600, "1 hour"))
_KIND_WORDS = {
    "apply": "Apply", "revert": "Revert", "analyze": "Analysis", "cliff": "Sizing op by op",
}  # fmt: skip
_ALL = "Plans are generated, checked and timed, actions tried; only what pays is kept."
_ONE = "What this finding calls for alone is put in, checked and timed; kept only if it pays."


def panel(context: Context, run: RunDirectory, finding: str | None = None) -> Component:
    """The panel of a run, or of one finding; the callbacks of `register` fill it."""
    reason = blocked(context, run)
    body: list[Component] = [
        dcc.Store(id="job-run", data=run.id),
        dcc.Store(id="job-only", data=[finding] if finding else []),
        dcc.Store(id="job-left", data=[]),
        dcc.Store(id="job-kick"),
        dcc.Store(id="job-generation"),
        dcc.Interval(id="job-poll", interval=POLL_ACTIVE_MS),
    ]
    if reason:
        body.append(message("Apply is not available here", reason))
    elif finding is None:
        body.append(_picker(context, run))
    buttons = [
        dmc.Button("Apply", id="job-apply", n_clicks=0, disabled=bool(reason)),
        dmc.Button("Continue", id="job-continue", n_clicks=0, variant="light", style=_HIDDEN),
        dmc.Button("Revert", id="job-revert", n_clicks=0, variant="default", style=_HIDDEN),
        dmc.Button(
            "Cancel", id="job-cancel", n_clicks=0, variant="outline", color="red", style=_HIDDEN
        ),
    ]
    body += [
        _budget(hidden=bool(reason)),
        dmc.Group(buttons),
        html.Div(id="job-note", role="alert", className="note"),
        marked(html.Div(id="job-status"), aria_live="polite"),
    ]
    return section("Apply", *body, note=_ONE if finding else _ALL)


def _picker(context: Context, run: RunDirectory) -> Component:
    """What to try, where not everything; its choice goes to the store that Apply reads."""
    names = applicable(context.report(run))
    return dmc.MultiSelect(
        id="job-pick",
        label="Try only",
        description="Findings, plans and graph-level actions; empty tries all that may pay.",
        data=[{"value": name, "label": label} for name, label in names],
        searchable=True,
        clearable=True,
        hidePickedOptions=True,
    )


def _budget(*, hidden: bool) -> Component:
    """How long an application may take; what it leaves, the next one goes on with."""
    return html.Div(
        dmc.Select(
            id="job-budget",
            label="Stop after",
            description="What there is no time for is left, and Continue goes on with it.",
            data=[{"value": str(seconds), "label": text} for seconds, text in _BUDGETS],
            value="0",
            allowDeselect=False,
            maw="26rem",
        ),
        style=_HIDDEN if hidden else _SHOWN,
    )


def blocked(context: Context, run: RunDirectory) -> str:
    """Why the current visitor cannot apply this run, empty if they can."""
    if not context.access.allow_apply:
        return (
            "This server is read-only. Start it with --allow-apply, "
            f"or run: fusion-advisor apply -- {run.path}"
        )
    if not may_apply(context.access):
        return "Applying needs the apply token: sign in with it at /login."
    if not (run.path / "report.json").exists():
        return "This run has no report yet."
    if context.report(run).workload.mode == INFERRED_MODE:
        return "This run was made from a recorded trace: there is no workload here to apply it to."
    refused = context.runner.refusal(run)
    return f"{refused.why.capitalize()}. {refused.remedy.capitalize()}." if refused else ""


def register(app: Dash, context: Context) -> None:
    """The callbacks of the panel: polling reads, the buttons post through `assets/jobs.js`."""
    for action in ("apply", "continue", "revert", "cancel"):
        app.clientside_callback(
            ClientsideFunction("fusion", action),
            Output("job-kick", "data", allow_duplicate=True),
            Output("job-note", "children", allow_duplicate=True),
            Input(f"job-{action}", "n_clicks"),
            State("job-run", "data"),
            State("job-left" if action == "continue" else "job-only", "data"),
            State("job-budget", "value"),
            prevent_initial_call=True,
        )
    app.clientside_callback(
        ClientsideFunction("fusion", "cliff"),
        Output("job-kick", "data", allow_duplicate=True),
        Output("job-note", "children", allow_duplicate=True),
        Input({"type": "cliff", "plan": ALL}, "n_clicks"),
        State("job-run", "data"),
        prevent_initial_call=True,
    )

    app.clientside_callback(
        ClientsideFunction("fusion", "pick"),
        Output("job-only", "data"),
        Input("job-pick", "value"),
        prevent_initial_call=True,
    )

    # What a button was refused for is over when the job that was in the way has ended.
    app.clientside_callback(
        ClientsideFunction("fusion", "forget"),
        Output("job-note", "children", allow_duplicate=True),
        Input("job-generation", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("job-status", "children"),
        Output("job-poll", "interval"),
        Output("job-apply", "disabled"),
        Output("job-apply", "children"),
        Output("job-revert", "style"),
        Output("job-cancel", "style"),
        Output("job-continue", "style"),
        Output("job-left", "data"),
        Output("job-generation", "data"),
        Input("job-poll", "n_intervals"),
        Input("job-kick", "data"),
        State("job-run", "data"),
        State("job-generation", "data"),
    )
    def refresh(_ticks: int | None, _kick: object, run_id: str, generation: str | None) -> object:
        return _refresh(context, run_id, generation)


def _refresh(context: Context, run_id: str, generation: str | None) -> tuple[object, ...]:
    try:
        run = context.store.open(run_id)
        view = context.runner.view(run)
    except AdvisorError as error:
        text = message("The job cannot be read", error.line(), "red")
        return text, POLL_IDLE_MS, True, "Apply", _HIDDEN, _HIDDEN, _HIDDEN, [], no_update
    active, usable = view is not None and view.active, not blocked(context, run)
    applied = (run.path / "applied.json").exists()
    left = None if active else _left(run)
    current = generation_of(run, view)
    return (
        status(view, run),
        POLL_ACTIVE_MS if active else POLL_IDLE_MS,
        active or not usable,
        "Apply again" if applied else "Apply",
        _SHOWN if applied and usable and not active else _HIDDEN,
        _SHOWN if active and usable else _HIDDEN,
        _SHOWN if left is not None and usable else _HIDDEN,
        left or [],
        no_update if current == generation else current,
    )


def _left(run: RunDirectory) -> list[str] | None:
    """What the application that is not at its end was asked for; None where none is."""
    try:
        attempt = run.attempt()
    except AdvisorError:
        return None
    return None if attempt is None else list(attempt.only)


def generation_of(run: RunDirectory, view: JobView | None) -> str:
    """Changes whenever the proof of a run may have: its record, its kernels, an ended job."""
    times = [
        path.stat().st_mtime_ns
        for path in (run.path / "applied.json", run.path / "kernels")
        if path.exists()
    ]
    return f"{times}{view.id if view and not view.active else ''}"


def status(view: JobView | None, run: RunDirectory) -> Component | None:
    """The state of the job, its stages with the child's own words, and the end of its log."""
    if view is None:
        return None
    words = "finishing" if view.finishing else "cancelling" if view.cancelling else view.state
    head = dmc.Alert(
        view.message or None,
        title=f"{_KIND_WORDS[view.kind]}: {words}",
        color=STATE_COLORS[view.state],
        variant="light",
        className="wrap",
    )
    stages = html.Ol([_stage(stage) for stage in view.stages], className="stages")
    log = run.log_tail()
    details = html.Details(
        [html.Summary("Log"), html.Pre(log, className="log", tabIndex=0)],
        open=view.state == "failed",
    )
    return marked(html.Div([head, stages, *([details] if log else [])]), data_state=view.state)


def _plan_line(event: Progress) -> Component:
    words = html.Span(event.message or event.plan, className="words")
    return html.Li([html.Span(value_text(event), className="value"), " ", words], title=event.plan)


def _stage(stage: StageView) -> Component:
    state = stage.state
    mark = STATE_MARKS[state] if state else "○"
    many = len(stage.plans) > 1
    own = stage.latest if not many else None
    value = value_text(own) if own and own.value is not None else None
    parts = [
        marked(html.Span(mark, className="mark"), aria_hidden="true"),
        html.Span(stage.label, className="label"),
        html.Span(f" ({state})" if state else " (not begun)", className="hidden"),
        html.Span(value, className="value") if value is not None else None,
        html.Span(own.message, className="words") if own else None,
        html.Ul([_plan_line(event) for event in stage.plans]) if many else None,
    ]
    line = html.Li(
        [part for part in parts if part is not None], className=f"stage {state or 'waiting'}"
    )
    return marked(line, data_stage=stage.name)
