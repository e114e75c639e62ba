"""`advisor.optimize`: profile, apply and use in one call, for a model that is in memory already."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from advisor.apply.recipe import UNCHANGED
from advisor.errors import UsageError
from advisor.pipeline.api import AppliedRun, Loss, OptimizedModule, OptimizedStep, load
from advisor.pipeline.apply import apply_run
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.peers import peers_of_group
from advisor.pipeline.profile import profile
from advisor.pipeline.ranks import rank_directory
from advisor.store import RunDirectory


@overload
def optimize(
    model: nn.Module, inputs: Any, *, run: str | Path, budget_s: float | None = None
) -> OptimizedModule: ...
@overload
def optimize(
    model: nn.Module,
    inputs: torch.optim.Optimizer,
    loss: Loss,
    *,
    run: str | Path,
    budget_s: float | None = None,
) -> OptimizedStep: ...
def optimize(
    model: nn.Module,
    inputs: Any,
    loss: Loss | None = None,
    *,
    run: str | Path,
    budget_s: float | None = None,
) -> OptimizedModule | OptimizedStep:
    """Find out what makes a step faster, and do it.

    `optimize(model, inputs, run=...)` for inference, with a tensor, a tuple or a dict of keyword
    arguments; `optimize(model, optimizer, loss, run=...)` for training, where `loss(model)` is a
    scalar. Profiles and applies copies of the model within `budget_s` seconds, keeps the record in
    the new run directory `run`, and returns what `advisor.load(run).apply(...)` does; where nothing
    paid, that is the model under plain `torch.compile`. In a process group all ranks call it alike
    and come to one verdict, each with a run of its own, `run/rankK`. Raises `UsageError` without a
    GPU: nothing can be measured there.
    """
    if not torch.cuda.is_available():
        raise UsageError(
            "optimize needs a GPU",
            why="it keeps what measured faster",
            remedy="fusion-advisor profile and apply say what they can without one",
        )
    made = (model, inputs) if loss is None else (model, inputs, loss)
    rank, peers = peers_of_group(Path(run).name)
    place = Path(run) if rank is None else rank_directory(Path(run), rank)
    directory = RunDirectory.create_at(place)
    with _target(made) as target:
        profile(ProfileOptions(target=target), directory, lambda *_: None)
        applied = apply_run(directory, (), lambda *_, **__: None, budget_s, peers=peers)
    kept = load(directory.path) if applied.set.verdict == "kept" else AppliedRun(UNCHANGED)
    return kept.apply(model) if loss is None else kept.apply(model, inputs, loss)


@contextmanager
def _target(made: tuple[Any, ...]) -> Iterator[str]:
    """A target that gives copies of objects in memory, for as long as the block runs."""
    module, name = sys.modules[__name__], f"given_{id(made)}"
    # Model and optimizer together: the copy of one holds the parameters of the other.
    setattr(module, name, lambda: copy.deepcopy(made))
    try:
        yield f"{__name__}:{name}"
    finally:
        delattr(module, name)
