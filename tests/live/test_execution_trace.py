"""Execution traces of real runs: memory told apart, dataflow exact, what is captured left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from advisor.errors import UnreadableError, WorkloadError
from advisor.model.execution import ExecutionTrace
from advisor.model.graph import Graph, Node
from advisor.model.trace import Trace, TraceBuilder
from analyzers.dataflow import dataflow
from analyzers.execution_graph import ExecutedPart, executed_parts
from collectors import read_trace
from collectors.execution_trace import aliasing, read_execution_trace
from collectors.live import optimizer_step
from collectors.live.execution_trace import Execution, marked, record_execution
from collectors.live.optimizer_step import rehearsed_step
from collectors.live.recorder import record_steps
from collectors.live.workload import Workload

CPU = torch.device("cpu")


def observed(step: Callable[[], object], folder: Path) -> Execution:
    return record_execution(step, folder / "execution.json", "cpu")


def graph_of(step: Callable[[], object], folder: Path) -> Graph:
    found = observed(step, folder)
    (part,), warnings = executed_parts(found.trace, found.decomposed, found.timeline)
    assert warnings == ()
    return part.graph


def node(graph: Graph, target: str, number: int = 0) -> Node:
    return [n for n in graph.nodes if n.target.startswith(target) and n.args][number]


def training(optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Workload:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    return Workload(
        "test",
        "training",
        CPU,
        model,
        optimizer=optimizer(model.parameters(), lr=1e-3),  # type: ignore[call-arg]
        loss=lambda m: nn.functional.cross_entropy(m(x) * 2 + 1, y),
    )


def parts_of(workload: Workload, folder: Path) -> dict[str, ExecutedPart]:
    with marked(workload) as step:
        step()
        found = observed(step, folder)
    parts, warnings = executed_parts(found.trace, found.decomposed, found.timeline)
    assert warnings == ()
    return {part.part: part for part in parts}


def test_every_op_of_the_trace_is_in_the_timeline(tmp_path: Path) -> None:
    x = torch.randn(32, 8)
    found = observed(lambda: torch.softmax(x @ x.t(), -1).sum(), tmp_path)
    assert found.timeline is not None
    names = dict(
        zip(
            found.timeline.ops["record_function_id"].tolist(),
            found.timeline.ops["name"].astype(str),
            strict=True,
        )
    )
    ops = [op for op in found.trace.ops if op.schema]
    assert len(ops) > 4
    assert all(names[op.record_function_id] == op.name for op in ops)


def test_an_address_given_out_again_is_another_memory(tmp_path: Path) -> None:
    x = torch.randn(1 << 18)

    def step() -> torch.Tensor:
        for _ in range(3):
            temporary = torch.sin(x)  # freed before the next: the allocator gives it out again
            kept = temporary.sum()
            del temporary
        return kept

    found = observed(step, tmp_path)
    sines = [op.outputs[0] for op in found.trace.ops if op.name == "aten::sin"]
    assert len({tensor.memory for tensor in sines}) == 3
    graph = graph_of(step, tmp_path)
    for number in range(3):
        assert node(graph, "aten.sum", number).args == (node(graph, "aten.sin", number).value(),)


def test_reads_and_writes_of_one_memory_keep_their_order(tmp_path: Path) -> None:
    x, y = torch.randn(64), torch.randn(64)

    def step() -> torch.Tensor:
        before = torch.sin(x)
        x.mul_(y)
        after = torch.cos(x)
        return before + after

    graph = graph_of(step, tmp_path)
    sine, product, cosine = (node(graph, f"aten.{n}") for n in ("sin", "mul_", "cos"))
    assert product.mutates == sine.args
    assert cosine.args == (product.value(),)
    flow = dataflow(graph)
    assert flow.ancestors[product.id] >> flow.index[sine.id] & 1
    assert not flow.ancestors[sine.id] >> flow.index[product.id] & 1
    # x was there before and is there afterwards, and so is what nobody read.
    assert set(graph.outputs) == {product.value(), node(graph, "aten.add").value()}


def test_views_parts_and_pieces_of_one_buffer(tmp_path: Path) -> None:
    x = torch.randn(8, 16)

    def step() -> torch.Tensor:
        buffer = torch.empty(16, 16)
        buffer[:8].copy_(x)
        buffer[8:].copy_(x)
        return buffer.t().exp() + x.view(128).sum()

    graph = graph_of(step, tmp_path)
    first, second = (node(graph, "aten.copy_", number) for number in range(2))
    flow = dataflow(graph)
    read = node(graph, "aten.exp")
    for copy in (first, second):
        assert flow.ancestors[read.id] >> flow.index[copy.id] & 1
    reshaped = next(n for n in graph.nodes if n.op == "reshape")
    assert reshaped.outputs[0].shape == (128,)
    assert next(n for n in graph.nodes if n.op == "sum").args == (reshaped.value(),)


def test_an_op_is_as_it_was_executed_not_as_its_pieces(tmp_path: Path) -> None:
    layer, x = nn.Linear(16, 32), torch.randn(4, 16)
    with torch.no_grad():
        graph = graph_of(lambda: torch.tanh(layer(x)).half(), tmp_path)
    targets = [n.target for n in graph.nodes if n.args]
    assert [t.split(".")[1] for t in targets] == ["addmm", "tanh", "copy_"]
    cast = node(graph, "aten.copy_")
    assert cast.op == "cast"
    assert cast.outputs[0].dtype == "float16"


def test_only_what_the_compiler_does_not_see_is_a_part(tmp_path: Path) -> None:
    parts = parts_of(training(), tmp_path)
    rest = Counter(n.target.split(".")[1] for n in parts["rest"].graph.nodes if n.args)
    assert rest["mul"] == 2, "the loss scales, and so does its gradient"
    assert rest["_log_softmax"] == rest["_log_softmax_backward_data"] == 1
    assert not {"addmm", "mm", "gelu", "gelu_backward", "native_layer_norm_backward"} & set(rest)
    assert parts["optimizer"].ops == 9 * 6
    assert parts["optimizer"].graph.source == "execution_trace"


def test_the_captured_range_is_told_in_a_step_of_any_kind(tmp_path: Path) -> None:
    x = torch.randn(8)
    workload = Workload("test", "step", CPU, lambda: torch.sin(x) + 1)
    assert parts_of(workload, tmp_path) == {}
    assert workload.part() is not None


class Refuses(torch.optim.SGD):
    """An optimizer that cannot step on zero gradients."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        raise RuntimeError("no gradient is zero")


def test_an_optimizer_that_fails_says_so() -> None:
    refuses = Refuses([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(WorkloadError, match="does not step on zero gradients"):
        rehearsed_step(refuses, as_if_cuda=True)


def test_too_many_parameters_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_step, "MAX_PARAMETER_BYTES", 7)
    adam = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    assert rehearsed_step(adam, as_if_cuda=True) is None


def test_an_optimizer_rehearses_on_copies_as_on_a_gpu(tmp_path: Path) -> None:
    workload = training()
    assert workload.optimizer is not None
    model = workload.part
    assert isinstance(model, nn.Module)
    before = [p.detach().clone() for p in model.parameters()]
    step = rehearsed_step(workload.optimizer, as_if_cuda=True)
    assert step is not None
    found = observed(step, tmp_path)
    (part,), _ = executed_parts(found.trace, found.decomposed, None)
    names = Counter(n.target.split(".")[1] for n in part.graph.nodes if n.args)
    assert names["_foreach_lerp_"] == 1
    assert not names["lerp_"]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not workload.optimizer.state


def test_foreach_ops_wait_for_each_other_through_their_lists(tmp_path: Path) -> None:
    workload = training()
    assert workload.optimizer is not None
    step = rehearsed_step(workload.optimizer, as_if_cuda=True)
    assert step is not None
    found = observed(step, tmp_path)
    (part,), _ = executed_parts(found.trace, found.decomposed, None)
    flow = dataflow(part.graph)
    average, update = (
        node(part.graph, f"aten.{n}") for n in ("_foreach_lerp_", "_foreach_addcdiv_")
    )
    assert flow.ancestors[update.id] >> flow.index[average.id] & 1
    assert len(average.mutates) == 6


@pytest.mark.parametrize(
    ("schema", "writes", "view"),
    [
        ("aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", (0,), False),
        ("aten::t(Tensor(a) self) -> Tensor(a)", (), True),
        ("aten::split.Tensor(Tensor(a -> *) self, SymInt n, int d=0) -> Tensor(a)[]", (), True),
        (
            "aten::add.out(Tensor s, Tensor o, *, Scalar a=1, Tensor(a!) out) -> Tensor(a!)",
            (3,),
            False,
        ),
        ("aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()", (0,), False),
        ("aten::mm(Tensor self, Tensor mat2) -> Tensor", (), False),
        ("", (), False),
    ],
)
def test_schemas_say_who_writes(schema: str, writes: tuple[int, ...], view: bool) -> None:
    assert aliasing(schema) == (writes, view)


def test_what_is_no_execution_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in ('{"nodes": [{"id": 1}]}', '{"traceEvents": []}', "[", '{"nodes": 3}'):
        path.write_text(text)
        with pytest.raises(UnreadableError, match="no execution trace"):
            read_execution_trace(path)


def test_an_empty_trace_has_no_parts() -> None:
    trace = ExecutionTrace(source="x", schema="", ops=())
    assert executed_parts(trace, frozenset()) == ((), ())


def test_times_come_from_the_step_recorded_without_the_observer(tmp_path: Path) -> None:
    """Without a GPU no kernel is recorded: one is planted into every op that adds."""
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(8, 8))
    workload = Workload(
        "test",
        "training",
        CPU,
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, foreach=False),
        loss=lambda m: m(x).square().sum(),
    )
    with marked(workload) as step:
        found = observed(step, tmp_path)
    record_steps(workload.step_of(), tmp_path / "timed.json", steps=2)
    timed = read_trace(tmp_path / "timed.json")
    builder = TraceBuilder(source="x")
    _copy_ops(timed, builder)
    parts, warnings = executed_parts(found.trace, found.decomposed, found.timeline, builder.build())
    assert warnings == ()
    (optimizer,) = [part for part in parts if part.part == "optimizer"]
    assert [unit.name for unit in optimizer.prices.units] == ["aten::add_"] * 2
    # The last step's kernels take 2 µs, the first one's 1 µs.
    assert [unit.time_ns for unit in optimizer.prices.units] == [2_000, 2_000]


def _copy_ops(trace: Trace, builder: TraceBuilder) -> None:
    """The ops and steps of a trace, and a kernel launched by each `add_`: as long as its step."""
    steps = trace.steps()
    for name in ("ops", "ranges"):
        for row in trace.table(name).astype(object).to_dict("records"):
            kept = {str(k): v for k, v in row.items() if k not in ("parent", "module", "source")}
            kept["thread"] = builder.thread(1, 1)
            builder.event(name, **{k: v for k, v in kept.items() if not pd.isna(v)})
    for number, row in enumerate(trace.ops.to_dict("records")):
        if row["name"] != "aten::add_":
            continue
        step = int((steps["start_ns"] <= row["start_ns"]).sum())
        builder.event(
            "launches",
            name="cudaLaunchKernel",
            kind="kernel",
            start_ns=row["start_ns"] + 1,
            duration_ns=1,
            thread=builder.thread(1, 1),
            correlation=number + 1,
        )
        builder.event(
            "kernels",
            name="k",
            start_ns=row["start_ns"] + 10_000,
            duration_ns=1_000 * step,
            correlation=number + 1,
            device=0,
            stream=7,
        )
