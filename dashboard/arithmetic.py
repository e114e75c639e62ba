"""The roofline of arithmetic: what kernels reach, over what memory and arithmetic units allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from advisor.model.report import Hardware, KernelRow, Report
from advisor.units import UNKNOWN, format_bytes, format_fraction, format_ns
from dashboard.figures import BLUE, GREY, ORANGE, plain, short_label, styled
from dashboard.names import kernel_name
from dashboard.parts import graph, message, section, table

TERA, GIGA = 1e12, 1e9
TITLE = "Roofline of arithmetic"
_MAX_ROWS = 40
_VECTOR = "float32"
_WIDTHS = ("solid", "dash", "dot", "dashdot")


class Achieved(NamedTuple):
    """A kernel over the steps: what it computed, moved and took in one."""

    name: str
    flops: int
    bytes: int
    counted: bool  # bytes of DRAM, as counters saw them; else the least
    time_ns: int
    arithmetic: str
    matrix: bool

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return self.flops * GIGA / self.time_ns


def achieved(rows: Sequence[KernelRow]) -> list[Achieved]:
    """The kernels whose operations are known and not none, most expensive first."""
    return [
        Achieved(
            kernel_name(row.name), row.work.flops, row.dram_bytes or row.work.bytes,
            bool(row.dram_bytes), row.time_ns, row.work.arithmetic, row.work.matrix,
        )
        for row in rows
        if row.work and min(row.work.flops, row.time_ns, row.dram_bytes or row.work.bytes) > 0
    ]  # fmt: skip


def roofs(points: Sequence[Achieved], hardware: Hardware) -> dict[str, int]:
    """The peaks that these kernels run under, FLOP/s, by the unit that has it."""
    peaks, found = hardware.peak_flops, {}
    for point in points:
        if point.matrix and point.arithmetic == _VECTOR and "tfloat32" in peaks:
            # Whether a product of float32 was allowed to round its operands is not on record.
            found["tfloat32 matrices"] = peaks["tfloat32"]
        if point.arithmetic in peaks:
            matrix = point.matrix and point.arithmetic != _VECTOR
            found[f"{point.arithmetic} matrices" if matrix else _VECTOR] = peaks[point.arithmetic]
    return found


def share(point: Achieved, hardware: Hardware) -> float | None:
    """The share of the roof above a kernel; None where its height is unknown."""
    peak, bandwidth = hardware.peak_flops.get(point.arithmetic), hardware.dram_bandwidth_bytes_per_s
    unsure = point.matrix and point.arithmetic == _VECTOR
    if peak is None or not bandwidth or unsure:
        return None
    return point.rate / min(peak, point.intensity * bandwidth)


def roofline(points: Sequence[Achieved], hardware: Hardware) -> go.Figure:
    """FLOP/s over FLOP a byte, both logarithmic, and a roof for each unit that is used."""
    figure = go.Figure()
    for matrix, color, symbol in ((True, BLUE, "circle"), (False, ORANGE, "square")):
        own = [point for point in points if point.matrix == matrix]
        if own:
            kind = "products" if matrix else "other kernels"
            figure.add_scatter(
                x=[point.intensity for point in own],
                y=[point.rate for point in own],
                mode="markers",
                name=kind,
                marker={"color": color, "symbol": symbol, "size": 10},
                text=[_told(point, hardware) for point in own],
                hovertemplate="%{text}<extra>" + kind + "</extra>",
            )
    bandwidth = hardware.dram_bandwidth_bytes_per_s
    if bandwidth and points:
        low = min(point.intensity for point in points) / 2
        high = max(point.intensity for point in points) * 2
        for dash, (name, peak) in zip(_WIDTHS, roofs(points, hardware).items(), strict=False):
            ridge = peak / bandwidth
            edges = sorted({low, min(max(low, ridge), high), high})
            figure.add_scatter(
                x=edges,
                y=[min(peak, edge * bandwidth) for edge in edges],
                mode="lines",
                name=f"{name}: {peak / TERA:,.3g} TFLOP/s",
                line={"color": GREY, "dash": dash},
                hoverinfo="skip",
            )
    figure = styled(figure, "operations a byte, FLOP/B", 9, legend=True)
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log", title="achieved, FLOP/s", exponentformat="SI", showgrid=True)
    return figure


def _told(point: Achieved, hardware: Hardware) -> str:
    moved = f"{format_bytes(point.bytes)} {'counted' if point.counted else 'at least'}"
    reached = share(point, hardware)
    parts = (
        short_label(point.name, "").strip(),
        f"{point.flops / GIGA:,.3g} GFLOP, {moved}, {format_ns(point.time_ns)}",
        f"{point.rate / TERA:,.3g} TFLOP/s in {plain(point.arithmetic)[:40]}",
        *((f"{format_fraction(reached)} of its roof",) if reached is not None else ()),
    )
    return "<br>".join(parts)


def panel(report: Report) -> Component:
    """The chart and its values; what is not drawn is said."""
    points = achieved(report.kernels)
    if not points:
        text = (
            "No kernel's operations are known. They follow from the shapes of products "
            "(record_shapes=True) and from captured graphs: profile on a GPU."
        )
        return section(TITLE, message("No operations on record", text))
    label = "Floating-point operations per second of kernels over operations a byte, with roofs"
    shown = points[:_MAX_ROWS]
    rows = [_row(point, report.hardware) for point in shown]
    head = ("Kernel", "GFLOP per step", "FLOP/B", "TFLOP/s", "Share of roof")
    summary = "Values" if len(shown) == len(points) else f"Values of the {len(shown)} longest"
    values = html.Details([html.Summary(summary), table(head, rows, TITLE)])
    drawn = graph(roofline(points, report.hardware), "arithmetic-roofline", label)
    return section(TITLE, drawn, values, note=_note(report))


def _row(point: Achieved, hardware: Hardware) -> tuple[str, ...]:
    reached = share(point, hardware)
    return (
        point.name,
        f"{point.flops / GIGA:,.4g}",
        f"{point.intensity:,.3g}",
        f"{point.rate / TERA:,.3g}",
        UNKNOWN if reached is None else format_fraction(reached),
    )


def _note(report: Report) -> str:
    whole = sum(row.time_ns for row in report.kernels)
    known = sum(row.time_ns for row in report.kernels if row.work is not None)
    idle = sum(row.work is not None and not row.work.flops for row in report.kernels)
    parts = [
        "Operations are those of the ops, by their shapes: a multiply-add is two, a conversion "
        "one. Bytes are counted where counters were recorded, else the least: operands and "
        "results once; what stays in cache may lie above the slope.",
        f"Operations of {format_fraction(known / whole)} of the kernel time are known; other "
        "kernels are not drawn.",
    ]
    if idle:
        parts.append(f"{idle} of them compute nothing and are left out.")
    if not report.hardware.peak_flops:
        parts.append("The peaks of this GPU are unknown: there is no roof.")
    return " ".join(parts)
