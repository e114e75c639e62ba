"""Capture: what the compiler sees of real torch functions, leaving no trace in the workload."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.fx_passes import joint_graph
from torch.nn import functional

from advisor.errors import WorkloadError
from advisor.model.graph import Graph
from advisor.verify.region import region_disagreement
from analyzers.dataflow import dataflow
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from collectors.live.capture import Capture, capture, running_backend
from collectors.live.fx_builder import short_path
from collectors.live.workload import Workload, load_workload
from tests.builders.torch_graph import ops_of

CPU = torch.device("cpu")


class Calls(nn.Module):
    """A function as a module, with parameters if it needs any."""

    def __init__(self, function: Callable[..., Any], *parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.held = nn.ParameterList(nn.Parameter(p) for p in parameters)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *tuple(self.held))  # PyTorch 2.11 unpacks no ParameterList


def inference(function: Callable[..., Any], *inputs: torch.Tensor) -> Workload:
    return Workload("test", "inference", CPU, Calls(function), inputs=inputs)


def training(model: nn.Module, *inputs: torch.Tensor) -> Workload:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Workload(
        "test",
        "training",
        CPU,
        model,
        optimizer=optimizer,
        loss=lambda m: m(*inputs).square().mean(),
    )


def captured(workload: Workload) -> Capture:
    return capture(workload, generate_code=False)[0]


def only(workload: Workload) -> Graph:
    (item,) = captured(workload).graphs
    return item.lowered.graph


def softcap(x: torch.Tensor, mask: torch.Tensor) -> Any:
    scores = torch.tanh(x / 30.0) * 30.0
    weights = torch.softmax(scores.masked_fill(mask, float("-inf")).float(), -1)
    return weights.to(torch.bfloat16), scores


def quantise(x: torch.Tensor) -> Any:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127.0
    return (x / scale).clamp(-128, 127), scale


HALF = torch.bfloat16
X, MASK = torch.randn(4, 16, 32), torch.ones(16, 32, dtype=torch.bool).triu(1)
WEIGHT, LABELS = torch.randn(32), torch.arange(4 * 16) % 32
# name, function, inputs, ops of every group in order of the graph
FUNCTIONS: tuple[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...], tuple[str, ...]], ...] = (
    ("softmax", lambda x: torch.softmax(x, -1), (X,), ("amax sub exp sum div",)),
    ("log softmax", lambda x: torch.log_softmax(x, -1), (X,), ("amax sub exp sum log sub",)),
    ("softmax over another axis", lambda x: torch.softmax(x, 1), (X,), ("sub exp sum",)),
    ("layer norm", lambda x, w: functional.layer_norm(x, (32,), w, w), (X, WEIGHT),
     ("var mean add rsqrt sub mul mul add",)),
    ("RMS norm in half precision", lambda x, w: functional.rms_norm(x, (32,), w),
     (X.to(HALF), WEIGHT.to(HALF)),
     ("cast mul mean add rsqrt mul cast mul",)),
    ("group norm", lambda x: functional.group_norm(x, 4), (X,), ("var mean add rsqrt sub mul",)),
    ("row quantisation", quantise, (X,), ("abs amax maximum div div maximum minimum",)),
    ("normalise", lambda x: functional.normalize(x, dim=-1), (X,), ("mul sum sqrt maximum div",)),
    ("softcap", softcap, (X, MASK), ("div tanh mul where amax sub exp sum div cast",)),
    ("RMS norm and its gate", lambda x, y: functional.rms_norm(x, (32,)) * functional.silu(y),
     (X, X + 1), ("mul mean add rsqrt mul neg exp add div mul",)),
    ("a softmax in two graphs' worth of views",
     lambda x: torch.softmax(x.view(4, 4, 4, 32).flatten(1, 2), -1).reshape(64, 32) * 2, (X,),
     ("amax sub exp sum div mul",)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("function", "inputs", "groups"), [pytest.param(*rest, id=name) for name, *rest in FUNCTIONS]
)
def test_groups_of_real_functions_compute_their_regions(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], groups: tuple[str, ...]
) -> None:
    (item,) = captured(inference(function, *inputs)).graphs
    graph = item.lowered.graph
    by_id, flow = graph.by_id(), dataflow(graph)
    found = find_row_programs(graph)
    ops = [sorted(by_id[name].op for name in group.members) for group in found.whole]
    assert ops == [sorted(group.split()) for group in groups]
    for group in (*found.whole, *(core for core in found.cores if core)):
        plan = plan_of([canonical_program(flow, group)], "inference", "test")
        assert region_disagreement(plan, plan.sites[0], item.lowered.fx_aliases, CPU) is None


def test_training_gives_a_forward_and_a_backward_graph_whose_groups_hold() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.RMSNorm(32), nn.Softmax(-1))
    found = captured(training(model, X))
    assert [item.lowered.graph.phase for item in found.graphs] == ["forward", "backward"]
    for item in found.graphs:
        graph = item.lowered.graph
        groups = find_row_programs(graph).whole
        assert groups
        for group in groups:
            plan = plan_of([canonical_program(dataflow(graph), group)], graph.phase, "test")
            assert region_disagreement(plan, plan.sites[0], item.lowered.fx_aliases, CPU) is None


def test_the_same_model_captured_twice_has_the_same_fingerprint_and_another_has_not() -> None:
    prints = [
        only(inference(lambda x, s=scale: torch.softmax(x * s, -1), X)).fingerprint()
        for scale in (2.0, 2.0, 3.0)
    ]
    assert prints[0] == prints[1] != prints[2]


def test_capture_leaves_parameters_buffers_gradients_and_the_optimizer_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LayerNorm(8)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    workload = training(model, torch.randn(16, 8))
    assert workload.optimizer is not None
    captured(workload)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, msg=name)
    assert all(p.grad is None for p in model.parameters())
    workload.step_of()()
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_capture_of_a_module_that_writes_its_buffer_leaves_the_buffer_alone() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4, 16, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(torch.softmax(x, -1))  # type: ignore[operator]
            return torch.softmax(self.seen, -1)  # type: ignore[arg-type]

    model = Counting()
    graph = only(Workload("test", "inference", CPU, model, inputs=(X,)))
    assert any(node.mutates for node in graph.nodes)
    assert float(model.seen.abs().sum()) == 0.0  # type: ignore[operator]


def test_a_whole_step_computes_its_own_values_while_it_is_captured() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8)
    expected = nn.Linear(8, 8)
    expected.load_state_dict(model.state_dict())
    functional.softmax(expected(x), -1).square().sum().backward()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.softmax(model(x), -1).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    before = model.weight.detach().clone()
    assert captured(Workload("test", "step", CPU, step)).graphs
    assert expected.weight.grad is not None
    torch.testing.assert_close(model.weight, before - 0.1 * expected.weight.grad)


def test_a_step_with_tensors_made_in_its_code_is_captured() -> None:
    def step() -> torch.Tensor:
        return torch.softmax(X * torch.tensor([1.0, 2.0, 4.0, 8.0] * (X.shape[-1] // 4)), -1)

    function = torch.compile(step)
    assert captured(Workload("test", "step", CPU, function)).graphs


def test_a_step_that_fails_says_what_failed_in_one_line() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with pytest.raises(WorkloadError) as caught:
        captured(inference(fails, X))
    assert "\n" not in caught.value.line()
    assert caught.value.where == "test"


def test_graph_breaks_are_counted_and_both_sides_captured() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(x, -1)
        torch._dynamo.graph_break()
        return torch.softmax(x * 2, -1)

    found = captured(inference(broken, X))
    # Dynamo counts a break once more in every frame that it was inlined into.
    assert found.graph_breaks >= 1
    assert len(found.graphs) == 2
    assert len({item.lowered.graph.id for item in found.graphs}) == 2
    assert found.device_is_assumed
    assert found.compile_ns > 0


def test_code_between_graphs_sees_real_values() -> None:
    """A placeholder would lead it another way, or out of the list."""
    seen: list[int] = []

    def looks(x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(x, -1)
        count = round(x.sum().item())
        # PyTorch 2.11 takes no boolean as a place in a tuple.
        seen.append(("few", "many")[int(count == X.numel() // 32)] == "many")
        return torch.softmax(x[: (None, 3)[int(seen[-1])]] * 2, -1)

    found = captured(inference(looks, X))
    assert seen[-1]
    (group,) = find_row_programs(found.graphs[-1].lowered.graph).whole
    graph = found.graphs[-1].lowered.graph
    assert canonical_program(dataflow(graph), group).site.rows == 3 * 16


def test_a_branch_on_a_tensor_is_a_graph_break() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(x, -1)
        if x.sum() > 0:
            x = x + 1
        return torch.softmax(x * 2, -1)

    found = captured(inference(branches, X))
    assert (found.graph_breaks, len(found.graphs)) == (1, 2)


def test_a_captured_graph_stays_as_the_pass_saw_it() -> None:
    """Later passes of the compiler turn functional writes into writes in place."""

    def writes(x: torch.Tensor) -> torch.Tensor:
        cache = torch.zeros(4, 16, 32)
        cache[:, 2:5] = x[:, 2:5]
        return torch.softmax(cache * x, -1)

    (item,) = captured(inference(writes, X)).graphs
    held = [node for nodes in item.lowered.fx_aliases.values() for node in nodes]
    assert set(held) <= set(item.lowered.fx_graph.nodes)
    assert any("scatter" in str(node.target) for node in held)
    assert len(item.lowered.copy().fx_aliases) == len(item.lowered.fx_aliases)


def test_rows_whose_number_changes_between_steps_still_make_a_group() -> None:
    x = torch.randn(12, 32)
    torch._dynamo.mark_dynamic(x, 0)
    graph = only(inference(lambda x: torch.softmax(x.view(-1, 4, 32).flatten(0, 1), -1), x))
    assert any(
        isinstance(size, str) for node in graph.nodes for m in node.outputs for size in m.shape
    )
    (group,) = find_row_programs(graph).whole
    assert canonical_program(dataflow(graph), group).site.row_sizes == (12,)


def test_where_an_op_comes_from_is_kept() -> None:
    model = nn.ModuleDict({"norms": nn.ModuleList([nn.LayerNorm(32), nn.LayerNorm(32)])})

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm in self.inner["norms"]:  # type: ignore[union-attr]
                x = norm(x) @ torch.ones(32, 32)
            return x

    graph = only(Workload("test", "inference", CPU, Wrapped(), inputs=(X,)))
    places = [group.seed for group in find_row_programs(graph).whole]
    modules = [graph.by_id()[seed].location.module for seed in places]
    assert modules == ["inner.norms.0", "inner.norms.1"]
    assert all(graph.by_id()[seed].location.file == short_path(__file__) for seed in places)


def test_a_copied_lowering_can_be_rewritten_alone() -> None:
    (item,) = captured(inference(lambda x: torch.softmax(x, -1), X)).graphs
    copied = item.lowered.copy()
    for node in copied.fx_graph.nodes:
        if node.op == "output":
            node.args = ((),)
    copied.fx_graph.eliminate_dead_code()
    assert len(list(copied.fx_graph.nodes)) < len(list(item.lowered.fx_graph.nodes))
    assert all(
        node.graph is copied.fx_graph for nodes in copied.fx_aliases.values() for node in nodes
    )


def test_every_graph_knows_what_its_generated_kernels_compute() -> None:
    model = Calls(lambda x, w, b: functional.rms_norm(x @ w + b, (32,)), torch.eye(32), WEIGHT)
    found, step = capture(training(model, X), generate_code=True)
    assert step is not None
    assert [item.lowered.graph.phase for item in found.graphs] == ["forward", "backward"]
    for item in found.graphs:
        known = {node.name for nodes in item.lowered.fx_aliases.values() for node in nodes}
        computed = {name for _, nodes in item.kernels for name in nodes}
        assert any(name.startswith("sum") or name.startswith("mean") for name in computed & known)


def test_eager_attention_stays_as_written_where_the_compiler_would_call_a_library() -> None:
    def labels(*, eager: bool) -> list[str]:
        workload = load_workload("sample:bert_layer", torch.device("cpu"))
        found, _ = capture(workload, generate_code=False, eager=eager)
        return [node.label for item in found.graphs for node in item.lowered.graph.nodes]

    written, compiled = labels(eager=True), labels(eager=False)
    assert any("softmax" in label for label in written)
    assert not any("scaled_dot_product" in label for label in written)
    assert any("scaled_dot_product" in label for label in compiled)
    assert not any("_product" in label for label in written)


@pytest.mark.parametrize("scaled", [lambda x: x * 0.25, lambda x: (x / 8).float()])
def test_scaled_softmax_stays_as_written_and_the_compiler_itself_as_it_was(
    scaled: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    before = _checks_of_patterns()
    workload = inference(lambda x: torch.softmax(scaled(x), -1), torch.rand(4, 64).half())
    ops = [node.op for node in only(workload).nodes if node.op != "opaque"]
    assert ops.count("amax") == 1
    assert "where" not in ops
    assert all(node.origin for node in only(workload).nodes if node.op not in ("opaque", "cast"))
    assert _checks_of_patterns() == before


def _checks_of_patterns() -> list[object]:
    return [
        entry.extra_check
        for patterns in joint_graph.pass_patterns
        for entries in patterns.patterns.values()
        for entry in entries
    ]


def test_a_module_that_the_compiler_refuses_at_once_is_told_in_one_line() -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    with suppress(RuntimeError):
        torch.compile(scripted)
        pytest.skip("this PyTorch compiles TorchScript, as 2.11 does")
    with pytest.raises(WorkloadError, match="cannot be compiled") as caught:
        captured(Workload("test", "inference", CPU, scripted, inputs=(torch.rand(2, 4),)))
    assert "\n" not in caught.value.line()


def test_memory_that_the_host_does_not_have_is_named() -> None:
    with pytest.raises(WorkloadError, match="out of host memory"):
        captured(Workload("test", "step", CPU, lambda: torch.empty(1 << 50)))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_a_workload_on_a_gpu_does_on_the_cpu_is_opaque(on_gpu: bool) -> None:
    """An embedding on the CPU, or what a script prepares there."""
    found = Capture(on_gpu=on_gpu)
    torch.compiler.reset()
    part = torch.compile(torch.nn.Softmax(-1), backend=running_backend(found, generate_code=False))
    part(torch.randn(4, 8))
    assert (set(ops_of(found.graphs[0].lowered.graph)) == {"opaque"}) == on_gpu
