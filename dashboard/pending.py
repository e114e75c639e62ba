"""The page of a run that has no report yet: an upload that is being analysed, or that failed."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.store.directory import RunDirectory
from dashboard.context import Context
from dashboard.jobpanel import status
from dashboard.page import run_path
from dashboard.parts import error_state, heading, message, section

POLL_MS = 700


def is_pending(run: RunDirectory) -> bool:
    """A job is to write its report, and has not."""
    return not (run.path / "report.json").exists() and (run.path / "job.json").exists()


def layout(context: Context, run: RunDirectory) -> Component:
    """What the job says; it becomes the run's page when the report is there."""
    return html.Div(
        [
            heading(run.info().target, 1),
            dmc.Text(run.id, size="sm", c="dimmed"),
            dcc.Store(id="pending-run", data=run.id),
            dcc.Interval(id="pending-poll", interval=POLL_MS),
            section("Analysis", html.Div(_state(context, run), id="pending-status")),
        ],
        className="stack",
    )


def _state(context: Context, run: RunDirectory) -> Component:
    view = context.runner.view(run)
    if view is None:
        return message("Nothing happens here", "No job works on this run.", "red")
    parts = [status(view, run)]
    if not view.active:
        parts.append(dcc.Link("Upload another file", href="/upload"))
    return html.Div([part for part in parts if part is not None], className="stack")


def register(app: Dash, context: Context) -> None:
    """Poll the job; open the report when it is there."""

    @app.callback(
        Output("pending-status", "children"),
        Output("url", "pathname"),
        Output("pending-poll", "disabled"),
        Input("pending-poll", "n_intervals"),
        State("pending-run", "data"),
        prevent_initial_call=True,
    )
    def poll(_ticks: int, run_id: str) -> object:
        try:
            run = context.store.open(run_id)
            if not is_pending(run):
                # The trailing slash makes it another path, so that the page is made anew.
                return no_update, run_path(run_id) + "/", True
            view = context.runner.view(run)
            return _state(context, run), no_update, view is None or not view.active
        except AdvisorError as error:
            return error_state(error), no_update, True
