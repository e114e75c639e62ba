"""What a run kept, put into a model from Python.

    import advisor
    model = advisor.load("runs/llama").apply(model)

A kept run is data: plans are checked again and their kernels regenerated, nothing of the run
directory is executed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from advisor.apply.model.batch_norm import fold_batch_norms
from advisor.apply.model.channels_last import images_channels_last, to_channels_last
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.apply.model.step_graph import ModuleGraph, StepGraph, prepare_optimizer
from advisor.apply.recipe import Recipe
from advisor.errors import IllegalFusionError, UsageError
from advisor.pipeline.backend import SwapLog, plan_backend, rewrites_of
from advisor.pipeline.kept import kept_recipe
from advisor.store import RunDirectory

Loss = Callable[[Any], torch.Tensor]


def load(run: str | Path) -> AppliedRun:
    """What `fusion-advisor apply` kept in a run.

    Raises `UsageError` if nothing is kept in it, `InvalidRecordError` for a damaged record.
    """
    return AppliedRun(kept_recipe(RunDirectory.at(Path(run))))


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

        If the run kept `step_graph`, a training step replays what the second call did on the
        tensors it used then: `loss` must read its data from tensors that stay where they are, into
        which the next batch is copied. That second call warms up with a few steps of its own.
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
            if kind == "fold_batch_norm":
                _insist(fold_batch_norms(self.model, lambda: self.model(*args, **kwargs))[1])
            elif kind == "channels_last":
                to_channels_last(self.model, ())
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
        self.recipe, self.model, self.optimizer, self.loss = recipe, model, optimizer, loss
        self.log = SwapLog()
        if "channels_last" in recipe.actions:
            to_channels_last(model, ())
        if "fused_optimizer" in recipe.actions:
            _insist(fuse_optimizer(optimizer))
        self._part: Callable[..., Any] = _compiled(recipe, model, self.log)
        self._run: Callable[[], Any] = self._step
        self._calls = 0

    def __call__(self) -> torch.Tensor:
        """Do one step; the loss lives until the next one."""
        if self._calls == 1 and self.recipe.whole_step_graph:
            _insist(prepare_optimizer(self.optimizer))
            self._run = StepGraph(self._step)
        self._calls += 1
        result: torch.Tensor = self._run()
        return result

    def revert(self) -> nn.Module:
        """The model, trained by eager again; the optimizer keeps its state."""
        self._part, self._run, self.recipe = self.model, self._step, Recipe()
        return self.model

    def _step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self._part)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _compiled(recipe: Recipe, model: nn.Module, log: SwapLog) -> Callable[..., Any]:
    rewrites = rewrites_of(recipe.actions)
    backend = plan_backend(recipe.kernels, log, rewrites=rewrites, **recipe.settings)
    compiled: Callable[..., Any] = torch.compile(model, backend=backend)
    return compiled


def _insist(refused: str | None) -> None:
    if refused is not None:
        raise IllegalFusionError(
            f"the model is not the one that the run was made of: {refused}",
            remedy="profile and apply it as it is now",
        )
