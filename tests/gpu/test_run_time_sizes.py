"""Kernels in graphs for any number of rows, compiled by Inductor: right at each, no new graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.model.configs import default_config
from advisor.model.launch import LaunchConfig
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.pipeline.likeness import difference
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders import captured as models
from tests.builders.interpreted_graphs import CASES, Make, mark, plans_of, tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
SIZES = (12, 29, 4096, 5001, 2)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


def kernels_of(
    step: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    folder: Path,
    config: LaunchConfig | None = None,
    name: str = "",
) -> list[ReadyKernel]:
    """A kernel for every plan of a step as it is at one size."""
    work = Workload("sizes", "inference", CUDA, step, inputs=inputs)
    graphs = capture(work, generate_code=False)[0].graphs
    plans = [plan for item in graphs for plan in plans_of(name, item.lowered)]
    torch._dynamo.reset()
    return [load_kernel(p, folder, config or default_config(p, p.sites[0])) for p in plans]


def on_card(make: Make, rows: int) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(CUDA) for tensor in make(rows))


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "cuda graphs"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_one_graph_serves_any_number_of_rows(case: Any, graphs: bool, tmp_path: Path) -> None:
    name, step, make, axes, config = case
    kernels = kernels_of(step, on_card(make, 16), tmp_path, config, name)
    log = SwapLog()
    backend = plan_backend(kernels, log, **({"triton.cudagraphs": True} if graphs else {}))
    compiled = torch.compile(step, backend=backend)
    with torch.no_grad():
        for rows in (*SIZES, *SIZES):
            inputs = on_card(make, rows)
            mark(inputs, axes)
            got = [tensor.clone() for tensor in tensors(compiled(*inputs))]
            torch.testing.assert_close(got, list(tensors(step(*inputs))), rtol=1e-4, atol=2e-3)
    assert [o.refused for o in log.outcomes] == [None]
    assert log.outcomes[0].swap.site.run_time is not None


class Model(nn.Module):
    """Norms of both spellings between products: gradients are sums over rows of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 768), models.RMSNorm(768), nn.Linear(768, 768), nn.LayerNorm(768),
            nn.Linear(768, 256),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.layers(x), -1)


def test_training_at_sizes_that_change(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().to(CUDA)
    first = torch.randn(2048, 256, device=CUDA)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = Workload(
        "sizes", "training", CUDA, model, optimizer=optimizer,
        loss=lambda part: part(first).square().mean(),
    )  # fmt: skip
    graphs = capture(work, generate_code=False)[0].graphs
    plans = [plan for item in graphs for plan in models.plans_of(item.lowered)]
    plans.sort(key=lambda plan: -len(plan.ops))
    kernels = [load_kernel(p, tmp_path, default_config(p, p.sites[0])) for p in plans]
    torch._dynamo.reset()
    log = SwapLog()
    part = torch.compile(model, backend=plan_backend(kernels, log))
    seen = []
    for rows in (2048, 1536, 77, 4096, 2048):
        x = torch.randn(rows, 256, device=CUDA)
        found = []
        for way in (model, part):
            model.zero_grad()
            loss = way(x).square().mean()
            loss.backward()
            grads = (p.grad for p in model.parameters() if p.grad is not None)
            found.append([loss.detach(), *(grad.clone() for grad in grads)])
        assert difference(found[1], found[0]) < 1e-3
        seen.append(len(log.outcomes))
    assert [o.refused for o in log.outcomes] == [None] * len(log.outcomes)
    assert any(o.swap.site.run_time is not None for o in log.outcomes)
    assert seen[0] < seen[1] == seen[-1], "one graph for the first size, one for any other"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float() * 2, -1).to(x.dtype)


def test_no_row_and_one(tmp_path: Path) -> None:
    """Dynamo compiles those anew; what any other number has stays right."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return softmax(x[2:])

    kernels = kernels_of(step, (torch.randn(64, 768, device=CUDA),), tmp_path)
    log = SwapLog()
    compiled = torch.compile(step, backend=plan_backend(kernels, log))
    for rows in (64, 48, 3, 2, 4, 64):
        x = torch.randn(rows, 768, device=CUDA)
        torch.testing.assert_close(compiled(x), step(x))
    assert {o.refused for o in log.outcomes} == {None}
    assert any(o.swap.site.run_time is not None for o in log.outcomes)


def test_more_elements_than_32_bits_number(tmp_path: Path) -> None:
    """Compiled at few rows, run at 2.3e9 elements."""
    free, _ = torch.cuda.mem_get_info()
    if free < 60 << 30:
        pytest.skip("needs 60 GiB of free memory")
    kernels = kernels_of(softmax, (torch.randn(64, 8192, device=CUDA).half(),), tmp_path)
    log = SwapLog()
    compiled = torch.compile(softmax, backend=plan_backend(kernels, log))
    for rows in (64, 280_001):
        x = torch.randn(rows, 8192, device=CUDA, dtype=torch.float16)
        torch._dynamo.mark_dynamic(x, 0)
        got = compiled(x)
        for part in (slice(0, 50), slice(-50, None)):
            torch.testing.assert_close(got[part], softmax(x[part]), rtol=1e-3, atol=1e-5)
    assert [o.refused for o in log.outcomes] == [None]
