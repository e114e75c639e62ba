"""`/upload`: traces or a report from this computer become a run that can be looked at."""

from __future__ import annotations

import re

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from advisor.units import format_bytes
from dashboard.context import Context
from dashboard.page import Page
from dashboard.parts import heading, marked, message, section
from dashboard.security import may_apply
from dashboard.uploads import MAX_FILES, MAX_UPLOAD_BYTES


def layout(context: Context) -> Component:
    """The place to drop a file, or why there is none."""
    head = heading("Upload traces or a report", 1)
    if not context.access.allow_apply:
        text = (
            "This server is read-only. Start it with --allow-apply, or analyze the file beside "
            f"it: fusion-advisor analyze FILE --out {context.store.root}/NAME"
        )
        return html.Div([head, message("Uploads are off", text)], className="stack")
    if not may_apply(context.access):
        text = "Uploading writes to the run store and needs the apply token: sign in at /login."
        return html.Div([head, message("Sign in first", text)], className="stack")
    words = (
        "A trace of the PyTorch profiler (JSON, plain or compressed), or a report.json of this "
        f"program; several traces together are the ranks of one job (at most {MAX_FILES}). At most "
        f"{format_bytes(MAX_UPLOAD_BYTES)} in all. It is read in a process of its own. What was "
        "uploaded can be looked at and compared, never applied."
    )
    button = marked(dmc.Button("Choose files", id="upload-choose"), data_upload="choose")
    drop = marked(
        html.Div(
            [
                dmc.Text(words),
                button,
                dmc.Text("or drop them here", size="sm", c="dimmed"),
                html.Div(id="upload-progress", role="status"),
                html.Div(id="upload-note", role="alert", className="note"),
            ],
            className="drop",
        ),
        data_upload="drop",
    )
    return html.Div([head, section("Files", drop)], className="stack")


PAGE = Page(name="upload", pattern=re.compile(r"/upload"), layout=layout, title="Upload")
