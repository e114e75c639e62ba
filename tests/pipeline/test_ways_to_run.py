"""Checkpointing, autocast, exported models, sizes that change: swapped, or left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels need triton")

import torch
from torch import nn
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch.utils.checkpoint import checkpoint

from advisor.apply.judge import outputs_agree
from advisor.model.applied import ActionVerdict, Applied, SetVerdict
from advisor.pipeline import backend as backend_module
from advisor.pipeline.backend import SwapLog
from advisor.pipeline.likeness import difference
from advisor.store import RunDirectory
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders import captured as models
from tests.builders.interpreted import kernels_of, swapping

CPU = torch.device("cpu")
EPSILON = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    with no_compile_caches():
        yield
    kernel_side_table.reset_table()


class Block(nn.Module):
    """A norm in pieces, a product, and a soft-capped softmax; checkpointed or not."""

    def __init__(self, *, again: bool = False, cast: bool = False) -> None:
        super().__init__()
        self.norm, self.linear, self.again, self.cast = (
            models.RMSNorm(48),
            nn.Linear(48, 64),
            again,
            cast,
        )

    def part(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.linear(self.norm(x))
        return torch.softmax(20.0 * torch.tanh(scores / 20.0), dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around: AbstractContextManager[Any] = (
            torch.autocast("cpu", dtype=torch.bfloat16) if self.cast else nullcontext()
        )
        with around:
            if self.again:
                result: torch.Tensor = checkpoint(self.part, x, use_reentrant=False)
                return result
            return self.part(x)


def training(model: nn.Module) -> Workload:
    data = torch.randn(24, 48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(
        "step", "training", CPU, model, optimizer=optimizer,
        loss=lambda part: part(data).float().square().sum(),
    )  # fmt: skip


def swapped(work: Workload, folder: Path) -> tuple[float, float, SwapLog]:
    """Error of the step with every site swapped, the compiler's own, and the swaps."""
    kernels = kernels_of(capture(work, generate_code=False)[0], folder)
    assert kernels
    log = SwapLog()
    part = torch.compile(work.part, backend=swapping(kernels, log))
    ours = work.results_of(lambda _: part)
    torch.compiler.reset()
    plain = work.results_of(torch.compile)
    eager = work.results_of()
    assert [outcome.refused for outcome in log.outcomes] == [None] * len(log.outcomes)
    assert len(log.outcomes) == sum(len(kernel.plan.sites) for kernel in kernels)
    return difference(ours, eager), difference(plain, eager), log


def phases(log: SwapLog) -> set[str]:
    return {outcome.swap.kernel.plan.phase for outcome in log.outcomes}


def test_a_checkpointed_block_is_computed_again_by_its_kernels(tmp_path: Path) -> None:
    error, own, log = swapped(training(Block(again=True)), tmp_path)
    assert outputs_agree(error, own, EPSILON)
    assert phases(log) == {"forward", "backward"}


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpointed"])
def test_autocast_keeps_its_types(again: bool, tmp_path: Path) -> None:
    error, own, log = swapped(training(Block(cast=True, again=again)), tmp_path)
    assert outputs_agree(error, own, torch.finfo(torch.bfloat16).eps)
    narrow = {item.dtype for o in log.outcomes for item in o.swap.kernel.plan.inputs}
    assert "bfloat16" in narrow


def test_an_exported_model_is_a_model(tmp_path: Path) -> None:
    x = torch.randn(24, 48)
    exported = torch.export.export(Block().eval(), (x,)).module()
    error, own, log = swapped(
        Workload("exported", "inference", CPU, exported, inputs=(x,)), tmp_path
    )
    assert outputs_agree(error, own, EPSILON)
    assert len(log.outcomes) == 2


def test_other_sizes_have_kernels_in_one_graph(tmp_path: Path) -> None:
    """One graph for the first size, then one for any number of rows, both with their kernels."""
    module = Block().eval()
    work = Workload("sizes", "inference", CPU, module, inputs=(torch.randn(24, 48),))
    kernels = kernels_of(capture(work, generate_code=False)[0], tmp_path)
    log = SwapLog()
    part = torch.compile(module, backend=swapping(kernels, log))
    with torch.no_grad():
        for rows, graphs in ((24, 1), (40, 1), (24, 0), (72, 0), (2, 0)):
            before = len(log.outcomes)
            x = torch.randn(rows, 48)
            torch.testing.assert_close(part(x), module(x))
            assert len(log.outcomes) - before == graphs * len(kernels), rows
    assert [o.refused for o in log.outcomes] == [None] * len(log.outcomes)


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpointed"])
def test_a_model_trains_at_every_size_by_two_graphs(again: bool, tmp_path: Path) -> None:
    model = Block(again=again)
    kernels = kernels_of(capture(training(model), generate_code=False)[0], tmp_path)
    log = SwapLog()
    part = torch.compile(model, backend=swapping(kernels, log), dynamic=True)
    compiled = []
    for rows in (24, 40, 7, 72):
        x = torch.randn(rows, 48)
        found = []
        for way in (model, part):
            model.zero_grad()
            loss = way(x).square().sum()
            loss.backward()
            grads = (p.grad for p in model.parameters() if p.grad is not None)
            found.append([loss.detach(), *(grad.clone() for grad in grads)])
        assert difference(found[1], found[0]) < 1e-4
        compiled.append(len(log.outcomes))
    assert [o.refused for o in log.outcomes] == [None] * len(log.outcomes)
    assert phases(log) == {"forward", "backward"}
    assert compiled == compiled[:1] * 4, "no size but the first has anything compiled"


def test_each_size_has_its_kernels_where_graphs_are_for_one_size(tmp_path: Path) -> None:
    module = Block().eval()
    work = Workload("sizes", "inference", CPU, module, inputs=(torch.randn(24, 48),))
    kernels = kernels_of(capture(work, generate_code=False)[0], tmp_path)
    log = SwapLog()
    part = torch.compile(module, backend=swapping(kernels, log), dynamic=False)
    with torch.no_grad():
        for rows in (24, 40, 1):
            x = torch.randn(rows, 48)
            torch.testing.assert_close(part(x), module(x))
    assert {o.refused for o in log.outcomes} == {None}


# --- the backend by its name, with what a run kept ------------------------------------------------


class Written(nn.Module):
    """Attention written out, between two linear layers."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.again = nn.Linear(32, 96), nn.Linear(32, 32), again

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-2, -1) * 0.25, -1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = checkpoint(self.attend, x, use_reentrant=False) if self.again else self.attend(x)
        result: torch.Tensor = self.out(mixed)
        return result


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], SwapLog]:
    """Options of the backend for a run that kept library attention, and what it did."""
    run = RunDirectory.create_at(tmp_path / "run")
    action = ActionVerdict(kind="attention", title="a", verdict="kept", reason="measured")
    result = SetVerdict(verdict="kept", reason="measured", plans=(), actions=("attention",))
    run.write_applied(
        Applied(created="now", device="a GPU", versions={}, plans=(), actions=(action,), set=result)
    )
    (run.path / "run.json").write_text("{}")
    log = SwapLog()
    monkeypatch.setattr(backend_module, "SwapLog", lambda: log)
    return {"run": str(run.path)}, log


def used(log: SwapLog) -> int:
    return sum(item.refused is None for item in log.rewritten)


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("cast", [False, True], ids=["float32", "autocast"])
def test_the_backend_trains(again: bool, cast: bool, kept: tuple[dict[str, str], SwapLog]) -> None:
    options, log = kept
    model, x = Written(again=again), torch.randn(2, 12, 32)
    compiled = torch.compile(model, backend="fusion_advisor", options=options)
    found = []
    for part in (model, compiled):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            loss = part(x).float().square().mean()
        loss.backward()
        found.append(
            [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        )
    assert difference(found[1], found[0]) < (3e-2 if cast else 1e-5)
    assert used(log) == 1


def test_the_backend_runs_an_exported_model(kept: tuple[dict[str, str], SwapLog]) -> None:
    options, log = kept
    x = torch.randn(2, 12, 32)
    model = torch.export.export(Written().eval(), (x,)).module()
    compiled = torch.compile(model, backend="fusion_advisor", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert used(log) == 1


def test_the_backend_follows_sizes_that_change(kept: tuple[dict[str, str], SwapLog]) -> None:
    options, log = kept
    model = Written().eval()
    compiled = torch.compile(model, backend="fusion_advisor", options=options)
    with torch.no_grad():
        for length in (12, 20, 31, 12):
            x = torch.randn(2, length, 32)
            torch.testing.assert_close(compiled(x), model(x))
    assert used(log) == 2, "one graph for the first size, one for any other"
