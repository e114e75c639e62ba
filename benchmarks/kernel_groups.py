"""Rows of `kernels.py` that are one launch for many: horizontal groups, steps of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from kernel_tasks import Task, called
from torch.nn import functional as nnf

from advisor.apply.model.multi_tensor import use_multi_tensor
from advisor.model.joining import join
from advisor.model.plan import plan_id
from analyzers.independent import candidates, independent_sets
from analyzers.row_programs import find_row_programs
from collectors.live.capture import capture
from collectors.live.workload import Workload

MEMBERS = 8
# Rows and columns of each member: launch-bound, then with tails, then as large as members get.
GROUPS = ((64, 1024), (512, 1024), (2048, 1024))
# Parameters of a GPT-2 (124 M) and of one small block of it.
MODELS = {"one block": 1, "GPT-2": 12}
WIDTH, VOCABULARY, POSITIONS = 768, 50_257, 1024


@dataclass(frozen=True)
class Calls:
    """Ways to do the same, by name (`ours` among them), and the bytes that must be moved."""

    bytes: int
    variants: dict[str, Callable[..., object]]


def norms(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """An RMS norm for every pair of a matrix and a vector."""
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return [nnf.rms_norm(x, (x.shape[-1],), w, 1e-6) for x, w in pairs]


def mixed(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """RMS norms and bias + SiLU in turn: two bodies in one launch."""
    found = []
    for number, (x, w) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        even = number % 2 == 0
        found.append(nnf.rms_norm(x, (x.shape[-1],), w, 1e-6) if even else nnf.silu(x + w))
    return found


def group(function: Callable[..., Any], shape: tuple[int, ...], device: torch.device) -> Task:
    """The largest set of independent programs that the product finds in the compiled graph."""
    count, rows, columns = shape
    inputs = []
    for _ in range(count):
        inputs += [torch.randn(rows, columns, device=device).bfloat16()]
        inputs += [torch.randn(columns, device=device).bfloat16()]
    work = Workload("benchmark", "inference", device, function, inputs=inputs)
    graphs, _ = capture(work, generate_code=False)
    graph = graphs.graphs[0].lowered.graph
    found = find_row_programs(graph)
    small, _ = candidates(found, graph.phase)
    sets = independent_sets(found, small).taken
    if not sets:
        return called(function, inputs, plan=None)
    plans = [item.plan for item in max(sets, key=len)]
    identity = plan_id("benchmark", "", join(plans, "0" * 16, "").signature())
    made = join(plans, identity, f"{len(plans)} small programs")
    made.check()
    return called(function, inputs, plan=made)


def parameters(blocks: int, device: torch.device) -> list[torch.nn.Parameter]:
    """Those of GPT-2 with so many blocks, in float32, each with a gradient."""
    shapes: list[tuple[int, ...]] = [(VOCABULARY, WIDTH), (POSITIONS, WIDTH)] if blocks > 1 else []
    for _ in range(blocks):
        shapes += [(WIDTH,)] * 4 + [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
        shapes += [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
    made = [torch.nn.Parameter(torch.randn(shape, device=device) * 0.02) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def adamw(blocks: int, device: torch.device) -> Calls:
    """A step of AdamW: eager's multi-tensor ops, its fused kernels, Inductor's, ours."""

    def optimizer(**options: Any) -> torch.optim.AdamW:
        return torch.optim.AdamW(parameters(blocks, device), lr=1e-3, **options)

    eager, fused, plain, ours = (
        optimizer(foreach=True),
        optimizer(fused=True),
        optimizer(foreach=True, capturable=True),
        optimizer(),
    )
    refused = use_multi_tensor(ours)
    assert refused is None, refused
    compiled = torch.compile(plain.step)
    elements = sum(p.numel() for group in ours.param_groups for p in group["params"])
    for _ in range(2):
        ours.step()
    # Read: parameter, gradient, two moments; written: all of these but the gradient.
    variants = {
        "ours": ours.step, "eager": eager.step, "fused": fused.step, "inductor": compiled,
    }  # fmt: skip
    return Calls(7 * 4 * elements, variants)


def rows(device: torch.device) -> list[tuple[str, tuple[int, ...], Callable[[], Any]]]:
    """Name, shape and a maker of every row."""
    found: list[tuple[str, tuple[int, ...], Callable[[], Any]]] = []
    for name, function in (("group_norms", norms), ("group_mixed", mixed)):
        for sizes in GROUPS:
            shape = (MEMBERS, *sizes)
            found.append((name, shape, partial(group, function, shape, device)))
    for blocks in MODELS.values():
        found.append(("adamw", (blocks,), partial(adamw, blocks, device)))
    return found
