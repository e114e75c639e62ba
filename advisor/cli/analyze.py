"""`fusion-advisor analyze`: traces in, a report out."""

from __future__ import annotations

from pathlib import Path

import click


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
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="REPORT.JSON",
    help="Write the report as JSON; `-` is standard output.",
)
def analyze(
    files: tuple[Path, ...],
    step_range: str | None,
    gpu: str | None,
    ncu: Path | None,
    output: Path | None,
) -> None:
    """Say what to fuse in a recorded trace, and whether that is what holds it up.

    FILE is a trace of the PyTorch profiler, plain or compressed; several files are the ranks of one
    job. Nothing is run and no GPU is needed.
    """
    from advisor.cli.output import echo, echo_json
    from advisor.errors import UsageError
    from advisor.model.base import encode
    from advisor.pipeline.analyze import analyze as run
    from advisor.report.terminal import render_report
    from advisor.store.files import write_atomic

    if step_range == "":
        raise UsageError("--step-range is empty", remedy="name the range that surrounds a step")
    report = run(
        files, gpu=gpu, ncu=ncu, **({} if step_range is None else {"step_prefix": step_range})
    )
    if output is None:
        echo(render_report(report))
    elif str(output) == "-":
        echo_json(encode(report))
    else:
        write_atomic(output, encode(report))
        click.echo(f"wrote {output}", err=True)
