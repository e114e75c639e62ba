"""`fusion-advisor apply`: prove the plans of a run, keep what pays."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Group

from advisor.cli.output import echo
from advisor.cli.requirements import need_torch
from advisor.report.applied import render_applied
from advisor.store import ProgressWriter, RunDirectory


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--only", multiple=True, metavar="ID", help="Try only this finding or plan (may be repeated)."
)
@click.option(
    "--progress",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Progress events as text or one JSON object a line; always written to RUN/progress.jsonl.",
)
def apply(run: Path, only: tuple[str, ...], progress: str) -> None:
    """Generate, check and time the kernels of RUN, put them into the model, keep those that pay.

    RUN is a run directory that `profile` made on this machine: applying executes the workload's
    code, in a process of its own. Without a GPU everything but timing is done.
    """
    need_torch("apply")
    directory = RunDirectory.at(run)
    from advisor.cli.jobs import run_job
    from advisor.pipeline.job import ApplyJob
    from advisor.pipeline.trials import requested

    with directory.lock():
        # What cannot be tried leaves the state of an earlier job alone.
        requested(directory, only)
        job = ApplyJob(run=str(directory.path), only=only)
        with ProgressWriter(directory.progress_path, f"apply-{os.getpid()}") as writer:
            run_job(job, writer, progress, where=directory.info().target)
        applied = directory.applied()
    if progress == "text" and applied is not None:
        echo(Group(render_applied(applied)))
