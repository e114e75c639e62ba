"""`fusion-advisor profile`: the main job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Group

from advisor.cli.output import echo
from advisor.cli.requirements import need_torch
from advisor.report.terminal import render_next, render_report
from advisor.store import DEFAULT_ROOT, RunDirectory, RunStore


@click.command()
@click.argument("target")
@click.option(
    "--mode",
    type=click.Choice(["eager", "compile"]),
    default="eager",
    show_default=True,
    help="What the workload runs as today: its prices are the present state.",
)
@click.option(
    "--gpu", metavar="NAME", help="GPU to price for where there is none (h200, a100, rtx4090, ...)."
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Clean steps to time.",
)
@click.option(
    "--warmup",
    type=click.IntRange(0, 1_000),
    default=3,
    show_default=True,
    help="Steps before timing.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed set before the workload is built."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Where to put the run; must not exist or be empty.  [default: a new directory in ./runs]",
)
def profile(
    target: str, mode: str, gpu: str | None, steps: int, warmup: int, seed: int, out: Path | None
) -> None:
    """Record TARGET and say which operators to fuse and what that is worth.

    TARGET is pkg.mod:factory, file.py:factory or sample:NAME. The factory takes no arguments and
    returns (module, inputs), (model, optimizer, loss) or a callable that runs one step.

    Without a GPU the graphs are captured on the CPU and priced for --gpu; nothing is timed.
    """
    need_torch("profile")
    from advisor.pipeline.profile import ProfileOptions
    from advisor.pipeline.profile import profile as run_profile

    options = ProfileOptions(
        target=target, mode=mode, gpu=gpu, steps=steps, warmup=warmup, seed=seed
    )
    run = (
        RunDirectory.create_at(out)
        if out is not None
        else RunStore(Path(DEFAULT_ROOT)).create(target)
    )

    def emit(stage: str, message: str) -> None:
        click.echo(f"{stage}: {message}", err=True)

    with ExitStack() as undo:
        # Whoever holds the lock made the run: only then is there something to undo.
        with run.lock():
            undo.callback(run.discard)
            report = run_profile(options, run, emit)
        undo.pop_all()
    shown = str(
        out or run.path.relative_to(Path.cwd()) if run.path.is_relative_to(Path.cwd()) else run.path
    )
    echo(Group(render_report(report), render_next(report, shown, None)))
