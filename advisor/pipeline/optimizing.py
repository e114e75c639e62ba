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
from torch._dynamo import config as dynamo_config

from advisor.apply.recipe import UNCHANGED
from advisor.errors import UsageError
from advisor.pipeline.api import AppliedRun, Loss, OptimizedModule, OptimizedStep, load
from advisor.pipeline.apply import apply_run
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.peers import peers_of_group
from advisor.pipeline.profile import profile
from advisor.pipeline.ranks import Rank, rank_directory
from advisor.store import DEFAULT_ROOT, RunDirectory, RunStore


@overload
def optimize(
    model: nn.Module, inputs: Any, *, run: str | Path | None = None, budget_s: float | None = None
) -> OptimizedModule: ...
@overload
def optimize(
    model: nn.Module,
    inputs: torch.optim.Optimizer,
    loss: Loss,
    *,
    run: str | Path | None = None,
    budget_s: float | None = None,
) -> OptimizedStep: ...
def optimize(
    model: nn.Module,
    inputs: Any = None,
    loss: Loss | None = None,
    *,
    run: str | Path | None = None,
    budget_s: float | None = None,
) -> OptimizedModule | OptimizedStep:
    """Find out what makes a step faster, and do it.

    `optimize(model, inputs)` for inference, with a tensor, a tuple or a dict of keyword arguments;
    `optimize(model, optimizer, loss)` for training, where `loss(model)` is a scalar. Profiles and
    applies copies of the model within `budget_s` seconds, keeps the record in the new run directory
    `run` (else one in `runs`, named after the time and the model), and returns what
    `advisor.load(run).apply(...)` does; where nothing paid, that is the model under plain
    `torch.compile`. In a process group all ranks call it alike, with the same `run`, and come to
    one verdict, each with a run of its own, `run/rankK`. Raises `UsageError` for a step without its
    model, and without a GPU: nothing can be measured there.
    """
    if not isinstance(model, nn.Module) or inputs is None:
        raise UsageError(
            "optimize needs a model with its inputs, or with its optimizer and loss(model)",
            why="trials run on copies, and a step by itself cannot be copied",
            remedy="fusion-advisor profile FILE.py:FACTORY and apply take a factory of any step",
        )
    if not torch.cuda.is_available():
        raise UsageError(
            "optimize needs a GPU",
            why="it keeps what measured faster",
            remedy="fusion-advisor profile and apply say what they can without one",
        )
    made = (model, inputs) if loss is None else (model, inputs, loss)
    rank, peers = peers_of_group(Path(run or "run").name)
    directory = _directory(model, run, rank)
    with _target(made) as target, _compiler_left_alone():
        profile(ProfileOptions(target=target), directory, lambda *_: None)
        applied = apply_run(directory, (), lambda *_, **__: None, budget_s, peers=peers)
    kept = load(directory.path) if applied.set.verdict == "kept" else AppliedRun(UNCHANGED)
    return kept.apply(model) if loss is None else kept.apply(model, inputs, loss)


def _directory(model: nn.Module, run: str | Path | None, rank: Rank | None) -> RunDirectory:
    """The new run: where it was asked for, else in the folder of runs."""
    path = Path(run) if run is not None else None
    if rank is not None:
        path = rank_directory(path, rank)
    if path is None:
        return RunStore(DEFAULT_ROOT).create(type(model).__name__)
    return RunDirectory.create_at(path)


@contextmanager
def _compiler_left_alone() -> Iterator[None]:
    """Leave nothing of trials with the compiler: neither graphs of copies, nor sizes and strides
    that theirs had and the model has not, nor their limit of compilations.
    """
    with dynamo_config.patch(recompile_limit=dynamo_config.recompile_limit):
        try:
            yield
        finally:
            torch.compiler.reset()


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
