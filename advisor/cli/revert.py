"""`fusion-advisor revert`: take applied plans out again."""

from __future__ import annotations

import os
from pathlib import Path

import click

from advisor.cli.requirements import need_torch
from advisor.store import ProgressWriter, RunDirectory


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--progress", type=click.Choice(["text", "json"]), default="text", hidden=True)
def revert(run: Path, progress: str) -> None:
    """Forget what was applied to RUN: the next compilation is the compiler's own."""
    need_torch("revert")
    from advisor.pipeline.apply import revert_run

    directory = RunDirectory.at(run)
    with (
        directory.lock(),
        ProgressWriter(directory.progress_path, f"revert-{os.getpid()}") as writer,
    ):
        had = revert_run(directory, writer.emit)
    if progress == "text":
        click.echo("reverted" if had else "nothing was applied")
