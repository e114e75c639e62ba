"""`/run/ID/kernels`: every kernel of the step, to sort, filter and search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from advisor.model.report import KernelRow
from advisor.report.text import counted
from advisor.units import UNKNOWN, format_bytes, format_fraction, format_ns
from dashboard import figures
from dashboard.context import Context
from dashboard.names import kernel_name
from dashboard.page import Page, kernel_path
from dashboard.pages.frame import frame
from dashboard.parts import WRAPPED, graph, grid, message, section
from dashboard.scripts import GRID

# Where a long title may be broken, seen only where it is: in a font wider than usual.
_SOFT_HYPHEN = "\N{SOFT HYPHEN}"
_NUMBER: dict[str, Any] = {
    "cellRenderer": "Figure",
    "filter": "agNumberColumnFilter",
    "wrapHeaderText": True,
    "autoHeaderHeight": True,
    **WRAPPED,
}
_COLUMNS: tuple[dict[str, Any], ...] = (
    {
        "field": "name",
        "headerName": "Kernel",
        "cellRenderer": "PageLink",
        "tooltipField": "full",
        "getQuickFilterText": {"function": "params.data.full"},
        "flex": 3,
        "minWidth": 180,
        **WRAPPED,
    },
    {"field": "role", "headerName": "Role", "minWidth": 144, **WRAPPED},
    {"field": "library", "headerName": "Library", "minWidth": 106, **WRAPPED},
    {"field": "time", "headerName": "Time", "minWidth": 92, **_NUMBER},
    {"field": "share", "headerName": "Share", "minWidth": 90, **_NUMBER},
    {"field": "count", "headerName": "Count", "minWidth": 90, **_NUMBER},
    {
        "field": "occupancy",
        "headerName": f"Occu{_SOFT_HYPHEN}pancy, limiter",
        "minWidth": 142,
        **_NUMBER,
    },
    {"field": "registers", "headerName": f"Regis{_SOFT_HYPHEN}ters", "minWidth": 126, **_NUMBER},
    {"field": "local", "headerName": "Local bytes", "minWidth": 96, **_NUMBER},
    {"field": "spills", "headerName": "Spill traffic", "minWidth": 96, **_NUMBER},
    {"field": "bandwidth", "headerName": "DRAM rate", "minWidth": 96, **_NUMBER},
)
# Left out where no kernel has them, for the names to have room.
_IF_KNOWN = ("local", "spills", "bandwidth")
_NOTE = (
    "Times, counts and traffic are per step. Occupancy is measured by counters, theoretical from "
    "the binary, or estimated by the profiler from the grid (an estimate of 0 says nothing and is "
    "left out). Local memory is stack and slow paths, known of compiled kernels; spill traffic and "
    "DRAM rate need counters: profile with --ncu."
)


def layout(context: Context, run: str) -> Component:
    """The table of kernels."""
    directory = context.store.open(run)
    report = context.report(directory)
    if not report.kernels:
        text = (
            "Nothing ran on a GPU, or the trace holds no kernels. Profile where there is a GPU, or "
            "analyze a trace that was recorded on one."
        )
        return frame(directory, report, "Kernels", message("No kernels on record", text))
    total = sum(row.time_ns for row in report.kernels)
    rows = [
        row_of(row, total) | {"href": kernel_path(run, place)}
        for place, row in enumerate(report.kernels)
    ]
    field = dcc.Input(id="kernel-search", type="search", placeholder="in all columns", value="")
    search = html.Label(["Search kernels ", field])
    body = section(
        "Kernels",
        html.Div(search, className="search"),
        grid("kernels-grid", _columns(rows), rows, "Kernels, longest first"),
        note=f"{counted(len(rows), 'kernel')}, {format_ns(total)} per step together. {_NOTE}",
    )
    chart = section(
        "Longest kernels",
        graph(figures.kernels(report.kernels), "kernels", "Time per step of the longest kernels"),
    )
    return frame(directory, report, "Kernels", body, chart)


def _columns(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    unknown = {name for name in _IF_KNOWN if all(row[name] is None for row in rows)}
    return [column for column in _COLUMNS if column["field"] not in unknown]


def row_of(row: KernelRow, total_ns: int) -> dict[str, Any]:
    """One kernel: the numbers to sort by, and beside each its text."""
    occupancy, kind = occupancy_of(row)
    limiter = f", {row.occupancy_limiter}" if row.occupancy_limiter else ""
    rate = row.dram_bytes / row.time_ns if row.dram_bytes and row.time_ns else None
    share = row.time_ns / total_ns if total_ns else None
    return {
        "name": kernel_name(row.name),
        "full": row.name,
        "role": row.role,
        "library": row.library,
        "time": row.time_ns,
        "time_text": format_ns(row.time_ns),
        "share": share,
        "share_text": format_fraction(share),
        "count": row.count,
        "count_text": f"{row.count:,.4g}",
        "occupancy": occupancy,
        "occupancy_text": UNKNOWN
        if occupancy is None
        else f"{format_fraction(occupancy)} {kind}{limiter}",
        "registers": row.registers_per_thread,
        "registers_text": _count(row.registers_per_thread),
        "local": row.local_bytes_per_thread,
        "local_text": format_bytes(row.local_bytes_per_thread),
        "spills": row.spill_bytes,
        "spills_text": format_bytes(row.spill_bytes),
        "bandwidth": rate,
        "bandwidth_text": UNKNOWN if rate is None else f"{rate:,.0f} GB/s",
    }


def occupancy_of(row: KernelRow) -> tuple[float | None, str]:
    """The best occupancy on record, and of which kind it is; kinds are never mixed.

    Profilers estimate 0 for tiny grids and for kernels they do not know: it is no estimate.
    """
    kinds = (
        (row.occupancy_measured, "measured"),
        (row.occupancy_theoretical, "theoretical"),
        (row.occupancy_estimated or None, "estimated"),
    )
    return next(((value, kind) for value, kind in kinds if value is not None), (None, ""))


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


PAGE = Page(
    name="kernels",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/kernels"),
    layout=layout,
    title="Kernels",
    drawn=(GRID,),
)
