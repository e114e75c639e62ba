"""`/run/ID/findings`: everything found, ranked by what it is worth on the critical path."""

from __future__ import annotations

import re
from typing import Any

from dash.development.base_component import Component

from advisor.model.findings import Finding
from advisor.report.words import ranked, sites_of
from advisor.store.directory import RunDirectory
from dashboard.context import Context
from dashboard.page import Page, finding_path
from dashboard.pages.frame import frame
from dashboard.parts import WRAPPED, grid, message, section, worth_text
from dashboard.scripts import GRID

_COLUMNS: tuple[dict[str, Any], ...] = (
    {
        "field": "rank",
        "headerName": "#",
        "maxWidth": 70,
        "minWidth": 60,
        "filter": False,
        **WRAPPED,
    },
    {
        "field": "title",
        "headerName": "Finding",
        "cellRenderer": "PageLink",
        "flex": 4,
        "minWidth": 240,
        "tooltipField": "title",
        **WRAPPED,
    },
    {
        "field": "saving_ns",
        "headerName": "Exposed saving per step",
        "cellRenderer": "Figure",
        "filter": "agNumberColumnFilter",
        "flex": 2,
        "minWidth": 230,
        **WRAPPED,
    },
    {"field": "kind", "headerName": "Kind", "minWidth": 120, **WRAPPED},
    {"field": "provenance", "headerName": "Evidence", "minWidth": 120, **WRAPPED},
    {"field": "sites", "headerName": "Sites", "maxWidth": 95, **WRAPPED},
    {"field": "where", "headerName": "Where", "flex": 2, "minWidth": 160, **WRAPPED},
)


def layout(context: Context, run: str) -> Component:
    """The ranked list."""
    directory = context.store.open(run)
    report = context.report(directory)
    if not report.findings:
        text = "No rule fired on this run. The warnings on the overview say what could not be read."
        return frame(directory, report, "Findings", message("No findings", text))
    rows = [_row(directory, i, f) for i, f in enumerate(ranked(report), 1)]
    body = section(
        "Findings",
        grid("findings-grid", _COLUMNS, rows, "Findings, largest saving first"),
        note="Savings are not additive: the overview gives that of the recommended set.",
    )
    return frame(directory, report, "Findings", body)


def _row(run: RunDirectory, rank: int, finding: Finding) -> dict[str, Any]:
    saving, first = finding.exposed_saving_ns, next(iter(finding.locations), None)
    return {
        "rank": rank,
        "title": finding.title,
        "href": finding_path(run.id, finding.id),
        "saving_ns": saving.mid if saving else None,
        "saving_ns_text": worth_text(finding),
        "kind": finding.kind,
        "provenance": finding.provenance,
        "sites": sites_of(finding),
        "where": (first.module or first.file) if first else None,
    }


PAGE = Page(
    name="findings",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/findings"),
    layout=layout,
    title="Findings",
    drawn=(GRID,),
)
