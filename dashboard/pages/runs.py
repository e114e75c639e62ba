"""`/`: every run of the store, the newest first."""

from __future__ import annotations

import re
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.report.document import visible
from advisor.report.text import counted, headline
from advisor.store.directory import RunDirectory
from advisor.store.store import MAX_ID, RunStore
from advisor.units import UNKNOWN
from dashboard import trends
from dashboard.context import Context
from dashboard.page import Page, run_path
from dashboard.parts import VERDICT_WORDS, WRAPPED, grid, message, moment, section
from dashboard.pending import is_pending
from dashboard.scripts import GRID

_COLUMNS: tuple[dict[str, Any], ...] = (
    {
        "field": "run",
        "headerName": "Run",
        "cellRenderer": "PageLink",
        "flex": 3,
        "minWidth": 140,
        **WRAPPED,
    },
    {"field": "target", "headerName": "Workload", "flex": 3, "minWidth": 140, **WRAPPED},
    {"field": "created", "headerName": "Made", "minWidth": 140, **WRAPPED},
    {"field": "mode", "headerName": "Mode", "maxWidth": 110, **WRAPPED},
    {"field": "gpu", "headerName": "GPU", "minWidth": 120, **WRAPPED},
    {
        "field": "saving_ns",
        "headerName": "Set saving",
        "cellRenderer": "Figure",
        "filter": "agNumberColumnFilter",
        "minWidth": 135,
        **WRAPPED,
    },
    {
        "field": "findings",
        "headerName": "Findings",
        "filter": "agNumberColumnFilter",
        "minWidth": 120,
        "maxWidth": 130,
        **WRAPPED,
    },
    {"field": "applied", "headerName": "Applied", "minWidth": 120, **WRAPPED},
)

_SHOWN_NAMES = 5
_PICK_TWO: dict[str, Any] = {
    "rowSelection": {"mode": "multiRow", "headerCheckbox": False},
    "selectionColumnDef": {"headerName": "Pick", "width": 72, "flex": 0},
}


def layout(context: Context) -> Component:
    """The list, or what to do to get a first run."""
    runs, unnamed = context.store.runs(), _unnamed(context.store)
    if not runs:
        text = (
            f"Nothing is saved in {context.store.root}. Profile a workload to make the first run: "
            "fusion-advisor profile TARGET. It appears here without a restart."
        )
        return html.Div([message("No runs yet", text), *unnamed], className="stack")
    rows = sorted((_row(context, run) for run in runs), key=_made, reverse=True)
    title = html.H1("Saved runs", className="hidden")
    pick = dcc.Link("Pick two runs to compare them", id="runs-compare", href="/")
    listed = section(
        "Runs",
        grid("runs-grid", _COLUMNS, rows, "Runs", _PICK_TWO),
        pick,
        *unnamed,
        note=f"{len(rows)} in {context.store.root}",
    )
    return html.Div([title, listed, trends.panel(context)], className="stack")


def _unnamed(store: RunStore) -> list[Component]:
    """What lies in the store and cannot have a page, since its name is no part of an address."""
    names = store.unnamed()
    if not names:
        return []
    shown = ", ".join(visible(name) for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    text = (
        f"Rename with at most {MAX_ID} letters, digits, _ and - (a dot is none of them): "
        f"{shown}{more}"
    )
    return [message(f"{counted(len(names), 'folder')} with a run not shown", text, "orange")]


def _made(row: dict[str, Any]) -> str:
    """When a run was made; what cannot be read stands last."""
    return str(row.get("created", ""))


def _row(context: Context, run: RunDirectory) -> dict[str, Any]:
    """One run as plain values; a run that cannot be read stays in the list and says why."""
    row: dict[str, Any] = {"run": run.id, "href": run_path(run.id)}
    try:
        summary, applied = context.summary(run), context.applied(run)
    except AdvisorError as error:
        return row | {"target": _unreadable(run, error), "saving_ns_text": UNKNOWN}
    return row | {
        "target": summary.target,
        "created": moment(summary.created),
        "mode": summary.mode,
        "gpu": f"{summary.gpu} (modelled)" if summary.modelled else summary.gpu,
        "saving_ns": summary.saving.mid if summary.saving else None,
        "saving_ns_text": headline(summary.saving) if summary.saving else "cannot judge",
        "findings": summary.findings,
        "applied": VERDICT_WORDS[applied.set.verdict] if applied else "no",
    }


def _unreadable(run: RunDirectory, error: AdvisorError) -> str:
    """Why a run has no figures: its analysis is not done, or failed, or its report is broken."""
    if not is_pending(run):
        return f"unreadable: {error.what}"
    try:
        return f"{run.info().target}: no report yet, its page says why"
    except AdvisorError as other:
        return f"unreadable: {other.what}"


PAGE = Page(name="runs", pattern=re.compile(r"/"), layout=layout, title="Runs", drawn=(GRID,))
