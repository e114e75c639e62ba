"""The backward graph is captured in the layouts that the compiled forward leaves it.

What the compiler decides is its own lowering's word, without code (`tests/builders/lowering.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import fx, nn
from torch.nn import functional

from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Phase
from advisor.model.configs import default_config
from advisor.model.optable import spec_of
from advisor.pipeline.backend import SwapLog, plan_backend
from analyzers.dataflow import Dataflow, dataflow
from analyzers.node_work import source_op_work
from collectors.live import layouts
from collectors.live.as_on_gpu import decomposed_as_on_gpu
from collectors.live.capture import (
    Capture,
    CapturedGraph,
    HookPass,
    backend_with,
    capture,
    no_compile_caches,
)
from collectors.live.workload import Workload
from tests.builders import captured as models
from tests.builders.interpreted import swapping
from tests.builders.lowering import lowered, outputs_of

CPU = torch.device("cpu")
H200 = gpu_by_key("h200")
CHANNELS_LAST = (6400, 1, 800, 80)


class Block(nn.Module):
    """Norms between convolutions; parts, views and row sums of what these write."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm = nn.GroupNorm(8, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.mixed = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = self.first(x).chunk(2, 1)
        hidden = self.second(functional.silu(self.norm(left))) * torch.sigmoid(right)
        rows = torch.softmax(self.mixed(hidden.flatten(2).transpose(1, 2)), -1)
        return hidden + rows.transpose(1, 2).reshape(hidden.shape), hidden.mean((2, 3))


def training(width: int = 80) -> Workload:
    torch.manual_seed(0)
    model, x = Block(width), torch.randn(2, width, 8, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(part: Callable[..., Any]) -> torch.Tensor:
        whole, mean = part(x)
        result: torch.Tensor = whole.square().mean() + mean.square().mean()
        return result

    return Workload("net", "training", CPU, model, optimizer=optimizer, loss=loss)


def backward_of(found: Capture) -> CapturedGraph:
    (graph,) = [item for item in found.graphs if item.lowered.graph.phase == "backward"]
    return graph


def strides(graph: fx.Graph, shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The strides of all tensors of a shape that a graph is given."""
    values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    return {value.stride() for value in values if tuple(value.shape) == shape}


def step(work: Workload, backend: Callable[..., Any]) -> None:
    """One step compiled anew by a backend, decomposed as on a GPU."""
    torch.compiler.reset()
    with no_compile_caches(), decomposed_as_on_gpu():
        work.step_of(lambda part: torch.compile(part, backend=backend))()


def test_a_backward_graph_reads_what_convolutions_left_channels_last() -> None:
    graph = backward_of(capture(training(), generate_code=False)[0]).lowered.fx_graph
    # The gradient that comes from outside is laid out as the result that the caller sees.
    assert strides(graph, (2, 80, 8, 10)) == {CHANNELS_LAST, (6400, 80, 10, 1)}
    (norm,) = [n for n in graph.nodes if n.name == "convolution_backward"]
    assert norm.meta["val"][0].stride() == CHANNELS_LAST


def test_few_channels_stay_as_they_are() -> None:
    """As on a GPU: on a CPU the compiler would lay these out otherwise, too."""
    graph = backward_of(capture(training(32), generate_code=False)[0]).lowered.fx_graph
    assert strides(graph, (2, 32, 8, 10)) == {(2560, 80, 10, 1)}


def test_layouts_are_those_that_the_compiler_decides_on_by_itself() -> None:
    """Nothing is held here: the rule against the lowering, result by result."""
    expected: list[tuple[int, ...] | None] = []
    found: list[tuple[int, ...] | None] = []

    def rule(graph: fx.Graph, phase: Phase, identity: str) -> None:
        if phase == "forward":
            (output,) = graph.find_nodes(op="output")
            expected.extend(layouts._saved_strides(graph, output))

    def inner(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        result = lowered(gm, inputs, **kwargs)
        context = torch._guards.TracingContext.get()
        if not kwargs.get("is_backward"):
            shapes = [node.meta["val"].shape for node in outputs_of(gm)]
            told = zip(shapes, context.output_strides or (), strict=True)
            found.extend(walked(shape, own) for shape, own in told)
            expected[:] = [walked(shape, own) for shape, own in zip(shapes, expected, strict=True)]
        return result

    step(training(), backend_with(HookPass(rule, "rule"), inner))
    saved = [(mine, own) for mine, own in zip(expected, found, strict=True) if mine is not None]
    assert saved
    assert [mine for mine, _ in saved] == [own for _, own in saved]
    assert (6400, 1, 800, 80) in [own for _, own in saved]


def walked(shape: tuple[int, ...], given: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Strides, 0 along axes of one element, along which nobody walks."""
    if given is None:
        return None
    return tuple(own if size > 1 else 0 for size, own in zip(shape, given, strict=True))


@pytest.fixture(scope="module")
def found() -> Capture:
    return capture(training(), generate_code=False)[0]


def kernels_of(found: Capture, folder: Path, *phases: Phase) -> list[ReadyKernel]:
    """A kernel for every plan of the phases; the longest programs claim their sites first."""
    plans = [plan for item in found.graphs for plan in models.plans_of(item.lowered)]
    plans = sorted(plans, key=lambda plan: -len(plan.ops))
    return [
        load_kernel(plan, folder, default_config(plan, plan.sites[0]))
        for plan in plans
        if plan.phase in phases
    ]


PHASES: tuple[Phase, ...] = ("forward", "backward")


@pytest.mark.parametrize("phases", [PHASES, ("forward",), ("backward",)], ids="+".join)
def test_plans_have_their_sites_whatever_else_is_swapped_in(
    phases: tuple[Phase, ...], found: Capture, tmp_path: Path
) -> None:
    """A kernel in the forward changes which results the compiler wants channels-last."""
    kernels, log = kernels_of(found, tmp_path, *phases), SwapLog()
    assert {kernel.plan.phase for kernel in kernels} == {*phases}
    step(training(), plan_backend(kernels, log, lowered))
    swapped = [log.swapped(kernel.plan.id) for kernel in kernels]
    assert swapped == [len(kernel.plan.sites) for kernel in kernels]


def test_kernels_around_convolutions_compute_what_they_replace(
    found: Capture, tmp_path: Path
) -> None:
    """Both passes are run: results and gradients are eager's."""
    work, log = training(), SwapLog()
    part = torch.compile(work.part, backend=swapping(kernels_of(found, tmp_path, *PHASES), log))
    with decomposed_as_on_gpu():
        ours = work.results_of(lambda _: part)
    assert {outcome.refused for outcome in log.outcomes} == {None}
    assert {outcome.swap.kernel.plan.phase for outcome in log.outcomes} == {*PHASES}
    for mine, theirs in zip(ours, work.results_of(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_what_a_kernel_writes_is_saved_as_if_the_compiler_wrote_it(
    found: Capture, tmp_path: Path
) -> None:
    saved: list[tuple[int, ...] | None] = []

    def inner(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        result = lowered(gm, inputs, **kwargs)
        if not kwargs.get("is_backward"):
            saved.extend(torch._guards.TracingContext.get().output_strides or ())
        return result

    kernels = kernels_of(found, tmp_path, "forward")
    step(training(), plan_backend(kernels, SwapLog(), inner))
    plain = list(saved)
    saved.clear()
    step(training(), backend_with(HookPass(lambda *_: None, "plain"), inner))
    shapes = [node.meta["val"].shape for node in returned(found)]
    mine = [walked(shape, own) for shape, own in zip(shapes, plain, strict=True)]
    theirs = [walked(shape, own) for shape, own in zip(shapes, saved, strict=True)]
    assert mine == theirs


def returned(found: Capture) -> list[fx.Node]:
    """The results of the captured forward."""
    forward = next(item for item in found.graphs if item.lowered.graph.phase == "forward")
    (output,) = forward.lowered.fx_graph.find_nodes(op="output")
    return list(output.args[0])


def test_eager_code_is_priced_in_its_own_layouts(found: Capture) -> None:
    graph = backward_of(found).lowered.graph
    assert (6400, 80, 10, 1) in graph.eager_strides.values()
    as_eager, as_compiled = (
        [
            work.pattern
            for name in pointwise(flow)
            for work in source_op_work(flow, {name}, 1, H200)
        ].count("index")
        for flow in (dataflow(graph), dataflow(replace(graph, eager_strides={})))
    )
    # Compiled, more of them read tensors in two orders.
    assert as_eager < as_compiled


def pointwise(flow: Dataflow) -> list[str]:
    """The pointwise nodes over the whole of the block's channels."""
    return [
        node.id
        for node in flow.graph.nodes
        if spec_of(node.op).kind == "pointwise" and node.outputs[0].shape == (2, 80, 8, 10)
    ]
