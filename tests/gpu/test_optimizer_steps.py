"""Steps of optimizers by one launch on the GPU itself, beside float64: every rule, every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.model.multi_tensor import own_step, use_multi_tensor
from advisor.apply.model.step_graph import StepGraph, prepare_optimizer
from advisor.apply.model.update_check import FLOOR_ULPS, update_disagreement
from tests.builders.updates import Lion

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
# A power of two: the same in float32 and float64.
RATE = 2.0**-10
ADAM, ADAMW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (ADAMW, {"weight_decay": 0.1}),
    "adamw, amsgrad, maximised": (ADAMW, {"amsgrad": True, "maximize": True}),
    "adam": (ADAM, {}),
    "adam, weight decay, amsgrad": (ADAM, {"weight_decay": 0.1, "amsgrad": True}),
    "adam, betas of 0 and near 1": (ADAM, {"betas": (0.0, 0.99999), "eps": 1e-6}),
    "sgd": (SGD, {}),
    "sgd, weight decay, maximised": (SGD, {"weight_decay": 0.1, "maximize": True}),
    "sgd, momentum, dampening": (SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd, nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "lion": (Lion, {"weight_decay": 0.1}),
}
SHAPES = ((512, 768), (768,), (33, 7), (1,))


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """One of them of zeros, as a bias begins: nothing but its updates is seen."""
    generator = torch.Generator("cuda").manual_seed(0)
    made = []
    for shape in SHAPES:
        value = torch.randn(shape, device="cuda", generator=generator) * 0.02
        made.append(nn.Parameter((value if len(shape) > 1 else value * 0.0).to(dtype)))
        made[-1].grad = torch.randn(shape, device="cuda", generator=generator).to(dtype)
    return made


def widened(held: list[nn.Parameter]) -> list[nn.Parameter]:
    made = []
    for parameter in held:
        assert parameter.grad is not None
        made.append(nn.Parameter(parameter.detach().double()))
        made[-1].grad = parameter.grad.double()
    return made


def assert_near(held: list[nn.Parameter], wide: list[nn.Parameter]) -> None:
    for mine, truth in zip(held, wide, strict=True):
        unit = truth.detach().abs().max() * torch.finfo(torch.float32).eps
        assert float((mine.detach() - truth.detach()).abs().max() / unit) <= FLOOR_ULPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_steps_are_as_near_to_float64_as_the_optimizers_own(case: str, dtype: torch.dtype) -> None:
    kind, options = CASES[case]
    assert update_disagreement(kind(parameters(dtype), lr=RATE, **options)) is None


@pytest.mark.parametrize("done", [50, 974, 103_000])
def test_bias_corrections_late_in_a_training(done: int) -> None:
    """b1^t, then b2^t, are below the normal numbers of float32."""
    held = parameters(torch.float32)
    wide = widened(held)
    both = [ADAM(wide, lr=RATE, foreach=False), ADAM(held, lr=RATE)]
    for optimizer in both:
        optimizer.step()
        for state in optimizer.state.values():
            state["step"].fill_(done)
    assert use_multi_tensor(both[1]) is None
    for optimizer in both:
        optimizer.step()
    assert_near(held, wide)


@pytest.mark.parametrize("case", [case for case in CASES if case != "lion"])
def test_captured_steps_with_the_rate_in_memory_are_near_to_float64(case: str) -> None:
    """Own first step, one of ours, two replays: the second with half the rate."""
    kind, options = CASES[case]
    held = parameters(torch.float32)
    wide = widened(held)
    exact, ours = kind(wide, lr=RATE, foreach=False, **options), kind(held, lr=RATE, **options)
    assert use_multi_tensor(ours) is None
    ours.step()
    assert prepare_optimizer(ours) is None
    graph = StepGraph(ours.step, warmup=1)
    for rate in (RATE, RATE / 2):
        ours.param_groups[0]["lr"].fill_(rate)
        graph()
    for rate in (RATE, RATE, RATE, RATE / 2):
        exact.param_groups[0]["lr"] = rate
        exact.step()
    assert_near(held, wide)


def test_autograd_notices_and_the_way_back_leaves_counts_on_the_host() -> None:
    held, others = parameters(torch.float32), parameters(torch.float32)
    ours, plain = ADAM(held, lr=RATE), ADAM(others, lr=RATE)
    assert use_multi_tensor(ours) is None
    for optimizer in (ours, plain):
        optimizer.step()
    for mine, its in zip(held, others, strict=True):
        assert torch.equal(mine, its), "the first step is the optimizer's own"
    loss = (held[0] * held[0]).sum()
    ours.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    state = ours.state[held[0]]
    assert state["step"].is_cuda
    own_step(ours)
    assert not state["step"].is_cuda
    ours.step()
    assert float(state["step"]) == 3.0
