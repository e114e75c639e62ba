"""`fusion-advisor cliff`: a fusion op by op, and where one more is too many."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.output import echo, echo_json
from advisor.cli.sized import gpus_of, launch_of
from advisor.errors import UsageError
from advisor.model.base import encode
from advisor.pipeline.cliff import cliff_of
from advisor.pipeline.exports import chosen_launch, named_plans
from advisor.report.resources import render_cliff
from advisor.report.text import plain
from advisor.store import RunDirectory


@click.command()
@click.argument("source", metavar="PLAN.json|RUN", type=click.Path(path_type=Path))
@click.option("--gpu", "gpus", multiple=True, default=("h200",), show_default=True, metavar="NAMES",
              help="GPUs, separated by commas; none of them has to be here.")  # fmt: skip
@click.option(
    "--only", multiple=True, metavar="ID", help="The plan or finding of RUN (repeatable)."
)
@click.option("--timeout", type=click.FloatRange(min=1), default=60.0, show_default=True,
              metavar="SECONDS", help="How long one compilation may take.")  # fmt: skip
@click.option("--launch", metavar="CONFIG",
              help="Launch all as this says, such as 'rows=1 warps=8'.")  # fmt: skip
@click.option("--save", is_flag=True, help="Keep it in the run, where the dashboard shows it.")
@click.option("--json", "as_json", is_flag=True, help="Print one record a line.")
def cliff(
    source: Path,
    gpus: tuple[str, ...],
    only: tuple[str, ...],
    timeout: float,
    launch: str | None,
    save: bool,
    as_json: bool,
) -> None:
    """Add the ops of a plan to its kernel one by one and say what each costs on a GPU.

    Every kernel of the first 1, 2, ... ops writes what the rest would need and is launched alike:
    as measured on that GPU, else as its model thinks best for the whole plan. The point where one
    more op spills, or leaves too little on its way to hide the latency of memory, is the cliff.
    """
    cards, given = gpus_of(gpus), launch_of(launch) if launch is not None else None
    plans, run = named_plans(source, only)
    run = run or run_of(source)
    if save and run is None:
        raise UsageError(
            "--save needs a run", where=str(source), remedy="give RUN, or RUN/plans/ID.json"
        )
    for plan in plans:
        for gpu in cards:
            config = given or chosen_launch(plan, gpu, None).config
            found = cliff_of(plan, gpu, config, timeout_s=timeout)
            if save and run is not None:
                run.write_cliff(found)
            if as_json:
                echo_json(encode(found))
            else:
                echo(render_cliff(found))
    if save and not as_json:
        echo(plain("kept in the run: the page of its finding shows it"))


def run_of(path: Path) -> RunDirectory | None:
    """The run whose `plans/ID.json` a path is, None for any other file."""
    folder = path.resolve().parent
    if folder.name != "plans" or not (folder.parent / "report.json").is_file():
        return None
    return RunDirectory.at(folder.parent)
