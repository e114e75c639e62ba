"""`fusion-advisor apply`: prove the plans of a run, keep what pays."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Group

from advisor.cli.output import echo
from advisor.cli.requirements import need_torch
from advisor.errors import AdvisorError
from advisor.model.base import encode
from advisor.model.run import JobState, Progress
from advisor.report.applied import render_applied
from advisor.report.progress import progress_line
from advisor.report.text import render
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
    code. Without a GPU everything but timing is done.
    """
    need_torch("apply")
    directory = RunDirectory.at(run)
    from advisor.pipeline.trials import requested

    with ExitStack() as held:
        held.enter_context(directory.lock())
        # What cannot be tried leaves the state of an earlier job alone.
        requested(directory, only)
        writer = held.enter_context(ProgressWriter(directory.progress_path, f"apply-{os.getpid()}"))

        def emit(
            stage: str,
            state: JobState,
            *,
            plan: str | None = None,
            value: float | int | str | None = None,
            message: str = "",
        ) -> None:
            event = writer.emit(stage, state, plan=plan, value=value, message=message)
            # How a job ended without a result is the one line on stderr that any failure gets.
            if progress == "json" or state not in ("failed", "cancelled") or plan is not None:
                _show(event, progress)

        emit("load", "running", message="starting")
        from advisor.pipeline.apply import apply_run

        try:
            applied = apply_run(directory, only, emit)
        except AdvisorError as error:
            emit("done", "failed", message=error.line())
            raise
        except KeyboardInterrupt:
            emit("done", "cancelled", message="interrupted")
            raise
        except Exception as error:
            emit("done", "failed", message=f"{type(error).__name__}: {error}")
            raise
    if progress == "text":
        echo(Group(render_applied(applied)))


def _show(event: Progress, form: str) -> None:
    if form == "json":
        click.echo(encode(event).decode().replace("\n", "").strip())
    else:
        click.echo(render(progress_line(event), width=120).rstrip(), err=True)
