"""A graph with parts on the CPU and parts on a GPU: kernels are for the GPU's, and for one GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from advisor.apply.rewrite import Outcome, rewrite
from advisor.pipeline.backend import choose_swaps
from advisor.pipeline.graph_programs import programs_of
from collectors.live.fx_graph import Lowered, lower
from tests.builders import captured as models
from tests.builders.torch_graph import ops_of

aten = torch.ops.aten
GPU = torch.device("cuda")
BF16 = torch.bfloat16


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * (wide * scale).to(x.dtype)


def moved(x: torch.Tensor) -> torch.Tensor:
    """To the GPU: where PyTorch knows of none, `Tensor.to` is refused for a fake tensor too."""
    result: torch.Tensor = aten._to_copy.default(x, device=GPU)
    return result


def traced(function: Callable[..., Any], *devices: str, on_gpu: bool = False) -> Lowered:
    """The graph of a function of a matrix and vectors of its columns, each on a device."""
    with FakeTensorMode():
        shapes = [(24, 64), *[(64,)] * (len(devices) - 1)]
        given = [torch.ones(s, dtype=BF16, device=d) for s, d in zip(shapes, devices, strict=True)]
        graph = make_fx(function, decomposition_table=core_aten_decompositions())(*given).graph
    return lower(graph, "mixed", "inference", on_gpu=on_gpu)


def mixed(x: torch.Tensor, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """A norm of what an embedding on the CPU looks up, and one on the GPU: the same program."""
    return norm(moved(norm(x, here)), there)


def swapped(lowered: Lowered) -> tuple[Outcome, ...]:
    plans = models.plans_of(lowered)
    assert plans
    swaps = choose_swaps(programs_of(lowered.graph), [models.ready(plan) for plan in plans])
    return rewrite(lowered.fx_graph, lowered.fx_node, lowered.fx_aliases, swaps)


def devices_of_calls(graph: fx.Graph) -> list[set[str]]:
    """Of every kernel that the graph calls, where the tensors are that it is given."""
    calls = [node for node in graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    return [{node.meta["val"].device.type for node in call.all_input_nodes} for call in calls]


def test_a_kernel_takes_its_place_on_the_gpu_and_leaves_the_same_ops_on_the_cpu() -> None:
    lowered = traced(mixed, "cpu", "cpu", "cuda")
    (outcome,) = swapped(lowered)
    assert outcome.refused is None
    assert devices_of_calls(lowered.fx_graph) == [{"cuda"}]
    left = [str(node.target) for node in lowered.fx_graph.nodes if node.op == "call_function"]
    assert left.count("aten.rsqrt.default") == 1


@pytest.mark.parametrize(("on_gpu", "count"), [(False, 1), (True, 0)])
def test_a_graph_on_the_cpu_stands_for_the_gpus_only_where_there_is_none(
    on_gpu: bool, count: int
) -> None:
    lowered = traced(norm, "cpu", "cpu", on_gpu=on_gpu)
    assert len(models.plans_of(lowered)) == count
    assert (set(ops_of(lowered.graph)) == {"opaque"}) == on_gpu


def test_statistics_and_products_on_the_cpu_are_no_kernels_either() -> None:
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        variance, mean = aten.var_mean.correction(x, [-1], correction=0, keepdim=True)
        product = aten.mm.default((x - mean) * variance, aten.t.default(x))
        return moved(torch.relu(product)) + weight.sum()

    lowered = traced(step, "cpu", "cuda")
    nodes = [node for node in lowered.graph.nodes if node.outputs[0].device == "cpu" and node.args]
    assert {node.op for node in nodes} == {"opaque"}
    assert not any(node.attributes for node in nodes), "nothing that a kernel could take"
    assert not [p for p in programs_of(lowered.graph).programs if {*p.site.nodes} & {
        node.id for node in nodes
    }]  # fmt: skip


def test_a_number_on_the_cpu_is_one_in_a_kernel_on_the_gpu() -> None:
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        half = aten.full.default([], 0.5, dtype=BF16, device=torch.device("cpu"))
        return norm(x * half, weight)

    (outcome,) = swapped(traced(step, "cuda", "cuda"))
    assert outcome.refused is None


def test_a_kernel_reads_the_memory_of_one_gpu() -> None:
    lowered = traced(norm, "cuda", "cuda")
    weight = next(iter(lowered.fx_graph.find_nodes(op="placeholder")[1:]))
    with FakeTensorMode():
        weight.meta["val"] = torch.ones(64, dtype=BF16, device="cuda:1")
    (outcome,) = swapped(lowered)
    assert outcome.refused is not None
    assert "cuda:0" in outcome.refused
    assert "cuda:1" in outcome.refused
    assert devices_of_calls(lowered.fx_graph) == []
