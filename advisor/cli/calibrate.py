"""`fusion-advisor calibrate`: measure this GPU once, so that prices rest on it."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Group, RenderableType

from advisor.cli.output import echo
from advisor.cli.requirements import need_torch
from advisor.hardware.calibration import (
    Calibration,
    calibration_path,
    default_calibration,
    save_calibration,
)
from advisor.hardware.gpu import Gpu
from advisor.report.text import heading, plain, table
from advisor.units import format_bytes, format_fraction, format_ns


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it.  [default: this user's calibrations, where `profile` finds it]",
)
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: a third of the time.")
def calibrate(out: Path | None, quick: bool) -> None:
    """Measure this machine's GPU for a minute and store what it does in practice.

    Bandwidth by size with warm and cold caches, the shortest kernel, launches in and out of CUDA
    graphs, special functions, reductions, matrix products by dtype. `profile` and `analyze` price
    with the result from then on. Nothing else should use the GPU meanwhile.
    """
    need_torch("calibrate")
    from advisor.pipeline.calibrate import calibrate as measure
    from advisor.pipeline.calibrate import present_gpu

    def emit(stage: str, message: str) -> None:
        click.echo(f"{stage}: {message}", err=True)

    gpu = present_gpu()
    found = measure(gpu, quick=quick, emit=emit)
    path = save_calibration(found, out or calibration_path(gpu))
    echo(Group(render_calibration(gpu, found), plain(f"written to {path}")))


def render_calibration(gpu: Gpu, found: Calibration) -> RenderableType:
    """The figures of a calibration beside those of the table."""
    estimate = default_calibration(gpu)
    shown = table([("figure", False), ("measured", True), ("table", True)])
    for row in _rows(gpu, found, estimate):
        shown.add_row(*(plain(cell) for cell in row))
    return Group(heading(f"Calibration of {found.device}"), plain(found.source, "dim"), shown)


def _rows(gpu: Gpu, found: Calibration, estimate: Calibration) -> list[tuple[str, str, str]]:
    rows = []
    for kind, curve, warm in (
        ("input in cache", found.curve, True),
        ("caches cold", found.cold_curve, False),
    ):
        for point in curve:
            expected = estimate.bandwidth(point.bytes, warm=warm)
            name = f"copy of {format_bytes(point.bytes)}, {kind}"
            rows.append((name, _rate(point.bytes_per_s), _rate(expected)))
    rows += [
        ("shortest kernel", format_ns(found.kernel_floor_ns), format_ns(estimate.kernel_floor_ns)),
        ("launch, eager", format_ns(found.launch_ns), format_ns(estimate.launch_ns)),
        ("kernel of a CUDA graph", format_ns(found.graph_launch_ns), "unknown"),
        ("trip to memory", format_ns(found.trip_ns), format_ns(estimate.trip_ns)),
        ("L2", _rate(found.l2_bytes_per_s), _rate(estimate.l2_bytes_per_s)),
        ("special functions, of the peak", format_fraction(found.special_share), "100.0 %"),
        ("instructions, of the model's count", format_fraction(found.issue_share), "100.0 %"),
        ("sum over rows, of a copy", format_fraction(found.reduction_share), "unknown"),
    ]
    for arithmetic, flops in found.matrix_flops.items():
        peak = gpu.peak_flops(arithmetic)
        name = f"matrix product, {arithmetic}"
        rows.append((name, _flops(flops), "unknown" if peak is None else _flops(peak)))
    return rows


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:,.3g} TB/s"


def _flops(value: float) -> str:
    return f"{value / 1e12:,.4g} TFLOP/s"
