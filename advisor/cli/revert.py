"""`fusion-advisor revert`: take applied plans out again."""

from __future__ import annotations

import os
from pathlib import Path

import click

from advisor.pipeline.revert import revert_run
from advisor.store import ProgressWriter, RunDirectory, verify


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--progress", type=click.Choice(["text", "json"]), default="text", hidden=True)
def revert(run: Path, progress: str) -> None:
    """Forget what was applied to RUN: the next compilation is the compiler's own.

    The record of a run that this machine did not make, or that was edited, stays.
    """
    directory = RunDirectory.at(run)
    refusal = verify(directory, wish="revert")
    if refusal is not None:
        raise refusal
    with (
        directory.lock(),
        ProgressWriter(directory.progress_path, f"revert-{os.getpid()}") as writer,
    ):
        had = revert_run(directory, writer.emit)
    if progress == "text":
        click.echo("reverted" if had else "nothing was applied")
