"""Components that several pages share. Text from reports enters only as text, never as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component
from plotly.graph_objects import Figure

from advisor.errors import AdvisorError
from advisor.model.base import Range
from advisor.model.findings import Finding
from advisor.report.text import is_upper_bound, range_text
from advisor.units import format_ns

Child = Component | str
KIND_COLORS = {"opportunity": "blue", "regression": "orange", "note": "gray"}
VERDICT_COLORS = {"kept": "teal", "reverted": "orange", "refused": "red", "not_measured": "gray"}
VERDICT_WORDS = {
    "kept": "Kept",
    "reverted": "Taken out",
    "refused": "Refused",
    "not_measured": "Not measured",
}
_MAX_AUTO_ROWS = 12
# A column of a grid whose text is broken over lines rather than cut off.
WRAPPED: dict[str, bool] = {"wrapText": True, "autoHeight": True}


def marked(component: Component, **attributes: str) -> Component:
    """The component with ARIA or data attributes: `marked(x, aria_label="…")`."""
    for name, value in attributes.items():
        setattr(component, name.replace("_", "-"), value)
    return component


def heading(text: str, level: Literal[1, 2, 3, 4] = 2, *, small: bool = False) -> Component:
    """A heading that wraps anywhere, since names come from reports; `small` looks one lower."""
    size = f"h{level + small}"
    return dmc.Title(text, order=level, size=size, className="wrap")


def badge(text: str, color: str = "gray") -> Component:
    """A small label; the colour never carries meaning alone."""
    return dmc.Badge(text, color=color, variant="light", tt="none")


def section(title: str, *children: Child, note: str = "") -> Component:
    """A titled block of a page."""
    head: list[Child] = [heading(title, 2, small=True)]
    if note:
        head.append(dmc.Text(note, size="sm", c="dimmed"))
    return dmc.Paper([*head, *children], withBorder=True, p="md", className="section")


def message(title: str, text: str, color: str = "gray") -> Component:
    """An empty or error state: what is the matter, and what to do."""
    return dmc.Alert(text, title=title, color=color, variant="light", className="wrap")


def error_state(error: AdvisorError) -> Component:
    """The page of something that cannot be shown."""
    parts = [heading("Nothing to show", 1), cannot_show(error), dcc.Link("All runs", href="/")]
    return dmc.Stack(parts)


def cannot_show(error: AdvisorError) -> Component:
    """What stands where a part of a page cannot be shown."""
    why = f"{error.where}: {error.why}" if error.where and error.why else error.where or error.why
    text = " ".join(f"{part}." for part in (why, error.remedy) if part)
    return message(f"Cannot show this: {error.what}", text, "red")


def guarded(build: Callable[[], Sequence[Component]]) -> list[Component]:
    """What is built, or what is the matter: a damaged file of a run hides nothing but its part."""
    try:
        return list(build())
    except AdvisorError as error:
        return [cannot_show(error)]


def figure_card(label: str, value: str, note: str = "", hint: str = "") -> Component:
    """A headline figure with its provenance below and its definition as a tooltip."""
    body = [
        dmc.Text(label, size="sm", c="dimmed"),
        dmc.Text(value, className="figure"),
        dmc.Text(note, size="xs", c="dimmed"),
    ]
    return html.Div(dmc.Paper(body, withBorder=True, p="sm", h="100%"), title=hint or None)


def moment(text: str) -> str:
    """An ISO 8601 time to the second for reading; anything else as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    except ValueError:
        return text


def plain_name(key: str) -> str:
    """A field's name as words, without the unit that its value is printed with."""
    words = key.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
    return re.sub(r"\b(gpu|dram|sm)\b", lambda found: found[0].upper(), words)


def saving_text(saving: Range | None) -> str:
    """A saving with its interval: `1.36 ms (1.09 ms to 1.63 ms)`; without one, `cannot judge`.

    An interval narrower than the digits shown is left out.
    """
    if saving is None:
        return "cannot judge"
    if is_upper_bound(saving):
        return range_text(saving)
    low, mid, high = format_ns(saving.low), format_ns(saving.mid), format_ns(saving.high)
    return mid if low == mid == high else f"{mid} ({low} to {high})"


def worth_text(finding: Finding) -> str:
    """What a finding is worth per step; where exposure is unknown, the kernel time it saves, as in
    the terminal; with an interval where that is a generated kernel's.
    """
    kernel, time_ns = kernel_saving(finding), kernel_time_ns(finding)
    if finding.exposed_saving_ns is not None or time_ns is None:
        return saving_text(finding.exposed_saving_ns)
    own = kernel is not None and kernel.mid == time_ns
    return f"cannot judge; of kernel time {saving_text(kernel) if own else format_ns(time_ns)}"


def kernel_saving(finding: Finding) -> Range | None:
    """The largest kernel time that a generated kernel saves, None where none is priced."""
    priced = (a.saving_ns for a in finding.alternatives if a.route == "generated_kernel")
    return max((s for s in priced if s is not None), key=lambda s: s.mid, default=None)


def kernel_time_ns(finding: Finding) -> int | None:
    """The kernel time that goes with a finding: as it says itself, else by a generated kernel."""
    kernel = kernel_saving(finding)
    return finding.kernel_saving_ns or (kernel.mid if kernel is not None else None)


def table(head: Sequence[str], rows: Iterable[Sequence[Child]], caption: str) -> Component:
    """A small table with a caption for screen readers; wide ones scroll sideways."""
    body = [
        html.Thead(html.Tr([html.Th(name, scope="col") for name in head])),
        html.Tbody([html.Tr([html.Td(cell) for cell in row]) for row in rows]),
    ]
    return html.Div(
        html.Table([html.Caption(caption, className="hidden"), *body], className="plain"),
        className="scroll",
        tabIndex=0,
    )


def grid(
    name: str,
    columns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    label: str,
    options: Mapping[str, Any] | None = None,
) -> Component:
    """A sortable, filterable table; cells are text, or drawn by a component of `assets/grid.js`."""
    short = len(rows) <= _MAX_AUTO_ROWS
    every: dict[str, Any] = {"suppressCellFocus": False, "ensureDomOrder": True}
    if short:
        every["domLayout"] = "autoHeight"
    view = html.Div(
        dag.AgGrid(
            id=name,
            columnDefs=[dict(column) for column in columns],
            rowData=[dict(row) for row in rows],
            defaultColDef={
                "sortable": True,
                "filter": True,
                "resizable": True,
                "minWidth": 100,
                "flex": 1,
            },
            dashGridOptions={**every, **(options or {})},
            style={"height": None if short else "34rem", "width": "100%"},
        ),
        role="region",
    )
    button = marked(
        html.Button("CSV", type="button", className="export"),
        data_export="grid",
        data_chart=name,
        aria_label=f"Save the table {label} as CSV",
    )
    return html.Div([marked(view, aria_label=label), html.Div(button, className="exports")])


def graph(figure: Figure, name: str, label: str) -> Component:
    """A chart that can be saved as picture or table and sends nothing anywhere."""
    config: Any = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    view = marked(
        html.Div(dcc.Graph(id=name, figure=figure, config=config), role="img"), aria_label=label
    )
    return html.Div([view, export_buttons(name)])


def export_buttons(name: str, *, csv: bool = True) -> Component:
    """Buttons that save a chart as a picture, or its figures as a table (`assets/export.js`)."""
    forms = ("png", "svg", *(("csv",) if csv else ()))
    buttons = [
        marked(
            html.Button(form.upper(), type="button", className="export"),
            data_export=form,
            data_chart=name,
            aria_label=f"Save {name} as {form.upper()}",
        )
        for form in forms
    ]
    return html.Div(buttons, className="exports")
