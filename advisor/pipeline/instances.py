"""Twins of a workload with changes made to their model, inputs and optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from advisor.apply.model.batch_norm import fold_batch_norms
from advisor.apply.model.channels_last import to_channels_last
from advisor.apply.model.multi_tensor import use_multi_tensor
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.apply.model.step_graph import prepare_optimizer
from advisor.apply.model.update_check import update_disagreement
from advisor.apply.recipe import Recipe
from advisor.errors import AdvisorError, IllegalFusionError
from advisor.model.actions import ActionKind, facts_of
from advisor.pipeline.references import widened
from collectors.live.failures import failure
from collectors.live.loss_calls import LossOfParts
from collectors.live.random_numbers import seeded
from collectors.live.workload import (
    RESULTS_SEED,
    Part,
    Workload,
    copies_of,
    gradients_of,
    is_writable,
    tensors,
)


class Instances:
    """The workload as it came, and its twins by the changes made to them."""

    def __init__(self, workload: Workload, reload: Callable[[], Workload]) -> None:
        self._reload = reload
        self.base = workload
        self._made: dict[tuple[str, ...], Workload] = {(): workload}

    def of(self, recipe: Recipe) -> Workload:
        """The twin with the recipe's changes to the model; the workload itself if it has none.

        Raises `IllegalFusionError` if a change does not apply to it, `WorkloadError` if it fails.
        """
        changes = recipe.on_model
        if recipe.whole_step_graph and self.base.optimizer is not None:
            changes = (*changes, "step_graph")
        if changes not in self._made:
            self._made[changes] = self._changed(changes)
        return self._made[changes]

    def held_beside(self, recipe: Recipe | None = None) -> int:
        """Bytes on the device that twins other than that of a recipe hold; without one, all twins.

        Parameters, gradients, buffers, inputs and optimizer state; what a loss holds is not seen.
        """
        own = self.of(recipe) if recipe is not None else None
        mine = _storages(own) if own is not None else {}
        found: dict[int, int] = {}
        for twin in self._made.values():
            found |= _storages(twin)
        return sum(size for place, size in found.items() if place not in mine)

    def fresh(self, recipe: Recipe | None = None) -> Workload:
        """A new twin in the state it is made in, with a recipe's changes if one is given."""
        return self._changed(recipe.on_model if recipe is not None else ())

    def again(self, begun: bool) -> list[torch.Tensor]:
        """What must agree, of a new twin in the state it is made in if `begun`, else the base's."""
        return self._new(begun).results_of()

    def exactly(self, begun: bool) -> tuple[list[torch.Tensor], torch.dtype] | None:
        """The same of a twin that computes in a wider type, and which; None where it is no module.

        It is widened after it has the base's state.
        """
        twin = self._new(begun)
        kind = widened(twin)
        return None if kind is None else (twin.results_of(), kind)

    def _new(self, begun: bool) -> Workload:
        twin = self.fresh()
        if not begun:
            self._same_state(twin)
        return twin

    def _changed(self, changes: Sequence[ActionKind]) -> Workload:
        twin = self._reload()
        for kind in changes:
            try:
                twin, refused = CHANGES[kind](twin)
            except AdvisorError:
                raise
            except Exception as error:  # a model of whatever kind
                raise failure(
                    f"{facts_of(kind).title}: it cannot be done", error, where=twin.target
                ) from error
            if refused is not None:
                raise IllegalFusionError(refused)
        # Asking takes a batch from an iterator: all copies must go on from the same one.
        if isinstance(twin.loss, LossOfParts) and isinstance(twin.part, nn.Module):
            twin.loss.goes_through(twin.part)
        return twin

    def results_of(self, instance: Workload, part: Part) -> Callable[[], list[torch.Tensor]]:
        """What must agree between variants, of a compiled part of a twin in the base's state."""

        def results() -> list[torch.Tensor]:
            self._same_state(instance)
            return instance.results_of(lambda _: part)

        return results

    def replayed_results_of(
        self, instance: Workload, graph: Callable[[], Any]
    ) -> Callable[[], list[torch.Tensor]]:
        """The same of a step that was just captured as one CUDA graph, which trains too: its twin
        pays for it.

        The gradients are those that the capture left: a later graph of the same twin leaves others,
        which no replay of this one writes.
        """
        written = [] if instance.optimizer is None else gradients_of(instance.optimizer)

        def results() -> list[torch.Tensor]:
            self._same_state(instance)
            with seeded(instance.device, RESULTS_SEED), instance.preserved():
                found = [tensor.detach().clone() for tensor in tensors(graph())]
            return found + copies_of(written)

        return results

    def _same_state(self, instance: Workload) -> None:
        """Give a twin the parameters, buffers and inputs that the base has come to.

        Parameters are those of a training step: others may be folded.
        """
        base, ours, theirs = self.base, instance.part, self.base.part
        if instance is base or not (isinstance(ours, nn.Module) and isinstance(theirs, nn.Module)):
            return
        held = {name: (t, dict(theirs.named_buffers())) for name, t in ours.named_buffers()}
        if base.kind == "training":
            held |= {n: (t, dict(theirs.named_parameters())) for n, t in ours.named_parameters()}
        pairs = [
            (tensor, source[name]) for name, (tensor, source) in held.items() if name in source
        ]
        pairs += zip(tensors(instance.inputs), tensors(base.inputs), strict=True)
        with torch.no_grad():
            for tensor, value in pairs:
                if is_writable(tensor) and tensor.shape == value.shape:
                    tensor.copy_(value)


def _storages(workload: Workload) -> dict[int, int]:
    """Bytes by address of what a workload holds on its device; not of sparse or wrapped tensors."""
    part, optimizer = workload.part, workload.optimizer
    held = tensors(workload.inputs)
    if isinstance(part, nn.Module):
        held += [*part.parameters(), *part.buffers()]
    if optimizer is not None:
        held += [p for group in optimizer.param_groups for p in group["params"]]
        held += tensors([dict(state) for state in optimizer.state.values()])
    held += [tensor.grad for tensor in held if tensor.is_leaf and tensor.grad is not None]
    found = {}
    for tensor in held:
        if tensor.device.type == workload.device.type:
            with contextlib.suppress(RuntimeError, ValueError):  # it has no memory of its own
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return found


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
    inputs, refused = to_channels_last(module, twin.inputs, twin.optimizer)
    return replace(twin, inputs=inputs), refused


def _fused_optimizer(twin: Workload) -> Changed:
    if twin.optimizer is None:
        return twin, "the step has no optimizer of its own"
    return twin, fuse_optimizer(twin.optimizer)


def _multi_tensor(twin: Workload) -> Changed:
    optimizer = twin.optimizer
    if optimizer is None:
        return twin, "the step has no optimizer of its own"
    refused = use_multi_tensor(optimizer)
    if refused is None and twin.device.type == "cuda":
        refused = update_disagreement(optimizer)
    return twin, refused


def _step_graph(twin: Workload) -> Changed:
    return twin, None if twin.optimizer is None else prepare_optimizer(twin.optimizer)


CHANGES: dict[ActionKind, Callable[[Workload], Changed]] = {
    "fold_batch_norm": _fold_batch_norm,
    "channels_last": _channels_last,
    "fused_optimizer": _fused_optimizer,
    "multi_tensor": _multi_tensor,
    "step_graph": _step_graph,
}
