"""On the card: the backward graph that Inductor compiles is the captured one, and plans run there.

Inductor lays out what convolutions touch channels-last, what is saved for the backward included.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import fx, nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.judge import outputs_agree
from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.model.base import Phase
from advisor.model.configs import default_config
from advisor.pipeline.backend import SwapLog
from advisor.pipeline.likeness import difference
from advisor.pipeline.switch import GraphSwitch
from advisor.samples import resnet_block, unet_block
from collectors.live.capture import Capture, capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders import captured as models

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
SAMPLES = {"unet": unet_block, "resnet": resnet_block}
LAYOUTS = (torch.contiguous_format, torch.channels_last)
EPSILON = torch.finfo(torch.bfloat16).eps


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


def training(name: str, layout: torch.memory_format) -> Workload:
    with CUDA:
        model, optimizer, loss = SAMPLES[name].train()
    moved: nn.Module = model.to(CUDA).to(memory_format=layout)
    return Workload(name, "training", CUDA, moved, optimizer=optimizer, loss=loss)


def saved(found: Capture) -> dict[str, tuple[int, ...]]:
    """The strides of what the backward graph is given, 0 along axes of one element."""
    (graph,) = [i.lowered.fx_graph for i in found.graphs if i.lowered.graph.phase == "backward"]
    return {node.name: walked(node) for node in graph.find_nodes(op="placeholder")}


def walked(node: fx.Node) -> tuple[int, ...]:
    value = node.meta["val"]
    pairs = zip(value.shape, value.stride(), strict=True)
    return tuple(stride if size > 1 else 0 for size, stride in pairs)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_captured_backward_is_laid_out_as_the_compiled_one(
    name: str, layout: torch.memory_format
) -> None:
    compiled = saved(capture(training(name, layout), generate_code=True)[0])
    assert saved(capture(training(name, layout), generate_code=False)[0]) == compiled


def kernels_of(found: Capture, folder: Path, phase: Phase) -> list[ReadyKernel]:
    plans = [plan for item in found.graphs for plan in models.plans_of(item.lowered)]
    plans.sort(key=lambda plan: -len(plan.ops))
    return [
        load_kernel(plan, folder, default_config(plan, plan.sites[0]))
        for plan in plans
        if plan.phase == phase
    ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", SAMPLES)
def test_graphs_of_a_step_are_exchanged_one_by_one(
    name: str, layout: torch.memory_format, tmp_path: Path
) -> None:
    """A trial swaps kernels into the forward; the backward that was compiled before reads it."""
    work = training(name, layout)
    found = capture(work, generate_code=False)[0]
    switch = GraphSwitch()
    part = torch.compile(work.part, backend=switch.backend())
    plain = work.results_of(lambda _: part)
    eager = work.results_of()
    baseline = difference(plain, eager)
    phases: tuple[Phase, ...] = ("forward", "backward")
    for phase in phases:
        kernels, log = kernels_of(found, tmp_path, phase), SwapLog()
        assert kernels
        switch.select(switch.with_kernels(kernels, log))
        swapped = [log.swapped(kernel.plan.id) for kernel in kernels]
        assert swapped == [len(kernel.plan.sites) for kernel in kernels]
        error = difference(work.results_of(lambda _: part), eager)
        assert outputs_agree(error, baseline, EPSILON), f"{phase}: {error:.2e}, {baseline:.2e}"
