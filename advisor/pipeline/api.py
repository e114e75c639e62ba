"""What a run kept, put into a model from Python.

    import advisor
    model = advisor.load("runs/llama").apply(model)

A kept run is data: plans are checked again and their kernels regenerated, nothing of the run
directory is executed.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    on_host,
    partly_on_host,
    prepare_optimizer,
)
from advisor.apply.recipe import Recipe
from advisor.errors import IllegalFusionError, UsageError
from advisor.model.actions import ActionKind
from advisor.pipeline.backend import SwapLog, recipe_backend
from advisor.pipeline.kept import kept_at
from advisor.pipeline.misfits import Misfits
from collectors.live.closures import one_step
from collectors.live.loss_calls import LossOfParts, WithLoss, loss_of, wrapper_in
from collectors.live.workload import Part, tensors

MOVING_DATA = (
    "the step is not captured as one CUDA graph: its model is given other tensors at every call; "
    "copy each batch into the same ones"
)
MOVING_BATCH = (
    "the step is not captured as one CUDA graph: its loss reads other tensors at every step; "
    "copy each batch into the same ones"
)
UNSEEN_DATA = (
    "the step is not captured as one CUDA graph: its loss calls parts of the model and not the "
    "model, so whether they are given the same tensors at every step cannot be seen"
)
NOT_WHOLE = "the step is not captured as one CUDA graph: {}"
NO_KERNEL = (
    "the optimizer's steps in one launch are left out: its parameters are on the CPU, where no "
    "kernel is launched"
)
NO_LOSS = (
    "the loss in pieces that this run kept is left out: it is compiled together with the model, "
    "which apply(model, optimizer, loss) does, not apply(model)"
)
WRAPPED = (
    "{} works between its graphs, so that it is not compiled together with its loss, as that of "
    "the run was"
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

        Kernels and rewrites that fit nowhere in the model are left out, with a warning after the
        first step that names each and why; what the compiler loads from its caches is not looked
        at. Changes that the model itself does not allow raise `IllegalFusionError`.

        If the run kept `step_graph`, a training step after the first few replays what was done on
        the tensors used then: `loss` must read its data from tensors that stay where they are, into
        which the next batch is copied. A model that is given other tensors at every call is not
        captured, with a warning; a step whose optimizer has other settings than the captured one,
        but for its rate, runs uncaptured.

        If the run compiled the loss together with the model, so does the step: what `loss` computes
        runs in the compiled function, where Python's side effects are kept and random numbers are
        the compiler's. A model alone is then applied without the loss in pieces, with a warning;
        one wrapped for several ranks raises `IllegalFusionError`.
        """
        if (optimizer is None) != (loss is None):
            raise UsageError("a training step needs an optimizer and a loss, both or neither")
        if optimizer is None or loss is None:
            if self.recipe.with_loss:
                warnings.warn(NO_LOSS, stacklevel=2)
            return OptimizedModule(self.recipe, model)
        return OptimizedStep(self.recipe, model, optimizer, loss)


class OptimizedModule:
    """A model compiled after a recipe; changes that need inputs are made at the first call."""

    def __init__(self, recipe: Recipe, model: nn.Module) -> None:
        self.recipe, self.model = recipe, model
        self.log = SwapLog()
        # That a loss in pieces is left out has been said.
        alone = recipe.without(("chunked_loss",)) if recipe.with_loss else recipe
        self._misfits = Misfits(alone, self.log)
        self._compiled: Callable[..., Any] | None = None
        self._changed: set[ActionKind] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments."""
        if "channels_last" in self.recipe.actions:
            args, kwargs = images_channels_last((args, kwargs))
        if self._compiled is None:
            self._compiled = self._prepare(args, kwargs)
        result = self._compiled(*args, **kwargs)
        self._misfits.tell(stacklevel=2)
        return result

    def revert(self) -> nn.Module:
        """The model, run by eager again."""
        self._compiled = self.model
        self.recipe = Recipe()
        self._misfits = Misfits(self.recipe, self.log)
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
        if why := on_host(self.model, tensors((args, kwargs))):
            warnings.warn(NOT_WHOLE.format(why), stacklevel=3)
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
        self._misfits = Misfits(recipe, self.log)
        self._given = Given()
        # First: what is refused changes nothing.
        self._part: Part = self._compiled()
        if "channels_last" in recipe.actions:
            to_channels_last(model, (), optimizer)
        if "fused_optimizer" in recipe.actions:
            _insist(fuse_optimizer(optimizer))
        if "multi_tensor" in recipe.actions and _launches(optimizer):
            _insist(use_multi_tensor(optimizer))
        elif "multi_tensor" in recipe.actions:
            warnings.warn(NO_KERNEL, stacklevel=3)
        self._is_whole = recipe.whole_step_graph
        self._graph: StepGraph | None = None
        self._captured_with: list[Any] = []
        self._calls = 0

    def __call__(self) -> torch.Tensor:
        """Do one step; the loss lives until the next one."""
        result = self._do()
        self._misfits.tell(stacklevel=2)
        return result

    def _do(self) -> torch.Tensor:
        if not self._is_whole:
            return self._step()
        self._calls += 1
        if self._calls == 1 and (why := on_host(self.model, ())):
            warnings.warn(NOT_WHOLE.format(why), stacklevel=3)
            self._is_whole = False
            return self._step()
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
        if self._calls <= WARMUP:
            return self._warmed()
        why = self._moving()
        if why is not None:
            warnings.warn(why, stacklevel=4)
            return self._step()
        self._captured_with = _settings(self.optimizer)
        self._graph = StepGraph(self._step, warmup=0)
        replayed: torch.Tensor = self._graph()
        return replayed

    def _warmed(self) -> torch.Tensor:
        """One step before the capture, what it is given looked at."""
        part = self._part
        if not (isinstance(part, WithLoss) or self.loss.goes_through(self.model)):
            self._part = self._given.watching(part)
        try:
            with self._given.looking():
                result: torch.Tensor = beside(self._step)
        finally:
            self._part = part
        return result

    def _moving(self) -> str | None:
        """Why nothing shows that a graph would read the next batch; None where something does."""
        if why := partly_on_host(self.model, self._given.all()):
            return NOT_WHOLE.format(why)
        if isinstance(self._part, WithLoss):
            return MOVING_BATCH if self._given.differ else None
        if self.loss.goes_through(self.model):
            return UNSEEN_DATA
        return MOVING_DATA if self._given.differ else None

    def _compiled(self) -> Part:
        """The model after the recipe, or the model with its loss.

        Of the latter no call of the model can be watched, but what its graphs are given.
        """
        if not self.recipe.with_loss:
            return _compiled(self.recipe, self.model, self.log)
        wrapper = wrapper_in(self.model)
        _insist(None if wrapper is None else WRAPPED.format(wrapper))
        backend = recipe_backend(self.recipe, self.log)
        return WithLoss(self.model, self._given.watching_graphs(backend))

    def revert(self) -> nn.Module:
        """The model, trained by eager again; the optimizer keeps its state."""
        self._part, self._graph, self.recipe = self.model, None, Recipe()
        self._misfits = Misfits(self.recipe, self.log)
        own_step(self.optimizer)
        return self.model

    def _step(self) -> torch.Tensor:
        return one_step(self.optimizer, self._gradients).detach()

    def _gradients(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.loss, self._part)
        loss.backward()
        return loss


class Given:
    """The tensors that a model was given, held so that no later one takes their place in memory.

    Those of a model that is compiled with its loss are what its graphs are given.
    """

    def __init__(self) -> None:
        self.differ = False
        self._held: list[tuple[Callable[..., Any], list[torch.Tensor]]] = []
        self._numbers: Iterator[int] | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A step within which calls are looked at."""
        self._numbers = itertools.count()
        try:
            yield
        finally:
            self._numbers = None

    def all(self) -> list[torch.Tensor]:
        """Every tensor that was given in the first step that was looked at."""
        return [tensor for _, given in self._held for tensor in given]

    def watching(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """The part, each of its calls told from those at the same place in earlier steps."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._numbers is not None:
                self._look(next(self._numbers), part, tensors((args, kwargs)))
            return part(*args, **kwargs)

        return watched

    def watching_graphs(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        """The backend, what it compiles watched: another graph is for something that changed."""
        return lambda *args, **options: self.watching(backend(*args, **options))

    def _look(self, number: int, part: Callable[..., Any], given: list[torch.Tensor]) -> None:
        if number == len(self._held):
            self._held.append((part, given))
        known, before = self._held[number]
        alike = known is part and len(given) == len(before)
        self.differ |= not (alike and all(map(_stays, before, given)))


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


def _launches(optimizer: torch.optim.Optimizer) -> bool:
    """Whether kernels can be launched where the parameters are: on a GPU, or interpreted."""
    on_cpu = all(p.device.type == "cpu" for g in optimizer.param_groups for p in g["params"])
    return not on_cpu or os.environ.get("TRITON_INTERPRET") == "1"


def _insist(refused: str | None) -> None:
    if refused is not None:
        raise IllegalFusionError(
            f"the model is not the one that the run was made of: {refused}",
            remedy="profile and apply it as it is now",
        )
