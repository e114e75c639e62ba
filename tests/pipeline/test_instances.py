"""Twins of a workload: in the state of the one that was measured, changed or lost alone."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import torch
from torch import nn

from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import WorkloadError
from advisor.pipeline.instances import Instances
from advisor.pipeline.measure import Bench
from collectors.live.workload import Workload

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Counts its calls in a buffer that no state dict has; adds state that is no tensor."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        self.calls.add_(1)
        result: torch.Tensor = self.layer(x) * self.calls
        return result


def inference() -> Workload:
    torch.manual_seed(0)
    return Workload("w", "inference", CPU, Counting().eval(), inputs=(torch.randn(2, 3, 8, 8),))


def training() -> Workload:
    torch.manual_seed(0)
    module, x = Counting(), torch.randn(2, 3, 8, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return Workload(
        *("w", "training", CPU, module), optimizer=optimizer,
        loss=lambda part: part(x.clone()).square().mean(),
    )  # fmt: skip


class Replayed:
    """What a captured training step does without a GPU: it writes the gradients of its capture."""

    def __init__(self, twin: Workload) -> None:
        assert twin.optimizer is not None
        self.parameters = [p for group in twin.optimizer.param_groups for p in group["params"]]
        self.loss, self.part = twin.loss, twin.part
        twin.optimizer.zero_grad(set_to_none=True)
        self._computed().backward()
        self.written = [p.grad for p in self.parameters]

    def _computed(self) -> torch.Tensor:
        assert self.loss is not None
        return self.loss(self.part)

    def __call__(self) -> torch.Tensor:
        loss = self._computed()
        found = torch.autograd.grad(loss, self.parameters)
        for written, gradient in zip(self.written, found, strict=True):
            assert written is not None
            written.copy_(gradient)
        return loss


def test_a_replay_answers_with_the_gradients_that_it_writes() -> None:
    """Also when another step of the same twin was captured since and left gradients of its own."""
    base = training()
    instances = Instances(base, training)
    twin = instances.fresh()
    results = instances.replayed_results_of(twin, Replayed(twin))
    Replayed(twin)
    with torch.no_grad():
        for parameter in base.part.parameters():  # type: ignore[attr-defined]
            parameter.add_(0.25)
    for mine, wanted in zip(results(), base.results_of(), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("make", [inference, training])
def test_a_twin_answers_from_the_state_that_the_workload_has_come_to(make: Any) -> None:
    base = make()
    instances = Instances(base, make)
    twin = instances.of(UNCHANGED.with_action("channels_last"))
    for _ in range(3):
        base.step_of()()
    twin.step_of()()
    ours = instances.results_of(twin, twin.part)()
    assert ours
    for a, b in zip(ours, base.results_of(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_change_that_fails_is_an_error_of_the_workload() -> None:
    class Strange(nn.Conv2d):
        @property
        def weight(self) -> Any:
            raise ValueError("not before Tuesday")

        @weight.setter
        def weight(self, value: Any) -> None:
            pass

    def make() -> Workload:
        module = nn.Identity()
        module.add_module("strange", Strange.__new__(Strange))
        nn.Module.__init__(module.strange)  # type: ignore[arg-type]
        return Workload("w", "inference", CPU, module, inputs=(torch.zeros(1, 1, 1, 1),))

    with pytest.raises(WorkloadError, match="not before Tuesday"):
        Instances(make(), make).of(Recipe(("channels_last",)))


@pytest.mark.parametrize("trains", [False, True])
def test_a_step_that_never_gives_the_same_again_proves_nothing(trains: bool) -> None:
    weight = torch.ones(8)

    def step() -> torch.Tensor:
        if trains:
            weight.mul_(1.01)
        return weight * 2.0

    work = Workload("w", "step", CPU, step)
    bench = Bench(work, lambda: work)
    results = bench.results(bench.compiled)
    found = bench.agreement(results, results.comparable)
    assert found is not None
    assert ("nothing shows that ours agree" in found.note) == trains


class Attending(nn.Module):
    """Attention; the gradient of the bias of its keys is 0 but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.scale = 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * self.scale
        result: torch.Tensor = torch.softmax(scores, -1) @ self.value(x) + x
        return result


def of_batches() -> Workload:
    """A training step that reads the next batch each time."""
    torch.manual_seed(0)
    module, batches = Attending(), itertools.cycle(torch.randn(16, 2, 8, 16))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    return Workload(
        *("w", "training", CPU, module), optimizer=optimizer,
        loss=lambda part: part(next(batches)).square().mean(),
    )  # fmt: skip


@pytest.mark.parametrize("scale", [0.25, 0.2625])
def test_results_are_compared_on_one_batch_whatever_the_loss_reads_next(scale: float) -> None:
    bench = Bench(of_batches(), of_batches)
    results = bench.results(bench.compiled)
    assert results.comparable
    wrong = of_batches()
    cast(Attending, wrong.part).scale = scale
    found = bench.agreement(results._replace(ours=wrong.results_of()), comparable=True)
    assert found is not None
    assert found.agrees == (scale == 0.25), found
