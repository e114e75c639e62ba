"""What a run kept, put into a model from Python.

    import advisor
    model = advisor.load("runs/llama").apply(model)

A kept run is data: plans are checked again and their kernels regenerated, nothing of the run
directory is executed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from advisor.apply.model.batch_norm import fold_batch_norms
from advisor.apply.model.channels_last import images_channels_last, to_channels_last
from advisor.apply.model.multi_tensor import own_step, use_multi_tensor
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.apply.model.step_graph import (
    WARMUP,
    ModuleGraph,
    StepGraph,
    beside,
    prepare_optimizer,
)
from advisor.apply.recipe import Recipe
from advisor.errors import IllegalFusionError, UsageError
from advisor.model.actions import ActionKind
from advisor.pipeline.backend import SwapLog, recipe_backend
from advisor.pipeline.kept import kept_at
from collectors.live.closures import one_step
from collectors.live.loss_calls import LossOfParts
from collectors.live.workload import tensors

MOVING_DATA = (
    "the step is not captured as one CUDA graph: its model is given other tensors at every call; "
    "copy each batch into the same ones"
)
UNSEEN_DATA = (
    "the step is not captured as one CUDA graph: its loss calls parts of the model and not the "
    "model, so whether they are given the same tensors at every step cannot be seen"
)
Loss = Callable[[Any], torch.Tensor]


def load(run: str | Path) -> AppliedRun:
    """What `fusion-advisor apply` kept in a run, or `patch` wrote of it.

    Of several ranks, each loads the run of its own, and all the same patch. Raises `UsageError` if
    nothing is kept in it, `InvalidRecordError` for a damaged record.
    """
    return AppliedRun(kept_at(Path(run)))


class AppliedRun:
    """The actions and kernels that a run kept; `recipe` lists them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @overload
    def apply(self, model: nn.Module) -> OptimizedModule: ...
    @overload
    def apply(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss
    ) -> OptimizedStep: ...
    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Loss | None = None,
    ) -> OptimizedModule | OptimizedStep:
        """The model made to run as the run found best.

        With a model alone: a callable that takes what the model takes. With an optimizer and
        `loss(model)`: a callable without arguments that does one training step and returns the
        loss. Weights, batch norms and the optimizer are changed in place; `revert()` of the result
        runs the model by eager again, but leaves folded weights folded.

        If the run kept `step_graph`, a training step after the first few replays what was done on
        the tensors used then: `loss` must read its data from tensors that stay where they are, into
        which the next batch is copied. A model that is given other tensors at every call is not
        captured, with a warning; a step whose optimizer has other settings than the captured one,
        but for its rate, runs uncaptured.
        """
        if (optimizer is None) != (loss is None):
            raise UsageError("a training step needs an optimizer and a loss, both or neither")
        if optimizer is None or loss is None:
            return OptimizedModule(self.recipe, model)
        return OptimizedStep(self.recipe, model, optimizer, loss)


class OptimizedModule:
    """A model compiled after a recipe; changes that need inputs are made at the first call."""

    def __init__(self, recipe: Recipe, model: nn.Module) -> None:
        self.recipe, self.model = recipe, model
        self.log = SwapLog()
        self._compiled: Callable[..., Any] | None = None
        self._changed: set[ActionKind] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments."""
        if "channels_last" in self.recipe.actions:
            args, kwargs = images_channels_last((args, kwargs))
        if self._compiled is None:
            self._compiled = self._prepare(args, kwargs)
        return self._compiled(*args, **kwargs)

    def revert(self) -> nn.Module:
        """The model, run by eager again."""
        self._compiled = self.model
        self.recipe = Recipe()
        return self.model

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        for kind in self.recipe.on_model:
            if kind in self._changed:  # by a call that failed after it
                continue
            if kind == "fold_batch_norm":
                _insist(fold_batch_norms(self.model, lambda: self.model(*args, **kwargs))[1])
            elif kind == "channels_last":
                to_channels_last(self.model, ())
            self._changed.add(kind)
        compiled = _compiled(self.recipe, self.model, self.log)
        if not self.recipe.whole_step_graph or torch.is_grad_enabled():
            return compiled
        with torch.no_grad():
            compiled(*args, **kwargs)
            return ModuleGraph(compiled, args, kwargs)


class OptimizedStep:
    """One training step after a recipe: gradients zeroed, loss, backward, optimizer."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss
    ) -> None:
        self.recipe, self.model, self.optimizer = recipe, model, optimizer
        self.loss = LossOfParts(loss)
        self.log = SwapLog()
        if "channels_last" in recipe.actions:
            to_channels_last(model, (), optimizer)
        if "fused_optimizer" in recipe.actions:
            _insist(fuse_optimizer(optimizer))
        if "multi_tensor" in recipe.actions:
            _insist(use_multi_tensor(optimizer))
        self._part: Callable[..., Any] = _compiled(recipe, model, self.log)
        self._graph: StepGraph | None = None
        self._captured_with: list[Any] = []
        self._given = Given()
        self._calls = 0

    def __call__(self) -> torch.Tensor:
        """Do one step; the loss lives until the next one."""
        if not self.recipe.whole_step_graph:
            return self._step()
        self._calls += 1
        if self._calls <= WARMUP + 1:
            return self._towards_graph()
        if self._graph is None or _settings(self.optimizer) != self._captured_with:
            return self._step()
        result: torch.Tensor = self._graph()
        return result

    def _towards_graph(self) -> torch.Tensor:
        """One of the steps that warm up what capture needs, or the first that is captured."""
        if self._calls == 2:
            _insist(prepare_optimizer(self.optimizer))
        if self._calls <= WARMUP and self.loss.goes_through(self.model):
            warmed: torch.Tensor = beside(self._step)
            return warmed
        if self._calls <= WARMUP:
            part, self._part = self._part, self._given.watching(self._part)
            try:
                result: torch.Tensor = beside(self._step)
            finally:
                self._part = part
            return result
        unseen = self.loss.goes_through(self.model)
        if unseen or self._given.differ:
            warnings.warn(UNSEEN_DATA if unseen else MOVING_DATA, stacklevel=3)
            return self._step()
        self._captured_with = _settings(self.optimizer)
        self._graph = StepGraph(self._step, warmup=0)
        replayed: torch.Tensor = self._graph()
        return replayed

    def revert(self) -> nn.Module:
        """The model, trained by eager again; the optimizer keeps its state."""
        self._part, self._graph, self.recipe = self.model, None, Recipe()
        own_step(self.optimizer)
        return self.model

    def _step(self) -> torch.Tensor:
        return one_step(self.optimizer, self._gradients).detach()

    def _gradients(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self._part)
        loss.backward()
        return loss


class Given:
    """The tensors that a model was given, held so that no later one takes their place in memory."""

    def __init__(self) -> None:
        self.differ = False
        self._held: list[list[torch.Tensor]] = []

    def watching(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """The part, each of its calls told from those at the same place in earlier steps."""
        number = iter(range(1 << 30))

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._look(next(number), tensors((args, kwargs)))
            return part(*args, **kwargs)

        return watched

    def _look(self, number: int, given: list[torch.Tensor]) -> None:
        if number == len(self._held):
            self._held.append(given)
        before = self._held[number]
        self.differ |= len(given) != len(before) or not all(map(_stays, before, given))


def _stays(before: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether it is the same memory, or the same values computed anew."""
    if not given.layout == before.layout == torch.strided:
        return given is before
    same = given.data_ptr() == before.data_ptr()
    return same or (given.shape == before.shape and torch.equal(given, before))


def _settings(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What a graph keeps of an optimizer as it was when captured: all that is no tensor."""
    return [
        (name, value)
        for group in optimizer.param_groups
        for name, value in group.items()
        if name != "params" and not isinstance(value, torch.Tensor)
    ]


def _compiled(recipe: Recipe, model: nn.Module, log: SwapLog) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(model, backend=recipe_backend(recipe, log))
    return compiled


def _insist(refused: str | None) -> None:
    if refused is not None:
        raise IllegalFusionError(
            f"the model is not the one that the run was made of: {refused}",
            remedy="profile and apply it as it is now",
        )
