"""Cases from the field that a captured graph decides: the small reproduction and the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch.nn import functional

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Finding
from advisor.model.graph import Graph
from advisor.model.optable import spec_of
from advisor.model.site_work import site_arithmetic
from analyzers.exposure import Situation
from analyzers.opportunities import Advice, PricedGraph, advise
from analyzers.row_plans import canonical_program
from analyzers.row_programs import RowPrograms, find_row_programs
from tests.analyzers.planted.captured import Model, answer, described, tensors
from tests.builders.captured import captured, captured_training

GPU = gpu_by_key("h200")
EAGER = Situation(GPU, default_calibration(GPU), eager=True)
Tensor = torch.Tensor


@torch.library.custom_op("field::scaled_mm", mutates_args=())
def scaled_mm(q: Tensor, scale: Tensor, w: Tensor) -> Tensor:
    """A matrix product of the user's own that takes the scales too."""
    return (q.float() * scale) @ w


@scaled_mm.register_fake
def _(q: Tensor, scale: Tensor, w: Tensor) -> Tensor:
    return q.new_empty((q.shape[0], w.shape[1]), dtype=torch.float32)


@torch.library.custom_op("field::attend_", mutates_args=("cache",))
def attend_(cache: Tensor, keys: Tensor) -> None:
    """Writes this step's keys into its part of the cache."""
    cache.copy_(keys)


def graphs_of(function: Callable[..., Any], *inputs: Tensor) -> list[Graph]:
    return [item.lowered.graph for item in captured(function, *inputs).graphs]


def found_in(function: Callable[..., Any], *inputs: Tensor) -> RowPrograms:
    return find_row_programs(graphs_of(function, *inputs)[-1])


def advice_for(function: Callable[..., Any], *inputs: Tensor) -> Advice:
    return advise([PricedGraph(graph) for graph in graphs_of(function, *inputs)], EAGER)


def reasons(found: RowPrograms, name: str) -> list[str]:
    node = described(found.flow.graph)[name]
    return [miss.reason for miss in found.near_misses if miss.node == node]


def test_epilogue_branches_of_a_matmul_are_no_row_program() -> None:
    """Case 4: four gated branches with six more inputs behind a product: measure first."""

    def branches(a: Tensor, b: Tensor, *g: Tensor) -> Tensor:
        x = a @ b
        gated = [torch.sigmoid(x + 0.1 * i) * gate for i, gate in enumerate(g)]
        return (gated[0] + gated[1]) * (gated[2] + gated[3])

    advice = advice_for(branches, *tensors((64, 48), (48, 32), *[(64, 32)] * 4)())
    assert not advice.findings


def test_both_reductions_of_a_norm_backward_are_told_apart() -> None:
    """Case 7: dx reduces over the columns, dw over the rows of the same tensors."""

    def norm(w: Tensor, x: Tensor) -> Tensor:
        y = x.tanh()
        return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * w

    model = Model(norm, (32,))
    x = torch.randn(16, 32, requires_grad=True)
    graphs = [item.lowered.graph for item in captured_training(model, x).graphs]
    found = find_row_programs(next(g for g in graphs if g.phase == "backward"))
    names = described(found.flow.graph)
    down = [
        name
        for name, node in names.items()
        if name.startswith("sum") and found.flow.nodes[node].axes == (0,)
    ]
    along = [
        group
        for group in found.whole
        if any(found.flow.nodes[n].op == "sum" for n in group.members)
    ]
    assert down
    assert along
    for name in down:
        (group,) = [group for group in found.whole if names[name] in group.members]
        assert found.flow.nodes[names[name]].value() in group.space.late


def test_a_sum_over_experts_begins_behind_the_gather() -> None:
    """Case 8: weight and sum over a middle axis are one pass; what is gathered is read from it."""

    def combine(rows: Tensor, at: Tensor, weights: Tensor) -> Tensor:
        return (rows[at] * weights.unsqueeze(-1)).sum(1)

    at = torch.randint(0, 64, (16, 4), generator=torch.Generator().manual_seed(0))
    found = found_in(combine, torch.randn(64, 32), at, torch.rand(16, 4))
    (group,) = found.whole
    assert [found.flow.nodes[name].op for name in group.members] == ["mul", "sum"]


@pytest.mark.parametrize("columns", [512, 131_072])
def test_a_single_library_softmax_is_left_alone(columns: int) -> None:
    """Case 10: one well-tuned kernel is nothing to fuse; a row that long fits in no program."""
    assert not advice_for(lambda x: x.softmax(-1), torch.randn(16, columns)).findings


def test_a_loss_alone_has_nothing_to_fuse() -> None:
    """Case 11: cross-entropy forward is one region of library kernels."""
    labels = torch.randint(0, 100, (64,), generator=torch.Generator().manual_seed(0))
    assert not advice_for(functional.cross_entropy, torch.randn(64, 100), labels).findings


def test_a_second_consumer_keeps_the_store_but_not_the_ops_apart() -> None:
    """Case 13: scales also feed a product of the user's own; reduction and cast still fuse."""

    def quantised(x: Tensor, w: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127.0
        return scaled_mm((x / scale).round().to(torch.int8), scale, w)

    found = found_in(quantised, torch.randn(16, 32), torch.randn(32, 8))
    assert answer(found) == ["abs amax div div round cast"]
    names = described(found.flow.graph)
    assert set(found.whole[0].space.outputs) == {f"%{names['div#1']}", f"%{names['cast']}"}
    assert reasons(found, "scaled_mm") == ["field.scaled_mm.default is not a row operation"]


def test_an_update_in_place_is_a_blocker() -> None:
    """Case 14: the parameter is written; what reads it before and after stays in order."""

    def step(p: Tensor, g: Tensor) -> Tensor:
        norm = g.pow(2).sum(-1, keepdim=True).sqrt()
        p.sub_(g / (norm + 1e-6))
        return norm

    found = found_in(step, torch.randn(16, 32), torch.randn(16, 32))
    assert answer(found) == ["mul sum sqrt add div sub"]
    assert reasons(found, "copy_") == ["aten.copy_.default writes to one of its inputs"]


def test_a_cache_written_through_a_slice_is_no_part_of_a_kernel() -> None:
    """Case 15: the copy of the whole cache is a bug to remove, not a copy to fuse."""

    def decode(cache: Tensor, keys: Tensor) -> Tensor:
        attend_(cache[4:8], keys.softmax(-1))
        return cache.softmax(-1)

    found = found_in(decode, torch.randn(16, 32), torch.randn(4, 32))
    members = {found.flow.nodes[name].op for group in found.whole for name in group.members}
    assert members == {"amax", "sub", "exp", "sum", "div"}
    assert all("copy" not in found.flow.nodes[n].target for g in found.whole for n in g.own)
    assert reasons(found, "auto_functionalized_v2")


def test_random_numbers_are_drawn_inside_and_counted() -> None:
    """Case 17: a fused dropout draws its random numbers, and their arithmetic is in its price."""

    def dropped(x: Tensor) -> Tensor:
        return functional.dropout(x.softmax(-1), 0.1, True)

    found = found_in(dropped, torch.randn(16, 32))
    (group,) = found.whole
    plan = canonical_program(found.flow, group).as_plan("0" * 16, "", "inference")
    assert [op.name for op in plan.ops if op.op == "random"]
    bare = msgspec.structs.replace(plan, ops=tuple(op for op in plan.ops if op.op != "random"))
    more = site_arithmetic(plan, plan.sites[0])[0] - site_arithmetic(bare, plan.sites[0])[0]
    assert more == 16 * 32 * spec_of("random").flops
    advice = advice_for(dropped, torch.randn(512, 1024))
    texts = [item.text for finding in advice.findings for item in finding.evidence]
    assert any("another one than eager's" in text for text in texts)


def saved(finding: Finding) -> float:
    values = [item.values.get("kernel_saving_ns") for item in finding.evidence]
    return next(float(value) for value in values if isinstance(value, (int, float)))


def test_a_saving_is_bounded_by_the_bytes_and_launches_that_go() -> None:
    """Case 16: fewer kernels are no speed-up: the saving is at most traffic and launches."""

    def gated(g: Tensor, u: Tensor) -> Tensor:
        return functional.rms_norm(functional.silu(g) * u, (1024,))

    advice = advice_for(gated, torch.randn(512, 1024), torch.randn(512, 1024))
    (finding,) = advice.findings
    prediction = advice.plans[0].prediction
    assert prediction is not None
    removed = prediction.bytes_before - prediction.bytes_after
    slowest = GPU.dram_bandwidth_bytes_per_s / 4
    launches = 16 * EAGER.calibration.launch_ns
    assert saved(finding) <= removed / slowest * 1e9 + launches
