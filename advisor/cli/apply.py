"""`fusion-advisor apply`: prove the plans of a run, keep what pays."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Group

from advisor.cli.output import echo
from advisor.cli.requirements import need_torch
from advisor.errors import AdvisorError
from advisor.report.applied import render_applied
from advisor.report.verdict_words import elsewhere_text
from advisor.store import ProgressWriter, RunDirectory, verify

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
# The option of every command that applies.
PROGRESS: dict[str, Any] = {
    "type": click.Choice(["text", "json"]),
    "default": "text",
    "show_default": True,
    "help": "Progress events as text or one JSON object a line; always written to "
    "RUN/progress.jsonl.",
}


def duration(_: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """`90s`, `10m` or `1h` in seconds."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None:
        raise click.BadParameter(f"{value!r} is no duration: write 90s, 10m or 1h", param=option)
    return float(found[1]) * _SECONDS[found[2]]


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="Try only this finding (its id, or its number in `show`), plan or action (may be "
    "repeated); what was kept before stays.",
)
@click.option(
    "--budget",
    callback=duration,
    metavar="TIME",
    help="Be at the end in about this time, such as 90s, 10m or 1h: it goes to what was not judged "
    "here before, and the next apply goes on with what is left.  [default: no limit]",
)
@click.option("--progress", **PROGRESS)
def apply(run: Path, only: tuple[str, ...], budget: float | None, progress: str) -> None:
    """Try what the findings of RUN call for, put it into the model, keep what pays.

    Kernels are generated, checked and timed; actions (library attention, the loss over a vocabulary
    in pieces, in the model or beside it, layouts, a fused optimizer or its steps in one launch,
    tuned matrix kernels, CUDA graphs; the compiler's own kernels cut or launched otherwise, where a
    finding or `--only unfuse`, `--only retune` asks for it) are measured on the whole step. RUN is
    a run directory that `profile` made on this machine: applying executes the workload's code, in a
    process of its own. Without a GPU everything but timing is done.

    What crashes or never ends costs itself alone: the process is started again without it. An
    application that was ended is gone on with by the next. What was kept on another GPU, or with
    other versions, stays until something is found out here, and is told as theirs. Under torchrun,
    with the RUN_DIR that `profile` was given, all ranks try the same and keep it only if all of
    them would.
    """
    apply_to(run, only, budget, progress)


def apply_to(run: Path, only: Sequence[str], budget: float | None, progress: str) -> None:
    """Apply `only` these findings, plans or actions of a run, or all; print what came of it."""
    need_torch("apply")
    from advisor.cli.jobs import run_job
    from advisor.pipeline.job import ApplyJob
    from advisor.pipeline.ranks import rank_here, run_of_rank
    from advisor.pipeline.trials import requested

    rank = rank_here()
    directory = RunDirectory.at(run if rank is None else run_of_rank(run, rank))
    refusal = verify(directory)
    if refusal is not None:
        # Before the lock, which is a file: a run from elsewhere is only read.
        raise refusal
    ends_at = None if budget is None else time.time() + budget
    with directory.lock():
        # What cannot be tried leaves the state of an earlier job alone.
        requested(directory, only if rank is None or rank.leads else ())
        job = ApplyJob(run=str(directory.path), only=tuple(only), ends_at=ends_at)
        with ProgressWriter(directory.progress_path, f"apply-{os.getpid()}") as writer:
            run_job(
                job,
                writer,
                progress,
                where=directory.info().target,
                goes_on=partial(_goes_on, directory, alone=rank is None),
            )
        applied = directory.applied()
    if applied is None or progress != "text":
        return
    if rank is not None and not rank.leads:
        told = elsewhere_text(applied) or applied.set.verdict.replace("_", " ")
        click.echo(f"rank {rank.rank}: {told}")
        return
    echo(Group(render_applied(applied)))


def _goes_on(directory: RunDirectory, error: AdvisorError, *, alone: bool) -> bool:
    """Whether the job is started again; of several ranks, that is for their launcher to do."""
    from advisor.pipeline.journal import survive

    return survive(directory, error) and alone
