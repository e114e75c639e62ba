"""What one variant of a step leaves with the compiler must not shape another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.testing._internal.two_tensor import TwoTensor

import advisor
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.model.actions import ActionKind
from advisor.pipeline.backend import SwapLog, recipe_backend
from advisor.pipeline.instances import Instances
from advisor.pipeline.measure import Bench
from collectors.live.workload import Workload


class Block(nn.Module):
    """A convolution, its norm and an activation, of images."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(images)))


def workload() -> Workload:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 4, 8, 8),)
    return Workload("t", "inference", torch.device("cpu"), Block().eval(), inputs=inputs)


def after(*actions: ActionKind) -> Recipe:
    recipe = UNCHANGED
    for kind in actions:
        recipe = recipe.with_action(kind)
    return recipe


@pytest.fixture
def symbols(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many sizes and strides of each variant's graphs are unknown to the compiler, by name."""
    found: dict[str, int] = {}

    def looking(recipe: Recipe, log: SwapLog) -> Callable[..., Any]:
        backend = recipe_backend(recipe, log)

        def compiled(gm: fx.GraphModule, given: Sequence[Any], **options: Any) -> Any:
            count = sum(isinstance(value, torch.SymInt) for value in given)
            found[recipe.name()] = found.get(recipe.name(), 0) + count
            return backend(gm, given, **options)

        return compiled

    monkeypatch.setattr("advisor.pipeline.measure.recipe_backend", looking)
    return found


def test_another_memory_format_is_compiled_as_by_itself(symbols: dict[str, int]) -> None:
    """Strides that differ from an earlier variant's are no reason for unknown ones, nor later."""
    bench = Bench(workload(), workload)
    for actions in (("channels_last",), ("fold_batch_norm",), ("fold_batch_norm", "channels_last")):
        bench.build(after(*actions))
    assert symbols == {
        "channels_last": 0,
        "fold_batch_norm": 0,
        "fold_batch_norm+channels_last": 0,
    }


def training() -> Workload:
    torch.manual_seed(0)
    model, images = Block(), torch.randn(2, 4, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Workload(
        "t", "training", torch.device("cpu"), model, optimizer=optimizer,
        loss=lambda part: part(images).square().mean(),
    )  # fmt: skip


def test_peak_memory_is_not_that_of_the_copies_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each twin holds parameters, their gradients and momenta, and buffers of the model again."""
    bench = Bench(training(), training)
    others = [bench.build(after(kind)) for kind in ("channels_last", "fused_optimizer")]
    model = Block()
    parameters = sum(p.nbytes for p in model.parameters())
    twin = 3 * parameters + sum(b.nbytes for b in model.buffers())
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1_000_000)
    for variant in (bench.compiled, *others):
        run = replace(variant, step=lambda: None)
        assert bench.peak_memory(run) == 1_000_000 - 2 * twin


def test_optimize_leaves_the_compiler_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it keeps is compiled behind all trials, in the same process."""
    limit = torch._dynamo.config.recompile_limit

    def applied(*_: Any, **__: Any) -> Any:
        Bench(workload(), workload).build(after("channels_last"))
        return SimpleNamespace(set=SimpleNamespace(verdict="reverted"))

    asked = iter([True])  # by optimize alone: all else runs where it is
    monkeypatch.setattr(torch.cuda, "is_available", lambda: next(asked, False))
    monkeypatch.setattr("advisor.pipeline.optimizing.profile", lambda *_: None)
    monkeypatch.setattr("advisor.pipeline.optimizing.apply_run", applied)
    made = workload()
    assert isinstance(made.part, nn.Module)
    advisor.optimize(made.part, made.inputs, run=tmp_path / "run")
    monkeypatch.undo()
    assert torch._dynamo.config.recompile_limit == limit
    given: list[Any] = []

    def backend(gm: fx.GraphModule, values: list[Any]) -> Any:
        given.extend(values)
        return gm.forward

    torch.compile(made.part, backend=backend)(*made.inputs)
    assert given
    assert not any(isinstance(value, torch.SymInt) for value in given)


def test_what_lies_in_no_memory_of_its_own_is_not_counted() -> None:
    wrapped = TwoTensor(torch.ones(3), torch.ones(3))
    inputs = (wrapped, torch.eye(2).to_sparse(), torch.ones(5))
    made = Workload("t", "inference", torch.device("cpu"), nn.LazyLinear(2), inputs=inputs)
    assert Instances(made, lambda: made).held_beside() == 20


def test_what_is_swapped_behind_it_has_no_unknown_strides() -> None:
    bench = Bench(workload(), workload)
    bench.build(after("channels_last"))
    recipe = after("fold_batch_norm")
    bench.unswapped(recipe)
    (graphs,) = bench.programs(recipe)
    assert graphs
    held = bench._switch(recipe)[0]._held
    assert not any(isinstance(value, (int, torch.SymInt)) for one in held for value in one.inputs)
