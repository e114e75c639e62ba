"""What of a recipe found no place in the model that it was put into: said once, never silently.

Nothing is wrong then with what is computed, where no kernel fits the original ops stay; but the
model is not as fast as the run measured. What the compiler takes from its caches nobody looked at:
of that nothing is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from advisor.apply.recipe import Recipe
from advisor.model.actions import ActionKind, facts_of
from advisor.model.base import Phase
from advisor.model.plan import FusionPlan
from advisor.pipeline.graph_programs import NO_SITE
from advisor.units import counted

if TYPE_CHECKING:
    from advisor.pipeline.backend import SwapLog

NO_GRAPH = "nothing that the run kept is used: torch.compile compiled no graph of this model"
STAY = "the original ops stay; profile and apply the model as it is now for what fits it"
ON_CPU = "the model is on the CPU, where none is launched"
_ROUTES: dict[ActionKind, tuple[str, ...]] = {
    "attention": ("scaled_dot_product_attention", "flex_attention"),
    "flex_attention": ("scaled_dot_product_attention", "flex_attention"),
    "chunked_loss": ("chunked_loss",),
}


class Misfits:
    """Tells of a recipe what fits nowhere, once the graphs that it is for are compiled.

    Kernels are judged when graphs of their own pass are there: those of a training step not by the
    validation before it, and those of its backward pass not while a model is only called.
    """

    def __init__(self, recipe: Recipe, log: SwapLog) -> None:
        self._recipe, self._log = recipe, log
        self._judged: set[Phase] = set()
        fits_in_graphs = recipe.kernels or recipe.splits or _ROUTES.keys() & set(recipe.actions)
        self._first = self._cuts = bool(fits_in_graphs)
        log.explains = True

    def tell(self, *, stacklevel: int) -> None:
        """Warn of what is known by now and was not told yet; called after every step.

        `stacklevel` is that of a warning in the caller.
        """
        lines: list[str] = []
        if self._first:
            self._first = False
            lines += _absent_actions(self._recipe, self._log)
            for text in (*_uncompiled(self._log), *_of_other_passes(self._recipe, self._log)):
                warnings.warn(text, stacklevel=stacklevel + 1)
        for phase in sorted(self._log.phases - self._judged):
            self._judged.add(phase)
            lines += _absent_kernels(self._recipe, self._log, phase)
        if self._cuts and self._log.phases & {"backward", "inference"}:
            self._cuts = False
            lines += _absent_cuts(self._recipe, self._log)
        if lines:
            warnings.warn(_text(lines), stacklevel=stacklevel + 1)


def _uncompiled(log: SwapLog) -> Iterator[str]:
    if not log.compiled:
        yield NO_GRAPH


def _of_other_passes(recipe: Recipe, log: SwapLog) -> Iterator[str]:
    """Kernels of a training step where only inference is compiled so far, or the reverse."""
    unused = [kernel.plan for kernel in recipe.kernels if not log.swapped(kernel.plan.id)]
    theirs, compiled = ({_pass_of(phase) for phase in it} for it in (_phases(unused), log.phases))
    if theirs and compiled and not theirs & compiled and not log.from_cache:
        kernels = f"{counted(len(unused), 'kernel')} for {', '.join(theirs)}"
        yield f"not used so far: {kernels}, and only {', '.join(compiled)} was compiled yet"


def _phases(plans: Sequence[FusionPlan]) -> set[Phase]:
    return {plan.phase for plan in plans}


def _pass_of(phase: Phase) -> str:
    return "inference" if phase == "inference" else "training"


def tell_of_graph(recipe: Recipe, log: SwapLog, run: str) -> None:
    """Warn where nothing of a recipe is in a graph that was compiled by itself, as the backend of
    `torch.compile` is asked for; others of the same model may have what it lacks.
    """
    refusals = [one.refused for one in log.outcomes] + [one.refused for one in log.rewritten]
    used = bool(log.cuts) or None in refusals
    ahead: tuple[Phase, ...] = ("forward", "inference")
    lines = [*_absent_actions(recipe, log)]
    lines += [line for phase in ahead for line in _absent_kernels(recipe, log, phase)]
    if lines and not used:
        warnings.warn(f"{run}, in a graph compiled with it: {_text(lines)}", stacklevel=3)


def _text(lines: list[str]) -> str:
    """One line for people."""
    return f"not used: {'; '.join(lines)} ({STAY})"


def _absent_kernels(recipe: Recipe, log: SwapLog, phase: Phase) -> Iterator[str]:
    """Kernels of a pass without a site, each with the reason; nothing where a cache hid graphs."""
    if log.from_cache or phase not in log.phases:
        return
    lost = [
        kernel.plan
        for kernel in recipe.kernels
        if kernel.plan.phase == phase and not log.swapped(kernel.plan.id)
    ]
    if log.on_cpu and not log.on_gpu and lost:
        yield f"{counted(len(lost), 'kernel')}: {ON_CPU}"
        return
    for plan in lost:
        why = next(iter(log.refusals(plan.id)), log.absent.get(plan.id, NO_SITE))
        yield f"the kernel of {plan.title} ({plan.id}): {why}"


def _absent_actions(recipe: Recipe, log: SwapLog) -> Iterator[str]:
    """Changes of Dynamo's graphs that found nothing to change; these are made before any cache."""
    for kind in recipe.actions:
        if kind not in _ROUTES or not log.compiled:
            continue
        found = [r for r in log.rewritten if r.route is None or r.route in _ROUTES[kind]]
        if any(item.refused is None for item in found):
            continue
        why = next((item.refused for item in found), None) or "no graph has what it replaces"
        yield f"{facts_of(kind).title}: {why}"


def _absent_cuts(recipe: Recipe, log: SwapLog) -> Iterator[str]:
    """Kernels of the compiler that were to be cut and are not there, once all graphs are."""
    if log.from_cache:
        return
    for split in recipe.splits:
        if not any(cut.split == split for cut in log.cuts):
            yield f"the cut of {split.kernel}: no graph so far has its ops"
