"""`fusion-advisor unfuse`: cut the compiler's kernels where their parts are faster."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.apply import PROGRESS, apply_to, duration
from advisor.cli.requirements import need_torch


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("kernel", metavar="[KERNEL]", required=False, default="")
@click.option("--budget", callback=duration, metavar="TIME",
              help="Be at the end in about this time, such as 90s, 10m or 1h.  "
              "[default: no limit]")  # fmt: skip
@click.option("--progress", **PROGRESS)
def unfuse(run: Path, kernel: str, budget: float | None, progress: str) -> None:
    """Time the compiler's fused kernels of RUN against their parts; keep the cuts that pay.

    KERNEL is a kernel's name or a part of it; without it, those that take most of the step are
    looked at. Each is cut in a few ways: a value that several readers compute again is stored, a
    reduction ends a kernel, ops are divided where least passes through memory, every op is a kernel
    of its own. The compiler makes the parts, the step is run with and without each cut, and what is
    faster in GPU time and step time is kept, as by `apply`: `revert` takes it out again. Without a
    GPU nothing is tried. Other launches of the same kernels: `apply RUN --only retune`.
    """
    need_torch("unfuse")
    apply_to(run, (f"unfuse:{kernel}" if kernel else "unfuse",), budget, progress)
