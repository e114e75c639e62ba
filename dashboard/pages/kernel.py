"""`/run/ID/kernel/PLACE`: one kernel: its figures, who calls it, which findings speak of it."""

from __future__ import annotations

import re

from dash import html
from dash.development.base_component import Component

from advisor.errors import UnreadableError
from advisor.model.findings import Finding
from advisor.model.report import KernelRow, Report
from advisor.store.directory import RunDirectory
from advisor.units import format_ns
from dashboard.context import Context
from dashboard.page import Page
from dashboard.pages.frame import finding_link, frame
from dashboard.pages.kernels import row_of
from dashboard.parts import figure_card, heading, message, section, table, worth_text

_CARDS = (
    ("time_text", "Time per step"),
    ("share_text", "Share of kernel time"),
    ("count_text", "Executions per step"),
    ("occupancy_text", "Occupancy"),
    ("registers_text", "Registers per thread"),
    ("local_text", "Local memory per thread"),
    ("spills_text", "Spill traffic per step"),
    ("bandwidth_text", "DRAM rate"),
)


def layout(context: Context, run: str, place: str) -> Component:
    """One kernel."""
    directory = context.store.open(run)
    report = context.report(directory)
    number = int(place)
    if number >= len(report.kernels):
        raise UnreadableError(
            "no such kernel", where=place, remedy="the kernels page lists those of this run"
        )
    row = report.kernels[number]
    facts = row_of(row, sum(kernel.time_ns for kernel in report.kernels))
    cards = [figure_card(label, facts[key]) for key, label in _CARDS]
    head = [heading(row.name, 2), figure_card("Role", f"{row.role}, of {row.library}")]
    return frame(
        directory,
        report,
        "Kernels",
        html.Div(head, className="stack"),
        html.Div(cards, className="cards"),
        _calls(row),
        _findings(directory, report, row),
    )


def _calls(row: KernelRow) -> Component:
    title = "Operators behind it"
    if not row.calls:
        text = "The trace names no operator around its launches, as of kernels in a CUDA graph."
        return section(title, message("Unknown", text))
    rows = [(call, f"{count:,.4g}") for call, count in row.calls.items()]
    return section(title, table(("Operator with shapes of its inputs", "Per step"), rows, title))


def _findings(run: RunDirectory, report: Report, row: KernelRow) -> Component:
    found = [finding for finding in report.findings if _speaks_of(finding, row)]
    title = "Findings with this kernel or an operator behind it"
    if not found:
        return section(title, message("None", "No finding names it as a member."))
    rows = [
        (finding_link(run, f.id, f.title), worth_text(f), format_ns(_time(f, row))) for f in found
    ]
    head = ("Finding", "Saving per step", "Time of the member in it")
    return section(title, table(head, rows, title))


def _speaks_of(finding: Finding, row: KernelRow) -> bool:
    return any(member.name == row.name or member.name in row.ops for member in finding.members)


def _time(finding: Finding, row: KernelRow) -> int | None:
    own = (m for m in finding.members if m.name == row.name or m.name in row.ops)
    return next((member.time_ns for member in own if member.time_ns is not None), None)


PAGE = Page(
    name="kernel",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/kernel/(?P<place>[0-9]{1,7})"),
    layout=layout,
    title="Kernel",
)
