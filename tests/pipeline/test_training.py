"""Losses of a training step beside a float32 run: the same, others, and those that say nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from advisor.apply.model.optimizer import fuse_optimizer
from advisor.pipeline.references import without_dropout
from advisor.pipeline.training import STEPS, LossCurves, loss_curves
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
