"""`fusion-advisor analyze`: traces in, a report out."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import click

from advisor.model.report import Report
from advisor.model.step_record import StepRecord
from advisor.store.directory import RunDirectory
from advisor.store.store import RUN_ID, RunStore

COMMIT = re.compile(r"[0-9A-Fa-f]{7,64}")


@click.command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--step-range",
    metavar="NAME",
    help="What the ranges that surround a step are called.  [default: ProfilerStep#]",
)
@click.option("--gpu", metavar="NAME", help="GPU of the trace, where the file does not name it.")
@click.option(
    "--ncu",
    type=click.Path(path_type=Path),
    metavar="FILE.CSV",
    help="Counters of the same step, from `ncu --csv --page raw`.",
)
@click.option(
    "--commit",
    metavar="HASH",
    help="The commit that was traced, for trends over commits: a trace does not tell.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="REPORT.JSON",
    help="Write the report as JSON; `-` is standard output.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Keep report and traces as a run: an absent or empty directory.",
)
@click.option("--open", "open_page", is_flag=True, help="Then open the run in the dashboard.")
def analyze(
    files: tuple[Path, ...],
    step_range: str | None,
    gpu: str | None,
    ncu: Path | None,
    commit: str | None,
    output: Path | None,
    out: Path | None,
    open_page: bool,
) -> None:
    """Say what to fuse in a recorded trace, and whether that is what holds it up.

    FILE is a trace of the PyTorch profiler, plain or compressed; several files are the ranks of one
    job. A CSV of `ncu --csv --page raw` by itself shows kernels that spill, and no gaps. Nothing is
    run and no GPU is needed.
    """
    from advisor.cli.output import check_folder
    from advisor.errors import UsageError
    from advisor.pipeline.analyze import analyzed as run
    from advisor.pipeline.source_commit import SHORT_HASH

    if step_range == "":
        raise UsageError("--step-range is empty", remedy="name the range that surrounds a step")
    if open_page and (out is None or not RUN_ID.fullmatch(out.name)):
        raise UsageError(
            "--open needs --out with a plain name",
            remedy="for instance --out runs/first: letters, digits, - and _",
        )
    if commit is not None and not COMMIT.fullmatch(commit):
        raise UsageError(
            "--commit is no hash of 7 to 64 hex digits",
            where=commit[:60],
            remedy="`git rev-parse HEAD` prints it",
        )
    if output is not None and str(output) != "-":
        check_folder(output)
    named = {} if step_range is None else {"step_prefix": step_range}
    short = None if commit is None else commit.lower()[:SHORT_HASH]
    with ExitStack() as undo:
        # Before the work, which takes minutes with large traces: the directory may be in use.
        place = None if out is None else RunDirectory.create_at(out)
        if place is not None:
            undo.callback(place.discard)
        report, step = run(files, gpu=gpu, ncu=ncu, commit=short, **named)
        _tell(report, output)
        undo.pop_all()
    if place is not None:
        _keep(place, files, (report, step), open_page=open_page)


def _tell(report: Report, output: Path | None) -> None:
    """The report on the terminal, or as JSON there (`-`) or in a file."""
    from advisor.cli.output import echo, echo_json
    from advisor.model.base import encode
    from advisor.report.terminal import render_report
    from advisor.store.files import write_atomic

    if output is None:
        echo(render_report(report))
    elif str(output) == "-":
        echo_json(encode(report))
    else:
        write_atomic(output, encode(report))
        click.echo(f"wrote {output}", err=True)


def _keep(
    run: RunDirectory,
    files: tuple[Path, ...],
    found: tuple[Report, StepRecord],
    *,
    open_page: bool,
) -> None:
    """Report, step and traces as a run, and the dashboard over it if it is asked for."""
    from advisor.cli.output import warn_unlisted
    from advisor.pipeline.stored import keep_traces

    keep_traces(run, files)
    run.write_report(found[0])
    run.write_step(found[1])
    click.echo(f"wrote {run.path}", err=True)
    warn_unlisted(run.path)
    if open_page:
        from advisor.cli.serve import open_dashboard

        open_dashboard(RunStore(run.path.parent), page=run.id)
