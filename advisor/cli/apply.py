"""`fusion-advisor apply`: prove the plans of a run, keep what pays."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
from rich.console import Group

from advisor.cli.output import echo
from advisor.cli.requirements import need_torch
from advisor.report.applied import render_applied
from advisor.store import ProgressWriter, RunDirectory, verify

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def _seconds(_: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """`90s`, `10m` or `1h` in seconds."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None:
        raise click.BadParameter(f"{value!r} is no duration; write 90s, 10m or 1h", param=option)
    return float(found[1]) * _SECONDS[found[2]]


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="Try only this finding, plan or action (may be repeated); what was kept before stays.",
)
@click.option(
    "--budget",
    callback=_seconds,
    metavar="TIME",
    help="Try nothing new after this time, such as 90s, 10m or 1h.  [default: no limit]",
)
@click.option(
    "--progress",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Progress events as text or one JSON object a line; always written to RUN/progress.jsonl.",
)
def apply(run: Path, only: tuple[str, ...], budget: float | None, progress: str) -> None:
    """Try what the findings of RUN call for, put it into the model, keep what pays.

    Kernels are generated, checked and timed; actions (library attention, layouts, a fused
    optimizer, tuned matrix kernels, CUDA graphs) are measured on the whole step. RUN is a run
    directory that `profile` made on this machine: applying executes the workload's code, in a
    process of its own. Without a GPU everything but timing is done.
    """
    need_torch("apply")
    directory = RunDirectory.at(run)
    from advisor.cli.jobs import run_job
    from advisor.pipeline.job import ApplyJob
    from advisor.pipeline.trials import requested

    refusal = verify(directory)
    if refusal is not None:
        # Before the lock, which is a file: a run from elsewhere is only read.
        raise refusal
    with directory.lock():
        # What cannot be tried leaves the state of an earlier job alone.
        requested(directory, only)
        job = ApplyJob(run=str(directory.path), only=only, budget_s=budget)
        with ProgressWriter(directory.progress_path, f"apply-{os.getpid()}") as writer:
            run_job(job, writer, progress, where=directory.info().target)
        applied = directory.applied()
    if progress == "text" and applied is not None:
        echo(Group(render_applied(applied)))
