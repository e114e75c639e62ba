"""What an application kept, as a recipe: from checked records, with kernels generated again."""

from __future__ import annotations

from pathlib import Path

from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.apply.recipe import Recipe
from advisor.errors import UsageError
from advisor.folders import cache_folder
from advisor.store import RunDirectory


def kept_recipe(run: RunDirectory) -> Recipe:
    """The actions and kernels that `apply` kept in a run, in the order in which they are done.

    Raises `UsageError` if none is.
    """
    applied = run.applied()
    if applied is None or applied.set.verdict != "kept":
        raise UsageError(
            "nothing is kept in this run",
            where=str(run.path),
            why="" if applied is None else f"it was applied: {applied.set.reason}",
            remedy="`fusion-advisor apply` it first" if applied is None else "",
        )
    verdicts = {verdict.plan_id: verdict for verdict in applied.plans}
    kernels: list[ReadyKernel] = []
    for plan_id in applied.set.plans:
        config = verdicts[plan_id].configuration
        kernels.append(load_kernel(run.plan(plan_id), generated_folder(), config))
    return Recipe(applied.set.actions, tuple(kernels))


def generated_folder() -> Path:
    """Where regenerated kernels are written for this process: outside every run."""
    return cache_folder() / "kernels"
