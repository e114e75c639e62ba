"""Sites swapped in captured graphs: the rewritten graph gives what the original gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch.nn import functional

from advisor.apply.kernels import ReadyKernel
from advisor.apply.rewrite import Outcome, Swap, rewrite
from advisor.model.gathers import gathers
from advisor.model.launch import LaunchConfig
from advisor.pipeline.backend import cache_key, choose_swaps
from advisor.pipeline.graph_programs import programs_of
from advisor.samples import transformer_block
from collectors.live.capture import Capture, capture
from collectors.live.fx_graph import Lowered, lower
from collectors.live.workload import Workload
from tests.builders import captured as models
from tests.builders.plan import PlanBuilder


@pytest.fixture(autouse=True)
def _fresh_kernels() -> Iterator[None]:
    yield
    kernel_side_table.reset_table()


def swapped(lowered: Lowered, kernels: list[ReadyKernel]) -> tuple[Lowered, tuple[Outcome, ...]]:
    """A rewritten copy, checked and in topological order."""
    copy = lowered.copy()
    swaps = choose_swaps(programs_of(copy.graph), kernels)
    outcomes = rewrite(copy.fx_graph, copy.fx_node, copy.fx_aliases, swaps)
    assert_ordered(copy.fx_graph)
    return copy, outcomes


def assert_ordered(graph: fx.Graph) -> None:
    graph.lint()
    position = {node: index for index, node in enumerate(graph.nodes)}
    arguments = [position[node] for node in graph.find_nodes(op="placeholder")]
    assert arguments == list(range(len(arguments))), "arguments come first"
    for node in graph.nodes:
        assert all(position[source] < position[node] for source in node.all_input_nodes)


def calls(graph: fx.Graph) -> int:
    return sum(node.target is triton_kernel_wrapper_functional for node in graph.nodes)


def assert_same(
    lowered: Lowered, copy: Lowered, kernels: list[ReadyKernel], tolerance: float
) -> None:
    arguments = models.arguments_of(lowered.fx_graph)
    cloned = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    want = models.execute(lowered, arguments)
    got = models.execute(copy, cloned, kernels)
    assert len(want) == len(got)
    for mine, theirs in zip(got, want, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert mine.shape == theirs.shape
            assert mine.stride() == theirs.stride()
            assert_close_in_rows(mine, theirs, tolerance)


def assert_close_in_rows(mine: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    """Close on the scale of each row: where terms cancel, an element has no digits of its own."""
    ours, wanted = mine.double(), theirs.double()
    scale = wanted.abs().amax(-1, keepdim=True) if wanted.dim() else wanted.abs()
    worst = ((ours - wanted).abs() / (1 + scale)).max() if wanted.numel() else 0.0
    assert float(worst) <= tolerance


@pytest.fixture(scope="module")
def sample() -> dict[str, Capture]:
    module, inputs = transformer_block.inference()
    infer = Workload("sample", "inference", models.CPU, module, inputs=inputs)
    model, optimizer, loss = transformer_block.train()
    train = Workload("sample", "training", models.CPU, model, optimizer=optimizer, loss=loss)
    return {"infer": capture(infer, generate_code=False)[0],
            "train": capture(train, generate_code=False)[0]}  # fmt: skip


@pytest.mark.parametrize("kind", ["infer", "train"])
def test_the_sample_with_every_site_swapped(kind: str, sample: dict[str, Capture]) -> None:
    total = 0
    for item in sample[kind].graphs:
        kernels = [models.ready(plan) for plan in models.plans_of(item.lowered)]
        copy, outcomes = swapped(item.lowered, kernels)
        assert [o.refused for o in outcomes] == [None] * len(outcomes)
        assert len(outcomes) == sum(len(k.plan.sites) for k in kernels)
        assert calls(copy.fx_graph) == sum(len(k.plan.sites) * len(k.functions) for k in kernels)
        assert_same(item.lowered, copy, kernels, 2e-2)
        total += len(outcomes)
    assert total == {"infer": 3, "train": 7}[kind]


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.silu(functional.group_norm(x, 4, weight, bias))


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.relu(functional.batch_norm(x, None, None, weight, bias, training=True) + x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("function", [group_norm, batch_norm], ids=["group norm", "batch norm"])
def test_norms_of_channels_in_either_layout(
    function: Callable[..., torch.Tensor], layout: torch.memory_format
) -> None:
    """Forward and backward; what a kernel writes is laid out as what it replaces."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = torch.nn.Conv2d(3, 16, 3)
            self.weight = torch.nn.Parameter(torch.rand(16) + 0.5)
            self.bias = torch.nn.Parameter(torch.rand(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(self.before(x), self.weight, self.bias)

    images = torch.randn(2, 3, 8, 9).to(memory_format=layout)
    total = 0
    for item in models.captured_training(Model().to(memory_format=layout), images).graphs:
        kernels = [models.ready(plan) for plan in models.plans_of(item.lowered)]
        copy, outcomes = swapped(item.lowered, kernels)
        assert [o.refused for o in outcomes] == [None] * len(outcomes)
        assert_same(item.lowered, copy, kernels, 1e-4)
        total += len(outcomes)
    assert total >= 2


def test_a_chain_of_channels_first_and_channels_last() -> None:
    first, last = torch.randn(2, 16, 5, 6), torch.randn(2, 16, 5, 6)
    last = last.to(memory_format=torch.channels_last)
    found = models.captured(lambda a, b: (functional.silu(a) + b, a * b), last, first)
    (lowered,) = (item.lowered for item in found.graphs)
    (kernel,) = (models.ready(plan) for plan in models.plans_of(lowered))
    copy, outcomes = swapped(lowered, [kernel])
    assert [o.refused for o in outcomes] == [None]
    assert kernel.config.scheme == "blocks"
    assert_same(lowered, copy, [kernel], 1e-6)


class Lookups(torch.nn.Module):
    """Words and places, normed; both are needed again."""

    place: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 48, padding_idx=0)
        self.places = torch.nn.Embedding(16, 48)
        self.norm, self.after = torch.nn.LayerNorm(48), torch.nn.Linear(48, 48)
        self.register_buffer("place", torch.arange(32)[None] % 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ids = ids[:, :-1]
        read = self.words(ids)
        total = read + self.places(self.place[:, : ids.shape[1]])
        after: torch.Tensor = self.after(self.norm(total))
        return after + total + read


@pytest.mark.parametrize(("kind", "left"), [("inference", 0), ("training", 1)])
def test_rows_are_read_from_their_tables(kind: str, left: int) -> None:
    """Who else reads the words gets them from the kernel; places that are saved stay a lookup."""
    torch.manual_seed(0)
    ids, model = torch.randint(0, 2, (4, 17)), Lookups()
    record = models.captured_training if kind == "training" else models.captured
    graphs = [item.lowered for item in record(model.train(kind == "training"), ids).graphs]
    lowered = next(g for g in graphs if g.graph.phase != "backward")
    kernels = [models.ready(plan) for plan in models.plans_of(lowered)]
    (kernel,) = (k for k in kernels if k.plan.title and gathers(k.plan))
    copy, outcomes = swapped(lowered, kernels)
    assert [o.refused for o in outcomes] == [None] * len(outcomes)
    assert sum(item.gathered is not None for item in kernel.plan.inputs) == 2 - left
    assert [str(n.target) for n in copy.fx_graph.nodes].count("aten.embedding.default") == left
    assert_same(lowered, copy, kernels, 1e-5)


@pytest.mark.parametrize("norm", ["layer norm", "RMS norm"])
def test_one_call_gives_all_gradients_of_a_norm(norm: str) -> None:
    kind = torch.nn.LayerNorm(48) if norm == "layer norm" else models.RMSNorm(48)
    model = torch.nn.Sequential(torch.nn.Linear(48, 48), kind, torch.nn.Linear(48, 16))
    graphs = [item.lowered for item in models.captured_training(model, torch.randn(6, 48)).graphs]
    (lowered,) = (item for item in graphs if item.graph.phase == "backward")
    (plan,) = (p for p in models.plans_of(lowered) if any(o.space == "tile" for o in p.outputs))
    spaces = sorted(output.space for output in plan.outputs)
    # The bias of the layer in front gets its gradient on the way.
    assert spaces == ["column"] * (3 if norm == "layer norm" else 2) + ["tile"]
    kernel = models.ready(plan)
    copy, outcomes = swapped(lowered, [kernel])
    assert [o.refused for o in outcomes] == [None]
    assert calls(copy.fx_graph) == len(kernel.functions) == 2
    assert_same(lowered, copy, [kernel], 1e-5)


def test_a_site_that_reads_what_another_wrote() -> None:
    lowered = models.captured(models.Chain(), torch.randn(6, 48)).graphs[0].lowered
    kernels = [models.ready(plan) for plan in models.plans_of(lowered)]
    assert len(kernels) == 2
    for order in (kernels, kernels[::-1]):
        copy, outcomes = swapped(lowered, order)
        assert [o.refused for o in outcomes] == [None, None]
        assert_same(lowered, copy, kernels, 1e-6)


def test_a_result_used_before_the_last_input_exists() -> None:
    graph = fx.Graph()
    x, z = argument(graph, "x"), argument(graph, "z")
    doubled = described(graph, torch.ops.aten.mul.Tensor, x, 2.0)
    early = described(graph, torch.ops.aten.cumsum.default, doubled, 0)
    late = described(graph, torch.ops.aten.cumsum.default, z, 0)
    shifted = described(graph, torch.ops.aten.add.Tensor, doubled, late)
    graph.output((early, *softmaxes(graph, shifted, 1)))
    on_cpu(graph)
    lowered = lower(graph, "graph0", "inference")
    kernels = [models.ready(plan) for plan in models.plans_of(lowered)]
    assert [len(kernel.plan.outputs) for kernel in kernels] == [2]
    copy, outcomes = swapped(lowered, kernels)
    assert [o.refused for o in outcomes] == [None]
    assert_same(lowered, copy, kernels, 1e-6)


def softmaxes(graph: fx.Graph, x: fx.Node, count: int) -> list[fx.Node]:
    """Row softmax by ATen ops, `count` times in a row, with metadata."""
    aten = torch.ops.aten
    for _ in range(count):
        peak = described(graph, aten.amax.default, x, [-1], True)
        powers = described(graph, aten.exp.default, described(graph, aten.sub.Tensor, x, peak))
        total = described(graph, aten.sum.dim_IntList, powers, [-1], True)
        x = described(graph, aten.div.Tensor, powers, total)
    return [x]


def described(graph: fx.Graph, target: object, *args: object) -> fx.Node:
    node = graph.call_function(target, args)  # type: ignore[arg-type]
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
    node.meta["val"] = target(*values)  # type: ignore[operator]
    return node


def argument(graph: fx.Graph, name: str) -> fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = torch.empty(8, 32, device="meta")
    return node


def on_cpu(graph: fx.Graph) -> None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def test_a_write_in_the_middle_of_a_site_is_refused() -> None:
    """The input is read, then overwritten; a call after the write would read the new values."""
    graph = fx.Graph()
    x, late = argument(graph, "x"), argument(graph, "late")
    doubled = described(graph, torch.ops.aten.mul.Tensor, x, 2.0)
    other = described(graph, torch.ops.aten.sin.default, late)
    described(graph, torch.ops.aten.copy_.default, x, late)
    cosine = described(
        graph, torch.ops.aten.mm.default, other, described(graph, torch.ops.aten.t.default, other)
    )
    shifted = described(
        graph,
        torch.ops.aten.add.Tensor,
        doubled,
        described(graph, torch.ops.aten.mm.default, cosine, other),
    )
    (result,) = softmaxes(graph, shifted, 1)
    graph.output((result,))
    on_cpu(graph)
    lowered = lower(graph, "graph0", "inference")
    kernels = [models.ready(plan) for plan in models.plans_of(lowered)]
    assert kernels
    copy, outcomes = swapped(lowered, kernels)
    assert_same(lowered, copy, kernels, 1e-6)
    assert any("writes to memory" in (o.refused or "") for o in outcomes)


def test_a_site_that_waits_for_itself_is_refused() -> None:
    """Two groups, each convex, that need each other's results: only one can be one kernel."""
    graph = fx.Graph()
    v, w = argument(graph, "v"), argument(graph, "w")
    a1 = described(graph, torch.ops.aten.mul.Tensor, v, 2.0)
    b2 = described(graph, torch.ops.aten.mul.Tensor, w, 3.0)
    (a2,) = softmaxes(graph, described(graph, torch.ops.aten.add.Tensor, v, b2), 1)
    (b1,) = softmaxes(graph, described(graph, torch.ops.aten.add.Tensor, w, a1), 1)
    graph.output((a1, a2, b1, b2))
    on_cpu(graph)
    lowered = lower(graph, "graph0", "inference")
    names = {node: value for value, node in lowered.fx_node.items()}
    groups = [(names[a1], names[a2]), (names[b2], names[b1])]
    swaps = [by_hand(lowered, results) for results in groups]
    copy = lowered.copy()
    outcomes = rewrite(copy.fx_graph, copy.fx_node, copy.fx_aliases, swaps)
    assert_ordered(copy.fx_graph)
    assert [o.refused is None for o in outcomes] == [True, False]
    assert "waits for one of its results" in (outcomes[1].refused or "")
    assert_same(lowered, copy, [swap.kernel for swap in swaps], 1e-6)


def by_hand(lowered: Lowered, results: tuple[str, str]) -> Swap:
    """A swap of a scaling and a softmax that share their first operand."""
    scaled, soft = results
    nodes = lowered.graph.by_id()
    make = PlanBuilder()
    x, other = make.input(), make.input()
    scale = nodes[scaled[1:]]
    first = make.op("mul", x, scale.args[1])
    shifted = make.op("add", x, other)
    powers = make.op("exp", make.op("sub", shifted, make.op("amax", shifted)))
    plan = make.plan(first, make.op("div", powers, make.op("sum", powers)), sizes=(8,), columns=32)
    divide = nodes[soft[1:]]
    exp = nodes[str(divide.args[0])[1:]]
    add = nodes[str(nodes[str(exp.args[0])[1:]].args[0])[1:]]
    site = msgspec.structs.replace(plan.sites[0], inputs=tuple(map(str, add.args)), outputs=results)
    plan = msgspec.structs.replace(plan, sites=(site,))
    return Swap(models.ready(plan), plan, site)


def test_a_site_too_wide_for_the_chosen_configuration_is_refused() -> None:
    """Sixteen rows of 64 columns fit in a program of two warps; sixteen of 4,096 do not."""

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), torch.softmax(y, -1)

    lowered = models.captured(step, torch.randn(32, 64), torch.randn(8, 4096)).graphs[0].lowered
    kernels = [models.ready(plan) for plan in models.plans_of(lowered)]
    assert [len(kernel.plan.sites) for kernel in kernels] == [2]
    copy, outcomes = swapped(lowered, kernels)
    assert [o.refused is None for o in outcomes] == [True, False]
    assert "rows of 4,096 columns are too much for one program" in (outcomes[1].refused or "")
    assert_same(lowered, copy, kernels, 1e-6)


@pytest.mark.parametrize(
    "size", [{"row_sizes": (2**31,), "columns": 2048}, {"columns": 2**31}], ids=str
)
def test_more_than_a_kernel_can_number_is_refused(size: dict[str, Any]) -> None:
    """Also for a configuration that streams its rows, however long."""
    lowered = models.captured(models.Chain(), torch.randn(6, 48)).graphs[0].lowered
    looped = LaunchConfig(scheme="looped", block_columns=1024)
    kernel = models.ready(models.plans_of(lowered)[0], looped)
    site = msgspec.structs.replace(kernel.plan.sites[0], **size)
    copy = lowered.copy()
    outcomes = rewrite(
        copy.fx_graph, copy.fx_node, copy.fx_aliases, [Swap(kernel, kernel.plan, site)]
    )
    assert "more than a kernel can number" in (outcomes[0].refused or "")


def test_a_call_asks_for_exactly_the_strides_it_reads_with() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x)[:, 3:30] * 2, -1)

    lowered = models.captured(step, torch.randn(6, 40)).graphs[0].lowered
    copy, outcomes = swapped(lowered, [models.ready(p) for p in models.plans_of(lowered)])
    assert [o.refused for o in outcomes] == [None]
    (call,) = copy.fx_graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    args, kwargs = call.meta["eager_input_vals"]
    assert args == ()
    assert kwargs.keys() == call.kwargs.keys()
    assert kwargs["kwargs"]["in0"].stride() == (40, 1)


def test_a_value_that_is_gone_is_refused() -> None:
    lowered = models.captured(models.Chain(), torch.randn(6, 48)).graphs[0].lowered
    kernel = models.ready(models.plans_of(lowered)[0])
    site = msgspec.structs.replace(kernel.plan.sites[0], inputs=("%gone", "%gone"))
    copy = lowered.copy()
    outcomes = rewrite(
        copy.fx_graph, copy.fx_node, copy.fx_aliases, [Swap(kernel, kernel.plan, site)]
    )
    assert outcomes[0].refused == "%gone has no node in the graph being compiled"
    assert calls(copy.fx_graph) == 0


def test_the_first_kernel_claims_the_site() -> None:
    lowered = models.captured(models.Chain(), torch.randn(6, 48)).graphs[0].lowered
    plan = models.plans_of(lowered)[0]
    twice = [models.ready(plan), models.ready(msgspec.structs.replace(plan, id="f" * 16))]
    swaps = choose_swaps(programs_of(lowered.graph), twice)
    assert [swap.kernel.plan.id for swap in swaps] == [plan.id]


def test_the_cache_key_changes_with_all_that_decides() -> None:
    lowered = models.captured(models.Chain(), torch.randn(6, 48)).graphs[0].lowered
    first, second = (models.ready(plan) for plan in models.plans_of(lowered))
    literal = next(op for op in first.plan.ops if op.op == "add")
    other = tuple(
        msgspec.structs.replace(op, args=(op.args[0], 0.5)) if op is literal else op
        for op in first.plan.ops
    )
    changed = models.ready(msgspec.structs.replace(first.plan, ops=other))
    faster = LaunchConfig(block_rows=8, num_warps=1)
    often = tuple(msgspec.structs.replace(site, executions=9.0) for site in first.plan.sites)
    weighed = msgspec.structs.replace(first.plan, sites=often)
    keys = [
        cache_key([first, second]),
        cache_key(
            [ReadyKernel(weighed, first.source, first.config, first.path, first.functions), second]
        ),
        cache_key([second, first]),
        cache_key([first]),
        cache_key([changed, second]),
        cache_key(
            [ReadyKernel(first.plan, first.source, faster, first.path, first.functions), second]
        ),
        cache_key([]),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key([first, second]) == keys[0]
