"""What an application kept, as a recipe: from checked records, with kernels generated again.

They are those of a run directory, or of a patch, which holds nothing else.
"""

from __future__ import annotations

from pathlib import Path

from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.apply.recipe import Recipe
from advisor.folders import cache_folder
from advisor.pipeline.nothing_kept import nothing_kept
from advisor.pipeline.ranks import rank_here, run_here
from advisor.store import RunDirectory


def kept_at(path: Path) -> Recipe:
    """What is kept in a run or a patch; of several ranks, in the run of this one.

    Raises what `kept_recipe` raises, `UsageError` for any other folder.
    """
    if is_patch(path):
        return kept_recipe(RunDirectory(path.resolve()))
    return kept_recipe(RunDirectory.at(run_here(path, rank_here())))


def is_patch(path: Path) -> bool:
    """Whether a folder holds what a run kept, and no run."""
    run = (path / "run.json").exists() or (path / "report.json").exists()
    return (path / "applied.json").is_file() and not run


def kept_recipe(run: RunDirectory) -> Recipe:
    """The actions and kernels that `apply` kept in a run, in the order in which they are done.

    Raises `UsageError` if none is.
    """
    applied = run.applied()
    if applied is None or applied.set.verdict != "kept":
        raise nothing_kept(applied, "nothing is kept in this run", str(run.path))
    verdicts = {verdict.plan_id: verdict for verdict in applied.plans}
    kernels: list[ReadyKernel] = []
    for plan_id in applied.set.plans:
        config = verdicts[plan_id].configuration
        kernels.append(load_kernel(run.plan(plan_id), generated_folder(), config))
    done = [verdict for verdict in applied.actions if verdict.kind in applied.set.actions]
    return Recipe(
        applied.set.actions,
        tuple(kernels),
        tuple(split for verdict in done for split in verdict.splits),
        tuple(one for verdict in done for one in verdict.retuned),
        any(verdict.with_loss for verdict in done),
    )


def generated_folder() -> Path:
    """Where regenerated kernels are written for this process: outside every run."""
    return cache_folder() / "kernels"
