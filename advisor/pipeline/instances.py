"""Twins of a workload with changes made to their model, inputs and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from advisor.apply.model.batch_norm import fold_batch_norms
from advisor.apply.model.channels_last import to_channels_last
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.apply.model.step_graph import prepare_optimizer
from advisor.apply.recipe import Recipe
from advisor.errors import IllegalFusionError
from advisor.model.actions import ActionKind
from collectors.live.workload import RESULTS_SEED, Workload, tensors


class Instances:
    """The workload as it came, and its twins by the changes made to them."""

    def __init__(self, workload: Workload, reload: Callable[[], Workload]) -> None:
        self._reload = reload
        self.base = workload
        self._made: dict[tuple[str, ...], Workload] = {(): workload}

    def of(self, recipe: Recipe) -> Workload:
        """The twin with the recipe's changes to the model; the workload itself if it has none.

        Raises `IllegalFusionError` if a change does not apply to it.
        """
        changes = recipe.on_model
        if recipe.whole_step_graph and self.base.optimizer is not None:
            changes = (*changes, "step_graph")
        if changes not in self._made:
            self._made[changes] = self._changed(changes)
        return self._made[changes]

    def fresh(self, recipe: Recipe | None = None) -> Workload:
        """A new twin in the state it is made in, with a recipe's changes if one is given."""
        return self._changed(recipe.on_model if recipe is not None else ())

    def _changed(self, changes: Sequence[ActionKind]) -> Workload:
        twin = self._reload()
        for kind in changes:
            twin, refused = CHANGES[kind](twin)
            if refused is not None:
                raise IllegalFusionError(refused)
        return twin

    def results_of(
        self, instance: Workload, part: Callable[..., Any]
    ) -> Callable[[], list[torch.Tensor]]:
        """What must agree between variants, of a compiled part of a twin in the base's state."""

        def results() -> list[torch.Tensor]:
            self._same_state(instance)
            return instance.results_of(lambda _: part)

        return results

    def replayed_results_of(
        self, instance: Workload, graph: Callable[[], Any]
    ) -> Callable[[], list[torch.Tensor]]:
        """The same of a step that is one CUDA graph, which trains too: its twin pays for it."""

        def results() -> list[torch.Tensor]:
            self._same_state(instance)
            with torch.random.fork_rng([instance.device]), instance.preserved():
                torch.manual_seed(RESULTS_SEED)
                found = [tensor.detach().clone() for tensor in tensors(graph())]
            return [*found, *_gradients(instance)]

        return results

    def _same_state(self, instance: Workload) -> None:
        """Give a training twin the parameters and buffers that the base has come to."""
        base = self.base
        if instance is base or base.kind != "training":
            return
        assert isinstance(base.part, nn.Module)
        assert isinstance(instance.part, nn.Module)
        theirs = base.part.state_dict()
        with torch.no_grad():
            for name, tensor in instance.part.state_dict().items():
                tensor.copy_(theirs[name])


def _gradients(instance: Workload) -> list[torch.Tensor]:
    groups = instance.optimizer.param_groups if instance.optimizer is not None else []
    parameters = [parameter for group in groups for parameter in group["params"]]
    return [p.grad.detach().clone() for p in parameters if p.grad is not None]


Changed = tuple[Workload, str | None]


def _fold_batch_norm(twin: Workload) -> Changed:
    module = twin.part
    if not isinstance(module, nn.Module):
        return twin, "the step is no module"
    _, refused = fold_batch_norms(module, twin.step_of())
    return twin, refused


def _channels_last(twin: Workload) -> Changed:
    module = twin.part
    if not isinstance(module, nn.Module):
        return twin, "the step is no module"
    inputs, refused = to_channels_last(module, twin.inputs)
    return replace(twin, inputs=inputs), refused


def _fused_optimizer(twin: Workload) -> Changed:
    if twin.optimizer is None:
        return twin, "the step has no optimizer of its own"
    return twin, fuse_optimizer(twin.optimizer)


def _step_graph(twin: Workload) -> Changed:
    return twin, None if twin.optimizer is None else prepare_optimizer(twin.optimizer)


CHANGES: dict[ActionKind, Callable[[Workload], Changed]] = {
    "fold_batch_norm": _fold_batch_norm,
    "channels_last": _channels_last,
    "fused_optimizer": _fused_optimizer,
    "step_graph": _step_graph,
}
