"""What a run kept and the model has no place for is said, with the reason; what fits is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import ReadyKernel
from advisor.apply.recipe import Recipe
from advisor.model.cures import Split
from advisor.pipeline import api, misfits
from advisor.pipeline.api import AppliedRun
from advisor.pipeline.backend import SwapLog, plan_backend, rewrites_of
from advisor.pipeline.misfits import NO_GRAPH, Misfits
from advisor.units import counted
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders.interpreted import kernels_of, swapping

CPU = torch.device("cpu")


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.weight * x, -1)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Swapped graphs run on the CPU, and none comes from a cache."""
    torch.compiler.reset()
    monkeypatch.setattr(api, "recipe_backend", lambda recipe, log: swapping(recipe.kernels, log))
    with no_compile_caches():
        yield


def taken(folder: Path, model: nn.Module, *, training: bool = False) -> list[ReadyKernel]:
    """The kernels of a model, as a run of it would keep them."""
    x = torch.randn(24, 48, dtype=next(model.parameters()).dtype)
    if training:
        work = Workload(
            "t", "training", CPU, model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=lambda part: part(x).square().sum(),
        )  # fmt: skip
    else:
        work = Workload("i", "inference", CPU, model, inputs=(x,))
    kernels = kernels_of(capture(work, generate_code=False)[0], folder)
    torch.compiler.reset()
    return kernels


def told(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(item.filename == __file__ for item in caught if item.category is UserWarning)
    return [str(item.message) for item in caught if item.category is UserWarning]


def applied(kernels: list[ReadyKernel], **fields: Any) -> AppliedRun:
    return AppliedRun(Recipe(kernels=tuple(kernels), **fields))


def test_what_fits_is_not_spoken_of(tmp_path: Path) -> None:
    fast = applied(taken(tmp_path, Norm())).apply(Norm().eval())
    with torch.no_grad():
        assert told(lambda: fast(torch.randn(24, 48))) == []
    assert fast.log.outcomes


def test_a_kernel_without_a_place_is_named_once_with_the_reason(tmp_path: Path) -> None:
    (kernel,) = taken(tmp_path, Norm())
    fast = applied([kernel]).apply(Soft().eval())
    with torch.no_grad():
        (line,) = told(lambda: fast(torch.randn(24, 48)))
        assert told(lambda: fast(torch.randn(24, 48))) == []
    assert line.startswith(
        f"not used: the kernel of {kernel.plan.title} ({kernel.plan.id}): no site of it is in "
        "the compiled graph (the original ops stay; profile and apply the model"
    )


def test_another_type_and_another_layout_are_the_reason(tmp_path: Path) -> None:
    kernels = taken(tmp_path, Norm().bfloat16())
    fast = applied(kernels).apply(Norm().eval())
    with torch.no_grad():
        (line,) = told(lambda: fast(torch.randn(24, 48)))
    assert "its ops are there, but on float32, not bfloat16" in line
    fast = applied(kernels).apply(Norm().bfloat16().eval())
    with torch.no_grad():
        (line,) = told(lambda: fast(torch.randn(48, 24).bfloat16().T))
    assert "its ops are there, but " in line
    assert "has strides (1, 24), not (48, 1)" in line


def test_kernels_of_a_backward_pass_are_judged_when_there_is_one(tmp_path: Path) -> None:
    kernels = taken(tmp_path, Norm(), training=True)
    assert {kernel.plan.phase for kernel in kernels} == {"forward", "backward"}
    backward = [kernel for kernel in kernels if kernel.plan.phase == "backward"]
    fast = applied(backward).apply(Soft())

    def step() -> None:
        fast(torch.randn(24, 48)).sum().backward()

    assert told(step) == [], "its backward pass was not compiled when it was called"
    (line,) = told(step)
    assert backward[0].plan.id in line
    assert told(step) == []


@pytest.mark.parametrize("training", [True, False])
def test_another_pass_that_comes_first_says_nothing_of_kernels(
    training: bool, tmp_path: Path
) -> None:
    """A validation before the training, or a training of what was profiled for inference."""
    kernels = taken(tmp_path, Norm(), training=training)
    fast = applied(kernels).apply(Norm())

    def validates() -> None:
        with torch.no_grad():
            fast(torch.randn(24, 48))

    def trains() -> None:
        fast(torch.randn(24, 48)).square().sum().backward()

    first, then = (validates, trains) if training else (trains, validates)
    names = ("training", "inference") if training else ("inference", "training")
    (line,) = told(first)
    assert line == (
        f"not used so far: {counted(len(kernels), 'kernel')} for {names[0]}, and only {names[1]} "
        "was compiled yet"
    )
    assert told(then) == told(then) == told(first) == []
    assert all(fast.log.swapped(kernel.plan.id) for kernel in kernels)


def test_a_training_step_is_judged_whole(tmp_path: Path) -> None:
    kernels = taken(tmp_path, Norm(), training=True)
    model, x = Soft(), torch.randn(24, 48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = applied(kernels).apply(model, optimizer, lambda part: part(x).square().sum())
    (line,) = told(step)
    assert all(kernel.plan.id in line for kernel in kernels)
    assert told(step) == []


def test_a_model_on_the_cpu_and_one_from_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at what is loaded from a cache: nothing is said of it, true or false."""
    kernels = taken(tmp_path, Norm())
    monkeypatch.undo()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    fast = applied(kernels).apply(Norm().eval())
    with torch.no_grad():
        (line,) = told(lambda: fast(torch.randn(24, 48)))
    assert "1 kernel: the model is on the CPU, where none is launched" in line
    with (
        torch._inductor.config.patch(fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=True),
        torch.no_grad(),
    ):
        for known in (False, True):
            torch.compiler.reset()
            log = SwapLog()
            judge = Misfits(Recipe(kernels=tuple(kernels)), log)
            torch.compile(Norm().eval(), backend=plan_backend(kernels, log))(torch.randn(24, 48))
            assert log.from_cache is known
            assert bool(told(partial(judge.tell, stacklevel=1))) is not known


def test_a_model_that_is_not_compiled_at_all(tmp_path: Path) -> None:
    fast = applied(taken(tmp_path, Norm())).apply(Norm().eval())
    with torch.no_grad(), torch._dynamo.config.patch(disable=True):
        assert told(lambda: fast(torch.randn(24, 48))) == [NO_GRAPH]


def test_a_rewrite_and_a_cut_that_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    split = Split(kernel="triton_red_fused_0", words="cut", groups=(("a",), ("b",)))
    fast = applied([], actions=("attention", "chunked_loss"), splits=(split,)).apply(Soft().eval())
    with torch.no_grad():
        (line,) = told(lambda: fast(torch.randn(24, 48)))
    assert "attention as one library call: no graph has what it replaces" in line
    assert "vocabulary loss in pieces: no graph has what it replaces" in line
    assert "the cut of triton_red_fused_0: no graph so far has its ops" in line


def test_a_site_that_is_refused_says_why() -> None:
    class Written(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = torch.softmax(x @ x.transpose(-1, -2), -1)
            return weights @ x + weights.sum()

    log = SwapLog()
    misfits.tell_of_graph(Recipe(actions=("attention",)), log, "runs/x")
    backend = plan_backend((), log, rewrites=rewrites_of(("attention",)))
    with torch.no_grad():
        torch.compile(Written(), backend=backend)(torch.randn(2, 4, 16, 8))
    (line,) = told(lambda: misfits.tell_of_graph(Recipe(actions=("attention",)), log, "runs/x"))
    assert line.startswith("runs/x, in a graph compiled with it: not used: attention as one")
    assert log.rewritten[0].refused
    assert log.rewritten[0].refused in line


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_graph_on_the_cpu_is_no_reason_where_another_is_on_the_gpu(
    on_gpu: bool, tmp_path: Path
) -> None:
    """An embedding on the CPU in front of a model on a GPU, parted by a break."""
    (kernel,) = taken(tmp_path, Norm())
    log = SwapLog(compiled=2, phases={"inference"}, on_cpu=True, on_gpu=on_gpu)
    (line,) = told(lambda: Misfits(Recipe(kernels=(kernel,)), log).tell(stacklevel=1))
    assert (kernel.plan.id in line) == on_gpu
    assert ("the model is on the CPU" in line) != on_gpu
