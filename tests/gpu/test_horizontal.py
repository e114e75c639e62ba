"""One launch for several programs, and for a whole optimizer, on the GPU itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import load_kernel, write_source
from advisor.apply.model.multi_tensor import own_step, use_multi_tensor
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.apply.model.step_graph import StepGraph, prepare_optimizer
from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model import base
from advisor.model.configs import candidate_configs
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import timing
from analyzers.exposure import Situation
from analyzers.opportunities import PricedGraph, advise
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders import members as m
from tests.builders.verified import verify_numerics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
H200 = gpu_by_key("h200")


class Branches(nn.Module):
    """Independent branches of linear, RMS norm, SiLU and linear, summed at the end."""

    def __init__(self, count: int = 8, width: int = 256) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(count))
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = zip(self.down, self.norms, self.up, strict=True)
        found = [up(nn.functional.silu(norm(down(x)))) for down, norm, up in layers]
        return torch.stack(found).sum(0)


def test_members_in_every_configuration(tmp_path: Path) -> None:
    plan = m.group(
        *(m.rms_norm(rows, 1024, "bfloat16") for rows in (512, 512, 100, 1)),
        m.softmax(64, 333),
        m.bias_act(40, 96),
        m.flat(50, 1000),
    )
    (tmp_path / "plan.json").write_bytes(base.encode(plan))
    _, path = write_source(plan, tmp_path, "dealt")
    for config in candidate_configs(plan, plan.sites[0]):
        found = verify_numerics(tmp_path / "plan.json", path, device="cuda", config=config)
        assert found.passed, [case for case in found.cases if not case.passed]


def group_of(module: nn.Module, x: torch.Tensor) -> FusionPlan:
    work = Workload("test", "inference", CUDA, module, inputs=(x,))
    graphs, _ = capture(work, generate_code=False)
    situation = Situation(H200, default_calibration(H200), eager=False)
    advice = advise([PricedGraph(item.lowered.graph) for item in graphs.graphs], situation)
    (plan,) = [plan for plan in advice.plans if plan.members]
    return plan


@pytest.mark.parametrize("graphed", [False, True])
def test_a_group_in_the_compiled_model(graphed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Branches().to(CUDA, torch.bfloat16).eval()
    x = torch.randn(128, 256, device=CUDA, dtype=torch.bfloat16)
    with torch.no_grad():
        plan = group_of(module, x)
        assert len(plan.members) == 8
        kernel = load_kernel(plan, tmp_path, candidate_configs(plan, plan.sites[0])[0])
        log = SwapLog()
        settings: dict[str, Any] = {"triton.cudagraphs": graphed}
        torch.compiler.reset()
        ours = torch.compile(module, backend=plan_backend([kernel], log, **settings))
        torch_own = torch.compile(copy.deepcopy(module), options=settings)
        with no_compile_caches():
            for _ in range(3):
                mine, theirs = ours(x).clone(), torch_own(x).clone()
        assert log.swapped(plan.id) == 1, log.refusals(plan.id)
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
        measured = gpu_recorder({"ours": lambda: ours(x), "inductor": lambda: torch_own(x)}, 20)
    took = {name: timing(values).median_ns for name, values in measured.items()}
    assert took["ours"] < took["inductor"], took


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
}


def parameters() -> list[nn.Parameter]:
    """Shapes of twelve small transformer layers: matrices, vectors, an odd one."""
    shapes = [(768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), (33, 7)] * 12
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(s, device=CUDA) * 0.02) for s in shapes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def stepped(optimizer: torch.optim.Optimizer, gradients: list[torch.Tensor]) -> None:
    """A step with these gradients: PyTorch's own with Nesterov's momentum adds to them in place."""
    own = [p.grad for p in optimizer.param_groups[0]["params"]]
    torch._foreach_copy_(own, gradients)
    optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_in_a_cuda_graph_counts_and_reads_the_rate(name: str) -> None:
    """Replayed with a rate that changed since: as the optimizer's own fused step in a graph."""
    results = []
    for ours in (False, True):
        held = parameters()
        optimizer = OPTIMIZERS[name](held)
        assert (use_multi_tensor if ours else fuse_optimizer)(optimizer) is None
        assert prepare_optimizer(optimizer) is None
        graph = StepGraph(
            partial(stepped, optimizer, [p.grad.clone() for p in held if p.grad is not None])
        )
        for step in range(3):
            optimizer.param_groups[0]["lr"].fill_(1e-3 * (step + 1))
            graph()
        results.append([parameter.detach().clone() for parameter in held])
        own_step(optimizer)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_adamw_takes_about_the_time_of_the_fused_one() -> None:
    """An action is kept by measurement only; that it competes is shown here."""
    fused, ours = (OPTIMIZERS["adamw"](parameters()) for _ in range(2))
    assert fuse_optimizer(fused) is None
    assert use_multi_tensor(ours) is None
    for optimizer in (fused, ours):
        optimizer.step()
        optimizer.step()
    measured = gpu_recorder({"fused": fused.step, "ours": ours.step}, 20)
    took = {name: timing(values).median_ns for name, values in measured.items()}
    assert took["ours"] <= 1.1 * took["fused"], took
