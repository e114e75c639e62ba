"""`fusion-advisor cliff`: a fusion op by op, and where one more is too many."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from advisor.cli.output import echo, echo_json
from advisor.cli.sized import gpus_of, launch_of, seconds
from advisor.errors import AdvisorError, UsageError
from advisor.hardware.gpu import Gpu
from advisor.model.base import encode
from advisor.model.halves import halves
from advisor.model.plan import FusionPlan
from advisor.model.resources import Cliff
from advisor.pipeline.cliff import cliff_of
from advisor.pipeline.exports import chosen_launch, named_plans
from advisor.report.resources import cliff_verdict, render_cliff
from advisor.report.text import plain
from advisor.store import ProgressWriter, RunDirectory
from advisor.store.files import make_directory, write_atomic


@click.command()
@click.argument("source", metavar="PLAN.json|RUN", type=click.Path(path_type=Path))
@click.option("--gpu", "gpus", multiple=True, metavar="NAMES",
              help="GPUs, separated by commas; none of them has to be here.  "
              "[default: that of the run, else h200]")  # fmt: skip
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="The plan or finding of RUN, this by id or number (repeatable).",
)
@click.option("--timeout", type=float, callback=seconds, default=60.0, show_default=True,
              metavar="SECONDS", help="How long one compilation may take.")  # fmt: skip
@click.option("--launch", metavar="CONFIG",
              help="Launch all so, as `resources` prints it: 'rows=1 warps=8'.")  # fmt: skip
@click.option("--split", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Write both plans of each kernel that is cut in two, to generate.")  # fmt: skip
@click.option("--save", is_flag=True, help="Keep it in the run, where the dashboard shows it.")
@click.option("--json", "as_json", is_flag=True, help="Print one record a line.")
def cliff(
    source: Path,
    gpus: tuple[str, ...],
    only: tuple[str, ...],
    timeout: float,
    launch: str | None,
    split: Path | None,
    save: bool,
    as_json: bool,
) -> None:
    """Add the ops of a plan to its kernel one by one and say what each costs on a GPU.

    Every kernel of the first 1, 2, ... ops writes what the rest would need and is launched alike:
    as measured on that GPU, else as its model thinks best for the whole plan. The point where one
    more op spills, or leaves too little on its way to hide the latency of memory, is the cliff.
    """
    given = launch_of(launch) if launch is not None else None
    plans, run = named_plans(source, only)
    cards = gpus_of(gpus or (_gpu_of(run),))
    if save and run is None:
        raise UsageError(
            "--save needs a run", where=str(source), remedy="give RUN, or RUN/plans/ID.json"
        )
    with _kept_in(run if save else None) as keep:
        for plan in plans:
            for gpu in cards:
                config = given or chosen_launch(plan, gpu, None).config
                keep.begin(plan, gpu)
                found = cliff_of(plan, gpu, config, timeout_s=timeout)
                keep.end(found)
                written = [] if split is None else _write_halves(plan, found, split)
                if as_json:
                    echo_json(msgspec.json.encode(found))
                    continue
                echo(render_cliff(found))
                if split is not None:
                    echo(plain(_written(written)))
    if save and not as_json:
        echo(plain("kept in the run: the page of its finding shows it"))


def _write_halves(plan: FusionPlan, found: Cliff, folder: Path) -> list[Path]:
    """`ID.json` of both kernels where a plan is cut in two."""
    cut = halves(plan, found.split_after or 0) or ()
    paths = [folder / f"{half.id}.json" for half in cut]
    for half, path in zip(cut, paths, strict=True):
        make_directory(folder, parents=True)
        write_atomic(path, encode(half))
    return paths


def _written(paths: Sequence[Path]) -> str:
    """What became of `--split`, in words."""
    if not paths:
        return "not cut in two, so no plan was written"
    return f"both plans, for `fusion-advisor generate`: {', '.join(map(str, paths))}"


class _Keep:
    """Where cliffs go and what is said of them on the way: into a run, or nowhere."""

    def __init__(self, run: RunDirectory | None, progress: ProgressWriter | None) -> None:
        self._run, self._progress = run, progress

    def begin(self, plan: FusionPlan, gpu: Gpu) -> None:
        """Say that a plan is sized op by op."""
        if self._progress is not None:
            words = f"{plan.title}: the first 1 to {len(plan.ops)} ops, compiled for {gpu.name}"
            self._progress.emit("resources", "running", plan=plan.id, message=words)

    def end(self, found: Cliff) -> None:
        """Keep it."""
        if self._run is not None and self._progress is not None:
            self._run.write_cliff(found)
            self._progress.emit(
                "resources", "done", plan=found.plan_id, message=cliff_verdict(found)
            )


@contextmanager
def _kept_in(run: RunDirectory | None) -> Iterator[_Keep]:
    """Hold the run against other writers while its cliffs are made, and say how that ended."""
    if run is None:
        yield _Keep(None, None)
        return
    with run.lock(), ProgressWriter(run.progress_path, f"cliff-{os.getpid()}") as progress:
        try:
            yield _Keep(run, progress)
        except AdvisorError as error:
            progress.emit("done", "failed", message=error.line())
            raise
        progress.emit("done", "done", message="What each op costs is on record.")


def _gpu_of(run: RunDirectory | None) -> str:
    """The GPU that a run is of, as far as its resources can be told; one of today for a plan."""
    return (run.report().hardware.key if run is not None else None) or "h200"
