"""Dropout in compiled graphs: kernels read seeds where they lie, both passes draw one mask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from advisor.apply.rewrite import Swap, rewrite
from advisor.pipeline.backend import SwapLog
from collectors.live import draws
from collectors.live.capture import capture
from collectors.live.workload import Workload
from tests.builders.captured import captured_training
from tests.builders.interpreted import kernels_of, swapping

CPU = torch.device("cpu")


class Dropped(nn.Module):
    """Normed elements after a dropout; `again` computes them once more in the backward pass."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.weight, self.again = nn.Parameter(torch.ones(48)), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._part, x, use_reentrant=False) if self.again else self._part(x)

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(functional.dropout(x * self.weight, 0.3), (48,))


def ops_by_phase(model: nn.Module, x: torch.Tensor) -> dict[str, list[str]]:
    found = captured_training(model, x)
    return {
        g.lowered.graph.phase: [n.op for n in g.lowered.graph.nodes if n.op == "random"]
        for g in found.graphs
    }


@pytest.mark.parametrize("again", [False, True], ids=["saved", "drawn again"])
def test_both_passes_have_one_mask(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is stored by the forward kernel, or drawn from its seed by the backward one."""
    monkeypatch.setattr(draws, "TWO_STREAMS", False)
    model = Dropped(again)
    x = torch.randn(24, 48, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = Workload(
        "step", "training", CPU, model, optimizer=optimizer,
        loss=lambda part: part(x).sin().sum(),
    )  # fmt: skip
    kernels = kernels_of(capture(work, generate_code=False)[0], tmp_path)
    drawn = {k.plan.phase for k in kernels if any(op.op == "random" for op in k.plan.ops)}
    assert drawn == ({"forward", "backward"} if again else {"forward"})
    log = SwapLog()
    out = torch.compile(model, backend=swapping(kernels, log))(x)
    x.grad = None
    out.sin().sum().backward()
    assert [outcome.refused for outcome in log.outcomes] == [None] * len(kernels)
    assert x.grad is not None
    assert torch.equal(out == 0, x.grad == 0)
    assert 0.2 < float((out == 0).float().mean()) < 0.4


def test_a_seed_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kernel of Inductor's would copy one number."""
    monkeypatch.setattr(draws, "TWO_STREAMS", False)
    model, x = Dropped(again=False), torch.randn(24, 48)
    found = captured_training(model, x)
    lowered = next(g.lowered for g in found.graphs if g.lowered.graph.phase == "forward").copy()
    (kernel,) = [k for k in kernels_of(found, tmp_path) if k.plan.phase == "forward"]
    (outcome,) = rewrite(
        lowered.fx_graph, lowered.fx_node, lowered.fx_aliases,
        [Swap(kernel, kernel.plan, kernel.plan.sites[0])],
    )  # fmt: skip
    assert outcome.refused is None
    names = [str(node.target) for node in lowered.fx_graph.nodes]
    assert "aten.select.int" in names
    assert "prims.inductor_lookup_seed.default" not in names
    assert "prims.inductor_random.default" not in names


@pytest.mark.parametrize("again", [False, True], ids=["saved", "drawn again"])
def test_a_seed_that_two_kinds_of_kernels_draw_from_is_left_alone(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Inductor's kernels draw two kinds of numbers, only a mask that is saved is safe."""
    monkeypatch.setattr(draws, "TWO_STREAMS", True)
    found = ops_by_phase(Dropped(again), torch.randn(24, 48))
    assert found == {"forward": [] if again else ["random"], "backward": []}
