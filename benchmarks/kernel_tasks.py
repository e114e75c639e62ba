"""What a row of `kernels.py` runs: the pattern eager and compiled, and the plan of our kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from kernel_patterns import Pattern

from advisor.model.graph import Graph
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan
from advisor.pipeline.graph_programs import programs_of
from advisor.verify.interpret import evaluate
from advisor.verify.timing import site_inputs
from analyzers.dataflow import dataflow
from analyzers.row_plans import Program, cluster, plan_of
from analyzers.scan_programs import scan_programs
from collectors.live.capture import CapturedGraph, capture
from collectors.live.workload import Workload

Call = Callable[[], object]


class Task(NamedTuple):
    """One row's work: `compiled` makes the call in a mode of `torch.compile`.

    `covers` is (ops of the captured graph in our kernel, all of them); `plan` None where nothing of
    ours is found; `inputs` are those of the pattern, `upstream` the gradients that come to it.
    """

    inputs: Sequence[torch.Tensor]
    eager: Call
    compiled: Callable[[str | None], Call]
    plan: FusionPlan | None
    covers: tuple[int, int] | None = None
    upstream: Sequence[torch.Tensor] = ()


def called(function: Callable[..., Any], inputs: Sequence[torch.Tensor], **found: Any) -> Task:
    """A function of tensors without gradients."""

    def compiled(mode: str | None) -> Call:
        run = torch.compile(function, dynamic=False, mode=mode)
        return lambda: run(*inputs)

    return Task(inputs, lambda: function(*inputs), compiled, **found)


def stored(plan: FusionPlan) -> Task:
    """A plan's own ops, on inputs like those of its first site."""
    inputs = site_inputs(plan, plan.sites[0], torch.device("cuda"))
    return called(lambda *given: evaluate(plan, given, "native"), inputs, plan=plan)


def forward(pattern: Pattern, shape: tuple[int, ...], device: torch.device) -> Task:
    """A pattern, and its largest row program as the product finds it in the compiled graph."""
    inputs = pattern.inputs(shape, device)
    work = Workload("benchmark", "inference", device, pattern.function, inputs=inputs)
    plan, covers = _largest(capture(work, generate_code=False)[0].graphs)
    return called(pattern.function, inputs, plan=plan, covers=covers)


def backward(pattern: Pattern, shape: tuple[int, ...], device: torch.device) -> Task:
    """The gradients of a pattern's inputs, from what its forward keeps for them.

    What is timed is the backward pass alone: the forward has run.
    """
    inputs = [
        torch.nn.Parameter(t) if t.is_floating_point() else t for t in pattern.inputs(shape, device)
    ]
    wanted = [t for t in inputs if isinstance(t, torch.nn.Parameter)]
    upstream = [torch.randn_like(t) for t in _tensors(pattern.function(*inputs))]

    def loss(run: Callable[..., Any]) -> torch.Tensor:
        pairs = zip(_tensors(run(*inputs)), upstream, strict=True)
        total: torch.Tensor = sum((value * g).sum() for value, g in pairs)  # type: ignore[assignment]
        return total

    def gradients(run: Callable[..., Any]) -> Call:
        values = _tensors(run(*inputs))
        return lambda: torch.autograd.grad(values, wanted, upstream, retain_graph=True)

    def compiled(mode: str | None) -> Call:
        return gradients(torch.compile(pattern.function, dynamic=False, mode=mode))

    optimizer = torch.optim.SGD(wanted, lr=0.0)
    work = Workload(
        "benchmark", "training", device, pattern.function, optimizer=optimizer, loss=loss
    )
    graphs = capture(work, generate_code=False)[0].graphs
    plan, covers = _largest([item for item in graphs if item.lowered.graph.phase == "backward"])
    return Task(inputs, gradients(pattern.function), compiled, plan, covers, upstream)


def scanned(shape: tuple[int, ...], device: torch.device) -> Task:
    """A gated recurrence over the steps of [batch, steps, width], written as a loop; bf16."""
    batch, steps, width = shape

    def function(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(batch, width, device=x.device)
        found = []
        for step in range(steps):
            kept = torch.sigmoid(gate[:, step].float())
            state = kept * state + (1.0 - kept) * x[:, step].float()
            found.append(state.to(x.dtype))
        return torch.stack(found, 1)

    inputs = [torch.randn(shape, device=device).bfloat16() for _ in range(2)]
    work = Workload("benchmark", "inference", device, function, inputs=inputs)
    (item,) = capture(work, generate_code=False)[0].graphs
    graph = item.lowered.graph
    scans = [scan.program for scan in scan_programs(dataflow(graph)) if scan.program is not None]
    plan, _ = _of_most_ops([(graph, scans)])  # of one step, all of which it covers
    return called(function, inputs, plan=plan)


def _largest(graphs: Sequence[CapturedGraph]) -> tuple[FusionPlan | None, tuple[int, int] | None]:
    """The plan of the program with most ops, and what it covers of its graph."""
    return _of_most_ops([(g, programs_of(g).programs) for g in (x.lowered.graph for x in graphs)])


def _of_most_ops(
    graphs: Sequence[tuple[Graph, Sequence[Program]]],
) -> tuple[FusionPlan | None, tuple[int, int] | None]:
    best: tuple[FusionPlan, int] | None = None
    for graph, programs in graphs:
        ops = sum(spec_of(node.op).kind in ("pointwise", "reduction") for node in graph.nodes)
        for group in cluster((graph.phase, program) for program in programs):
            plan = plan_of(group, graph.phase, "benchmark")
            if best is None or len(plan.ops) > len(best[0].ops):
                best = plan, ops
    return (best[0], (len(best[0].ops), best[1])) if best else (None, None)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
