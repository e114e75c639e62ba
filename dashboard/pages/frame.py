"""What the pages of one run share: its name, its facts and the tabs."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from advisor.model.report import Report
from advisor.report.words import commit_text, is_modelled
from advisor.store.directory import RunDirectory
from dashboard.page import finding_path, run_path
from dashboard.parts import badge, heading, marked, moment

# label, address below the run.
TABS: tuple[tuple[str, str], ...] = (
    ("Overview", ""),
    ("Findings", "/findings"),
    ("Kernels", "/kernels"),
    ("Timeline", "/timeline"),
    ("Overlap", "/overlap"),
    ("Compiler", "/compiler"),
    ("Regressions", "/regressions"),
    ("Calibration", "/calibration"),
)


def frame(run: RunDirectory, report: Report, tab: str, *children: Component) -> Component:
    """A page of a run: facts on top, tabs, then `children`."""
    facts = [badge(report.workload.mode), badge(report.hardware.name)]
    if is_modelled(report):
        facts.append(badge("no GPU at hand: figures are modelled", "orange"))
    facts += [badge(f"shapes {shape}") for shape in report.workload.shapes[:3]]
    head = [
        heading(report.workload.target, 1),
        dmc.Group(facts, gap="xs"),
        dmc.Text(
            f"{run.id}, made {moment(report.created)}{_source(report)}",
            size="sm",
            c="dimmed",
            className="wrap",
        ),
        _tabs(run.id, tab),
    ]
    return html.Div([*head, *children], className="stack")


def _source(report: Report) -> str:
    commit = report.workload.commit
    return f", source at commit {commit_text(commit)}" if commit is not None else ""


def finding_link(run: RunDirectory, finding_id: str, title: str) -> Component:
    """A link to a finding."""
    return dcc.Link(title, href=finding_path(run.id, finding_id), className="wrap")


def _tabs(run_id: str, current: str) -> Component:
    links: list[Component] = []
    for label, below in TABS:
        path = run_path(run_id) + below
        if label == current:
            links.append(marked(html.A(label, href=path), aria_current="page"))
        else:
            links.append(dcc.Link(label, href=path))
    return marked(html.Nav(links, className="tabs"), aria_label="Pages of this run")
