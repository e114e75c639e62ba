"""The dataflow of a plan as cytoscape elements: inputs, ops inside the one kernel, outputs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import dash_cytoscape as cyto
from dash import html
from dash.development.base_component import Component

from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, PlanInput
from advisor.report.text import counted
from dashboard.parts import marked

# Wide enough that neither two tensors side by side nor a tensor and the kernel's frame touch.
_COLUMN_PX, _ROW_PX = 140, 84
_KERNEL = "kernel"
_STYLE: list[dict[str, Any]] = [
    {
        "selector": "node",
        "style": {
            "label": "data(label)",
            "text-valign": "center",
            "text-wrap": "wrap",
            "text-max-width": "100px",
            "font-size": 14,
            "color": "#ffffff",
            "background-color": "#0072B2",
            "shape": "round-rectangle",
            "width": 104,
            "height": 50,
        },
    },
    {
        "selector": ".tensor",
        "style": {"background-color": "#5c5f66", "width": 124, "text-max-width": "120px"},
    },
    {"selector": ".reduction", "style": {"background-color": "#9c5a00"}},
    {
        "selector": ":parent",
        "style": {
            "background-opacity": 0.08,
            "border-style": "dashed",
            "border-width": 2,
            "border-color": "#009E73",
            "text-valign": "top",
            "color": "#009E73",
            "text-max-width": "1000px",
            "padding": 14,
        },
    },
    {
        "selector": "edge",
        "style": {
            "curve-style": "bezier",
            "target-arrow-shape": "triangle",
            "width": 1.5,
            "line-color": "#8A8F98",
            "target-arrow-color": "#8A8F98",
        },
    },
]


def elements(plan: FusionPlan) -> list[dict[str, Any]]:
    """Nodes in columns by their depth from the inputs, and one edge per operand."""
    depth = _depths(plan)
    places = _places(plan, depth)
    found: list[dict[str, Any]] = [
        {"data": {"id": _KERNEL, "label": f"one kernel instead of {counted(len(plan.ops), 'op')}"}}
    ]
    for item in plan.inputs:
        computed = ", counted" if item.counts is not None else ""
        computed += f", rows of a table by {item.gathered}" if item.gathered is not None else ""
        label = f"{item.name} {item.dtype}{computed}\n{_spans(item)}"
        found.append(_node(item.name, label, "tensor", places[item.name]))
    for op in plan.ops:
        kind = spec_of(op.op).kind
        literals = [str(arg) for arg in op.args if arg not in depth]
        words = " ".join((op.op, *literals))
        found.append(_node(op.name, f"{words}\n{op.dtype}", kind, places[op.name], parent=_KERNEL))
        found += [_edge(str(arg), op.name) for arg in dict.fromkeys(op.args) if arg in depth]
    for position, output in enumerate(plan.outputs):
        name = f"out{position}"
        found.append(_node(name, f"{name}\n{output.dtype}", "tensor", places[name]))
        found.append(_edge(output.value, name))
    return found


def component(plan: FusionPlan) -> Component:
    """The subgraph to look at; its label names the ops for screen readers."""
    view = cyto.Cytoscape(
        id=f"subgraph-{plan.id}",
        elements=elements(plan),
        stylesheet=_STYLE,
        layout={"name": "preset", "fit": True, "padding": 24},
        style={"width": "100%", "height": "100%"},
        userZoomingEnabled=False,
        autoungrabify=True,
    )
    label = "Dataflow: " + ", then ".join(op.op for op in plan.ops)
    return marked(html.Div(view, className="subgraph", role="img"), aria_label=label)


def _depths(plan: FusionPlan) -> dict[Any, int]:
    """Longest path from an input, for every input and op."""
    depth: dict[Any, int] = {item.name: 0 for item in plan.inputs}
    for op in plan.ops:
        depth[op.name] = 1 + max((depth[arg] for arg in op.args if arg in depth), default=0)
    return depth


def _places(plan: FusionPlan, depth: dict[Any, int]) -> dict[str, dict[str, float]]:
    """A column by depth; an input stands one column before its first use, an output behind all."""
    column: dict[str, int] = {str(name): value for name, value in depth.items()}
    for item in plan.inputs:
        read = {item.name, *(i.name for i in plan.inputs if i.gathered == item.name)}
        uses = [depth[op.name] for op in plan.ops if read & {*op.args}]
        column[item.name] = min(uses, default=1) - 1
    last = max(column.values()) + 1
    column |= {f"out{position}": last for position in range(len(plan.outputs))}
    rows: dict[int, int] = defaultdict(int)
    places = {}
    for name, x in column.items():
        outside = name in {item.name for item in plan.inputs} and x > 0
        y = -1.7 if outside else float(rows[x])
        rows[x] += not outside
        places[name] = {"x": float(x * _COLUMN_PX), "y": y * _ROW_PX}
    return places


def _spans(item: PlanInput) -> str:
    rows, columns = any(item.spans[:-1]), item.spans[-1]
    along = "part of columns" if item.segments else "columns" if columns else "1"
    return f"[{'rows' if rows else '1'}, {along}]"


def _node(
    name: str, label: str, kind: str, place: dict[str, float], parent: str | None = None
) -> dict[str, Any]:
    data = {"id": name, "label": label} | ({"parent": parent} if parent else {})
    return {"data": data, "classes": kind, "position": place}


def _edge(source: str, target: str) -> dict[str, Any]:
    return {"data": {"source": source, "target": target}}
