"""`fusion-advisor calibration`: how well predictions did, and predictions that learn from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from advisor.cli.output import echo, echo_json
from advisor.errors import UsageError
from advisor.hardware.gpus import find_gpu
from advisor.hardware.learned import FEWEST_PLANS, LearnedIntervals, learned_path, save_learned
from advisor.model.base import encode
from advisor.model.scores import Scores
from advisor.report.scores import render_scores
from advisor.store import DEFAULT_ROOT, RunDirectory, RunStore
from advisor.units import counted
from analyzers.scores import score


@click.command()
@click.argument("runs", metavar="[RUN|STORE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The scores as JSON.")
@click.option(
    "--learn",
    is_flag=True,
    help=f"Predict on this GPU as these plans teach from now on ({FEWEST_PLANS} at least).",
)
def calibration(runs: tuple[Path, ...], as_json: bool, learn: bool) -> None:
    """Hold what was predicted against what was measured, for every plan applied, kept or not.

    RUN is a run directory, STORE a folder of them.  [default: runs]
    """
    scores = score((run.id, run.applied()) for run in _runs(runs or (Path(DEFAULT_ROOT),)))
    if as_json:
        echo_json(encode(scores))
    else:
        echo(render_scores(scores))
    if learn:
        click.echo(f"learned: {_learn(scores)}", err=True)


def _runs(places: Sequence[Path]) -> Iterable[RunDirectory]:
    """Each run once, though it is named twice or lies in a folder that is named too."""
    return {run.path.resolve(): run for run in _named(places)}.values()


def _named(places: Sequence[Path]) -> Iterator[RunDirectory]:
    for place in places:
        if (place / "report.json").is_file() or (place / "run.json").is_file():
            yield RunDirectory.at(place)
            continue
        if not place.is_dir():
            raise UsageError(
                "no run and no folder of runs",
                where=str(place),
                why="it is no directory" if place.exists() else "there is no such directory",
                remedy="give a run directory, or a folder of them",
            )
        yield from RunStore(place).runs()


def _learn(scores: Scores) -> Path:
    if not scores.plans:
        raise UsageError(
            "there is nothing to learn from",
            why="no plan has both a prediction and a measurement",
            remedy="`fusion-advisor apply` a run on a GPU first",
        )
    devices = {item.gpu for item in scores.plans}
    gpu = find_gpu(next(iter(devices))) if len(devices) == 1 else None
    if gpu is None:
        raise UsageError(
            "intervals are learned for one GPU of the table at a time",
            why=f"these plans were measured on {', '.join(sorted(devices)) or 'none'}",
            remedy="give runs of one GPU",
        )
    teaching = sum(item.residual is not None for item in scores.plans)
    if scores.residuals is None:
        raise UsageError(
            f"{counted(teaching, 'plan')} are too few to learn from",
            remedy=f"apply more runs; {FEWEST_PLANS} measured plans are needed",
        )
    found = LearnedIntervals(gpu=gpu.key, residuals=scores.residuals, plans=teaching)
    return save_learned(found, learned_path(gpu))
