"""What is counted is no tensor that a compiled graph makes: kernels are given memory unread."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from advisor.apply.rewrite import Swap, rewrite
from advisor.pipeline.backend import SwapLog
from collectors.live.capture import capture
from collectors.live.workload import Workload
from tests.builders.captured import captured_training
from tests.builders.interpreted import kernels_of, swapping

CPU = torch.device("cpu")


class Loss(nn.Module):
    """A cross-entropy, whose gradient asks which column is the label."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(24, 200))

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.scores, labels)


def labels() -> torch.Tensor:
    return torch.randint(0, 200, (24,), generator=torch.Generator().manual_seed(0))


def test_nothing_writes_what_is_counted(tmp_path: Path) -> None:
    found = captured_training(Loss(), labels())
    lowered = next(g.lowered for g in found.graphs if g.lowered.graph.phase == "backward").copy()
    kernels = [k for k in kernels_of(found, tmp_path) if k.plan.phase == "backward"]
    assert any(item.counts is not None for k in kernels for item in k.plan.inputs)
    before = [str(node.target) for node in lowered.fx_graph.nodes]
    swaps = [Swap(kernel, kernel.plan, kernel.plan.sites[0]) for kernel in kernels]
    outcomes = rewrite(lowered.fx_graph, lowered.fx_node, lowered.fx_aliases, swaps)
    assert [outcome.refused for outcome in outcomes] == [None] * len(kernels)
    after = [str(node.target) for node in lowered.fx_graph.nodes]
    assert "prims.iota.default" in before
    assert "prims.iota.default" not in after
    lowered.fx_graph.lint()


def test_its_gradient_is_that_of_eager(tmp_path: Path) -> None:
    model, given = Loss(), labels()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    work = Workload(
        "step", "training", CPU, model, optimizer=optimizer, loss=lambda part: part(given)
    )
    kernels = kernels_of(capture(work, generate_code=False)[0], tmp_path)
    model(given).backward()
    want, model.scores.grad = model.scores.grad, None
    log = SwapLog()
    torch.compiler.reset()
    torch.compile(model, backend=swapping(kernels, log))(given).backward()
    assert [outcome.refused for outcome in log.outcomes] == [None] * len(kernels)
    torch.testing.assert_close(model.scores.grad, want)
