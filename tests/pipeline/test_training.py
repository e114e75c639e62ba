"""Losses of a training step beside a float32 run: the same, others, and those that say nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from advisor.apply.model.optimizer import fuse_optimizer
from advisor.pipeline.references import widened, without_dropout
from advisor.pipeline.training import DRAWN, STEPS, LossCurves, loss_curves
from collectors.live.workload import Workload

CPU = torch.device("cpu")
EPSILON = torch.finfo(torch.bfloat16).eps


def workload(*, dropout: float = 0.0, dtype: torch.dtype = torch.bfloat16) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(dropout), nn.Tanh(), nn.Linear(32, 1))
    model.to(dtype)
    data = torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(part: Callable[..., torch.Tensor]) -> torch.Tensor:
        given = data.to(next(model.parameters()).dtype)
        return (part(given) - 1.0).square().mean()

    return Workload("w", "training", CPU, model, optimizer=optimizer, loss=loss)


Run = tuple[Workload, Callable[..., Any]]


def unchanged(make: Callable[[], Workload] = workload) -> Run:
    twin = make()
    return twin, twin.part


def scaled(factor: float) -> Run:
    """A part that computes nearly what the model does."""
    twin = workload()
    return twin, lambda x: twin.part(x) * factor


def test_the_same_step_trains_as_eager_does() -> None:
    found = loss_curves(workload, unchanged)
    assert isinstance(found, LossCurves)
    assert len(found.eager) == STEPS
    assert found.ours == found.eager
    assert 0 < found.eager_divergence < 0.1
    assert found.agree(EPSILON)
    assert found.reference[-1] < found.reference[0]


@pytest.mark.parametrize("factor", [1.3, float("nan")])
def test_a_step_that_computes_something_else_does_not_agree(factor: float) -> None:
    found = loss_curves(workload, partial(scaled, factor))
    assert isinstance(found, LossCurves)
    assert not found.agree(EPSILON)


def test_what_the_compiler_does_by_itself_is_not_held_against_ours() -> None:
    """Ours are as far as the compiler's, further than eager's twice over."""
    away = partial(scaled, 1.3)
    found = loss_curves(workload, away, plain=partial(scaled, 1.25), resolution=EPSILON)
    assert isinstance(found, LossCurves)
    assert found.agree(EPSILON)
    assert found.compiled_divergence is not None
    assert found.compiled_divergence > 2 * found.eager_divergence
    found = loss_curves(workload, away, plain=unchanged, resolution=EPSILON)
    assert isinstance(found, LossCurves)
    assert not found.agree(EPSILON)


def test_losses_that_depend_on_dropout_are_compared_without() -> None:
    dropping = partial(workload, dropout=0.5)
    found = loss_curves(dropping, partial(unchanged, dropping))
    assert isinstance(found, LossCurves)
    assert found.dropout_off
    assert found.ours == found.eager
    assert found.agree(EPSILON)


def noisy() -> Workload:
    """A training step that draws numbers which no dropout draws."""
    twin = workload()
    loss = twin.loss
    assert loss is not None
    return replace(twin, loss=lambda part: loss(part) * (1 + torch.rand(())))


def test_losses_that_draw_other_random_numbers_say_nothing() -> None:
    found = loss_curves(noisy, partial(unchanged, noisy))
    assert found == "the loss depends on random numbers, which the compiler draws otherwise"


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_numbers_of_python_and_numpy_are_the_same_in_all_runs(draw: Callable[[], float]) -> None:
    """Batches that the host draws are those of all other runs."""

    def drawing() -> Workload:
        twin = workload()
        loss = twin.loss
        assert loss is not None
        return replace(twin, loss=lambda part: loss(part) * (1 + draw()))

    held = random.getstate()
    found = loss_curves(drawing, partial(unchanged, drawing))
    assert isinstance(found, LossCurves)
    assert found.ours == found.eager
    assert found.eager_divergence < 0.1
    assert random.getstate() == held, "the caller's own numbers go on"


def test_a_step_in_float32_is_held_against_float64() -> None:
    """Against float32 eager would be perfect, and any other rounding too much."""
    exact = partial(workload, dtype=torch.float32)

    def reordered() -> Run:
        twin = exact()
        return twin, lambda x: twin.part(x * 3.0 / 3.0)

    found = loss_curves(exact, reordered)
    assert isinstance(found, LossCurves)
    assert found.exact_type == "float64"
    assert 0 < found.eager_divergence < 1e-5
    assert 0 < found.divergence < 1e-5


def test_autocast_is_held_against_what_it_does_not_round() -> None:
    def cast() -> Workload:
        twin = workload(dtype=torch.float32)
        inner = twin.loss
        assert inner is not None

        def loss(part: Callable[..., torch.Tensor]) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return inner(part)

        return replace(twin, loss=loss)

    found = loss_curves(cast, partial(unchanged, cast))
    assert isinstance(found, LossCurves)
    assert 1e-5 < found.eager_divergence < 0.1


def test_without_dropout_norms_still_take_the_batch() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    twin = Workload("w", "training", CPU, module)
    found = without_dropout(twin)
    assert found is not None
    assert [m.training for m in module] == [False, True, False]
    assert without_dropout(Workload("w", "inference", CPU, module)) is None


class Rotated(nn.Module):
    """A linear layer whose results are turned by complex numbers that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.turns: torch.Tensor
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.inner(x).unflatten(-1, (4, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2)


def of_module(make: Callable[[], nn.Module], factor: float = 1.0) -> Workload:
    """Training of a module of [3, 5, 8] float32; `factor` multiplies its loss."""
    torch.manual_seed(0)
    module, data = make(), torch.randn(3, 5, 8)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=0.01)

    def loss(part: Callable[..., torch.Tensor]) -> torch.Tensor:
        return (part(data) - 1.0).square().mean() * factor

    return Workload("w", "training", CPU, module, optimizer=optimizer, loss=loss)


def test_a_wider_copy_keeps_complex_numbers_and_widens_the_optimizers_state() -> None:
    found = loss_curves(partial(of_module, Rotated), lambda: unchanged(partial(of_module, Rotated)))
    assert isinstance(found, LossCurves)
    assert 0 < found.eager_divergence < 1e-5
    twin = of_module(Rotated)
    assert widened(twin) == torch.float64
    assert isinstance(twin.part, Rotated)
    assert twin.part.turns.dtype == torch.complex128
    assert twin.optimizer is not None
    sums = [held["sum"].dtype for held in twin.optimizer.state.values()]
    assert set(sums) == {torch.float64}


def test_a_reference_that_computes_something_else_says_nothing() -> None:
    class ByType(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (3.0 if x.dtype == torch.float64 else 1.0)

    make = partial(of_module, partial(ByType, 8, 8))
    found = loss_curves(make, partial(unchanged, make))
    assert found == "the step computes something else in float64"


def test_losses_that_are_not_finite_without_ours_are_not_held_against_ours() -> None:
    make = partial(of_module, partial(nn.Linear, 8, 8), float("nan"))
    found = loss_curves(make, partial(unchanged, make))
    assert found == "those of the step as it came are not finite"


def test_recurrent_layers_go_on_training_without_their_dropout() -> None:
    """cuDNN has no gradients of them in evaluation."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(x)[0]
            return result

    make = partial(of_module, Recurrent)
    found = loss_curves(make, partial(unchanged, make))
    assert isinstance(found, LossCurves)
    assert found.dropout_off
    assert found.ours == found.eager
    twin = without_dropout(make())
    assert twin is not None
    assert isinstance(twin.part, Recurrent)
    assert twin.part.inner.training


def test_a_step_that_needs_its_dropout_says_nothing() -> None:
    class InTrainingOnly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                raise ValueError("no loss in evaluation")
            return nn.functional.dropout(self.inner(x), 0.5)

    make = partial(of_module, InTrainingOnly)
    found = loss_curves(make, partial(unchanged, make))
    assert isinstance(found, str)
    assert found.endswith("without dropout the step does not run")


def test_a_module_that_refuses_to_evaluate_keeps_its_dropout() -> None:
    class Refusing(nn.Sequential):
        def train(self, mode: bool = True) -> Refusing:
            if not mode:
                raise ValueError("never evaluated")
            return super().train(mode)

    make = partial(of_module, lambda: Refusing(nn.Linear(8, 8), nn.Dropout(0.5)))
    assert loss_curves(make, partial(unchanged, make)) == DRAWN


def test_a_step_without_a_loss_says_nothing() -> None:
    def two() -> Workload:
        module = nn.Linear(2, 2)
        return Workload("w", "inference", CPU, module, inputs=(torch.ones(3, 2),))

    assert loss_curves(two, partial(unchanged, two)) == "the step returns no loss"


def test_an_optimizer_fused_in_between_trains_alike() -> None:
    exact = partial(workload, dtype=torch.float32)

    def fused() -> Run:
        twin = exact()
        assert twin.optimizer is not None
        assert fuse_optimizer(twin.optimizer) is None
        return twin, twin.part

    found = loss_curves(exact, fused)
    assert isinstance(found, LossCurves)
    assert found.divergence < 1e-4
    assert found.agree(1e-4)
