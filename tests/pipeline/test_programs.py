"""Programs that nobody special-cased go through the same code: capture, plan, kernel, proof."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.apply.kernels import write_source
from advisor.model import base
from advisor.model.applied import Numerics
from advisor.model.configs import default_config
from advisor.model.plan import FusionPlan
from advisor.pipeline.candidates import Candidate, check_regions
from advisor.verify.region import region_disagreement
from tests.builders import captured as models
from tests.builders.verified import verify_numerics


def proved(plan: FusionPlan, folder: Path) -> Numerics:
    """The verdict on the kernel of a plan, as `apply` obtains it.

    Two rows a block: the interpreter takes as long for masked rows as for those of the cases.
    """
    path = folder / f"{plan.id}.json"
    path.write_bytes(base.encode(plan))
    config = msgspec.structs.replace(default_config(plan, plan.sites[0]), block_rows=2)
    _, kernel = write_source(plan, folder / "kernels", config.scheme)
    return verify_numerics(path, kernel, device="cpu", config=config)


def test_softcap_masked_softmax_and_cast_with_two_outputs(tmp_path: Path) -> None:
    scores, mask = torch.randn(2, 4, 16, 72), torch.zeros(2, 1, 16, 72)
    lowered = models.captured(models.SoftCap(), scores, mask).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    assert {(out.space, out.dtype) for out in plan.outputs} == {
        ("tile", "bfloat16"),
        ("row", "float32"),
    }
    ops = [op.op for op in plan.ops]
    assert {"tanh", "amax", "exp", "sum", "log"} <= set(ops)
    assert plan.sites[0].columns == 72
    assert plan.row_axes == 3, "the mask repeats along the heads alone"
    assert region_disagreement(plan, plan.sites[0], lowered.fx_aliases, models.CPU) is None
    found = proved(plan, tmp_path)
    assert [case for case in found.cases if not case.passed] == []


def test_gradients_of_a_norm_in_a_training_step(tmp_path: Path) -> None:
    step = torch.nn.Sequential(torch.nn.Linear(56, 56), models.RMSNorm(56))
    graphs = models.captured_training(step, torch.randn(12, 56)).graphs
    assert [item.lowered.graph.phase for item in graphs] == ["forward", "backward"]
    for item in graphs:
        (plan,) = models.plans_of(item.lowered)
        assert region_disagreement(plan, plan.sites[0], item.lowered.fx_aliases, models.CPU) is None
        found = proved(plan, tmp_path)
        assert [case for case in found.cases if not case.passed] == []


@pytest.mark.parametrize("name", ["layer norm", "cross entropy", "row quantisation"])
def test_other_row_programs(name: str, tmp_path: Path) -> None:
    def layer_norm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x) + y, (40,))

    def cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.log_softmax(x, -1) * torch.softmax(y, -1)).sum(-1)

    def quantised(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = (x * y).abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return torch.floor(x * y / scale + 0.5).clamp(-128, 127), scale

    step = {"layer norm": layer_norm, "cross entropy": cross_entropy, "row quantisation": quantised}
    lowered = models.captured(step[name], torch.randn(6, 40), torch.randn(6, 40)).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    assert region_disagreement(plan, plan.sites[0], lowered.fx_aliases, models.CPU) is None
    found = proved(plan, tmp_path)
    assert [(case.name, case.detail) for case in found.cases if not case.passed] == []


def test_a_scaled_softmax_is_one_program(tmp_path: Path) -> None:
    """The compiler guards the product of scale and scores by a test for infinities in the row."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x) * 20.0, dim=-1)

    lowered = models.captured(step, torch.randn(6, 40).bfloat16()).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    assert len(plan.inputs) == len(plan.outputs) == 1
    assert region_disagreement(plan, plan.sites[0], lowered.fx_aliases, models.CPU) is None
    found = proved(plan, tmp_path)
    assert [(case.name, case.detail) for case in found.cases if not case.passed] == []


def test_every_site_of_a_plan_is_compared_with_its_own_region() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), torch.softmax(y, -1)

    found = models.captured(step, torch.randn(6, 40), torch.randn(6, 40))
    (plan,) = models.plans_of(found.graphs[0].lowered)
    first, second = plan.sites
    crossed = msgspec.structs.replace(second, outputs=first.outputs)
    plans = {"right": plan, "crossed": msgspec.structs.replace(plan, sites=(first, crossed))}
    candidates = {name: Candidate(item) for name, item in plans.items()}
    check_regions(candidates, found, models.CPU, lambda *_, **__: None)
    assert candidates["right"].refused is None
    assert "the region also reads" in (candidates["crossed"].refused or "")
