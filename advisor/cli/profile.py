"""`fusion-advisor profile`: the main job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from rich.console import Group

from advisor.cli.output import echo, warn_unlisted
from advisor.cli.requirements import need_torch
from advisor.errors import AdvisorError, UsageError
from advisor.hardware.gpus import gpu_by_key
from advisor.report.terminal import render_next, render_report
from advisor.store import DEFAULT_ROOT, ProgressWriter, RunDirectory, RunStore, verify
from advisor.store.store import RUN_ID


@click.command()
@click.argument("target", required=False)
@click.argument("arguments", metavar="[-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
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
    "--seed",
    type=click.IntRange(-(2**63), 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed set before the workload is built.",
)
@click.option(
    "--ncu",
    is_flag=True,
    help="Also count DRAM and spill traffic of single kernels with Nsight Compute; takes minutes.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Where to put the run; must not exist or be empty.  [default: a new directory in ./runs]",
)
@click.option(
    "--again",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Profile what this run profiled, in the same way, and say what changed.",
)
@click.option(
    "--open", "open_page", is_flag=True, help="Then open the run in the dashboard, until Ctrl-C."
)
def profile(
    target: str | None,
    arguments: tuple[str, ...],
    out: Path | None,
    again: Path | None,
    open_page: bool,
    **options: Any,
) -> None:
    """Record TARGET and say which operators to fuse and what that is worth.

    TARGET is pkg.mod:factory, file.py:factory, sample:NAME or script.py. A factory takes no
    arguments and returns (module, inputs), (model, optimizer, loss) or a callable that runs one
    step; sample:NAME:train is the training step of a sample. A script is run as it is, with the
    ARGUMENTS after --, and stopped after enough steps: put `with advisor.step():` around one, or
    let it call the step() of torch.profiler.

    The workload runs in a process of its own, which prints to stderr. Without a GPU the graphs are
    captured on the CPU and priced for --gpu; nothing is timed. Under torchrun every rank writes a
    run of its own, RUN_DIR/rankK.
    """
    need_torch("profile")
    from advisor.cli.again import compare_with, options_of
    from advisor.pipeline.options import ProfileOptions
    from advisor.pipeline.ranks import rank_directory, rank_here, ranks_summary
    from collectors.live.target import parse_target, script_target

    directory: Path | None = None
    if again is not None:
        _refuse_beside_again(target)
        asked, directory = options_of(_signed(again))
    elif target is None:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    else:
        asked = ProfileOptions(target=script_target(target, arguments), **options)
    _check(asked, parse_target(asked.target).file, directory)
    if open_page and out is not None and not RUN_ID.fullmatch(out.name):
        raise UsageError(
            "the dashboard cannot name this run",
            where=str(out),
            remedy="choose a directory of letters, digits, - and _",
        )
    rank = rank_here()
    if rank is not None:
        out = rank_directory(out, rank)
    beside = RunStore(again.resolve().parent) if again is not None else RunStore(DEFAULT_ROOT)
    run = RunDirectory.create_at(out) if out is not None else beside.create(asked.target)
    warn_unlisted(run.path)
    with run.lock():
        _record(asked, run, directory)
    report = run.report()
    if rank is not None and not rank.leads:
        click.echo(f"rank {rank.rank}: {_shown(run)}")
        return
    echo(Group(render_report(report), render_next(report, _shown(run), None)))
    if rank is not None:
        click.echo(ranks_summary(_shown(run), rank, traced=run.trace_path.is_file()))
    if again is not None:
        compare_with(again, run)
    if open_page:
        from advisor.cli.serve import open_dashboard

        open_dashboard(RunStore(run.path.parent), page=run.id)


def _check(asked: Any, file: Path | None, directory: Path | None) -> None:
    """Find a slip of the pen before torch is imported in a process of its own."""
    if asked.gpu is not None:
        gpu_by_key(asked.gpu)
    if file is not None and not (directory or Path()).joinpath(file).is_file():
        from collectors.live.target import no_such_file, workload_gone

        raise no_such_file(file) if directory is None else workload_gone(directory / file)


def _record(asked: Any, run: RunDirectory, directory: Path | None) -> None:
    """Run the job; whoever holds the lock made the run, and undoes or keeps it."""
    from advisor.cli.jobs import run_job
    from advisor.pipeline.job import ProfileJob
    from advisor.pipeline.unfinished import keep_unfinished

    job = ProfileJob(run=str(run.path), options=asked)
    try:
        with ProgressWriter(run.progress_path, f"profile-{os.getpid()}") as writer:
            run_job(job, writer, "text", where=asked.target, log=run.log_path, directory=directory)
    except (AdvisorError, KeyboardInterrupt) as error:
        why = error.line() if isinstance(error, AdvisorError) else "interrupted"
        if keep_unfinished(run, why):
            click.echo(f"kept: what was measured until then is in {_shown(run)}", err=True)
        raise


def _refuse_beside_again(target: str | None) -> None:
    context = click.get_current_context()
    own = ("target", "out", "again", "open_page", "arguments")
    given = [
        f"--{name}"
        for name in context.params
        if name not in own
        and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if target is not None:
        given.insert(0, "TARGET")
    if given:
        raise UsageError(
            f"{given[0]} cannot be given with --again",
            where=context.command_path,
            why="the run has its own",
            remedy="leave it out, or profile without --again",
        )


def _signed(path: Path) -> RunDirectory:
    """A run whose workload may be run: one that this machine profiled."""
    run = RunDirectory.at(path)
    refusal = verify(run, wish="again")
    if refusal is not None:
        raise refusal
    return run


def _shown(run: RunDirectory) -> str:
    """The path of a run, from here where it is below."""
    here = Path.cwd()
    return str(run.path.relative_to(here) if run.path.is_relative_to(here) else run.path)
