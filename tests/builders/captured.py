"""Small models, captured as the product captures them, and their graphs run on the CPU.

A rewritten graph calls generated kernels; here each call runs the kernel's plan in PyTorch, on
inputs addressed by the very arguments that the kernel would get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)

from advisor.apply.kernels import ReadyKernel
from advisor.codegen import abi, render
from advisor.codegen.strided import strided
from advisor.model.configs import default_config
from advisor.model.launch import OVER_ROWS, LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from analyzers.row_plans import canonical_program, cluster, plan_of
from analyzers.row_programs import find_row_programs
from collectors.live.capture import Capture, capture
from collectors.live.fx_graph import Lowered
from collectors.live.workload import Workload
from tests.builders.gemms import multiplied
from tests.builders.scans import scanned

CPU = torch.device("cpu")


class RMSNorm(nn.Module):
    """The norm in pieces, as model code writes it."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.rand(width) + 0.5), epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (wide * scale).to(hidden.dtype)


class SoftCap(nn.Module):
    """Soft-capped, masked attention weights: probabilities in bfloat16, log-sum-exp per row."""

    def __init__(self, cap: float = 30.0) -> None:
        super().__init__()
        self.cap = cap

    def forward(
        self, scores: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        capped = self.cap * torch.tanh(scores / self.cap) + mask
        wide = capped.float()
        probabilities = torch.softmax(wide, dim=-1)
        return probabilities.to(torch.bfloat16), torch.logsumexp(wide, dim=-1)


class Chain(nn.Module):
    """Two different programs, the second reading what the first wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.middle = RMSNorm(48), nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.middle(self.norm(x)) * 0.5, dim=-1)


def captured(module: Callable[..., Any], *inputs: torch.Tensor) -> Capture:
    """The graphs of one inference step."""
    work = Workload("test", "inference", CPU, module, inputs=inputs)
    found, _ = capture(work, generate_code=False)
    return found


def captured_training(module: nn.Module, *inputs: torch.Tensor) -> Capture:
    """Forward and backward graphs of one training step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def loss(model: Callable[..., Any]) -> torch.Tensor:
        result: torch.Tensor = model(*inputs).float().square().mean()
        return result

    work = Workload("test", "training", CPU, module, optimizer=optimizer, loss=loss)
    found, _ = capture(work, generate_code=False)
    return found


def plans_of(lowered: Lowered) -> list[FusionPlan]:
    """Every plan of a graph, whole groups only."""
    found = find_row_programs(lowered.graph)
    programs = [canonical_program(found.flow, group) for group in found.whole]
    phase = lowered.graph.phase
    return [plan_of(group, phase, "test") for group in cluster((phase, p) for p in programs)]


def ready(plan: FusionPlan, config: LaunchConfig | None = None) -> ReadyKernel:
    """A plan that can be swapped in and run by `execute`, not launched."""
    config = config or default_config(plan, plan.sites[0])
    source = render(plan, config.scheme)
    functions = tuple(_Named(name) for name in source.kernels)
    return ReadyKernel(plan, source, config, Path("none.py"), functions)


class _Named:
    """Stands for a Triton kernel in the side table."""

    def __init__(self, name: str) -> None:
        self.name = name


def arguments_of(graph: fx.Graph, seed: int = 0) -> list[Any]:
    """Random tensors for the placeholders, with their sizes and strides."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            found.append(int(value))
            continue
        made = torch.empty_strided(
            [int(n) for n in value.shape], [int(n) for n in value.stride()], dtype=value.dtype
        )
        if value.is_floating_point():
            made.uniform_(0.1, 1.0, generator=generator)
        else:
            made.random_(0, 2, generator=generator)
        found.append(made)
    return found


def execute(
    lowered: Lowered, arguments: Sequence[Any], kernels: Sequence[ReadyKernel] = ()
) -> list[Any]:
    """The outputs of a graph, rewritten or not."""
    plans = {
        id(function): (kernel, place)
        for kernel in kernels
        for place, function in enumerate(kernel.functions)
    }
    root = lowered.fx_graph.owning_module or nn.Module()
    result = _Runner(fx.GraphModule(root, lowered.fx_graph), plans).run(*arguments)
    return list(result)


class _Runner(fx.Interpreter):
    def __init__(
        self, module: fx.GraphModule, plans: Mapping[int, tuple[ReadyKernel, int]]
    ) -> None:
        super().__init__(module)
        self.plans = plans
        self.read: dict[int, dict[str, torch.Tensor]] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not triton_kernel_wrapper_functional:
            return super().call_function(target, args, kwargs)
        kernel, place = self.plans[id(kernel_side_table.get_kernel(kwargs["kernel_idx"]))]
        plan = kernel.plan
        constants = dict(kernel_side_table.get_constant_args(kwargs["constant_args_idx"]))
        given = kwargs["kwargs"]
        tensors = {name: held for name, held in given.items() if isinstance(held, torch.Tensor)}
        # Sizes that are known at run time only are arguments like tensors.
        constants |= {name: number for name, number in given.items() if name not in tensors}
        called = abi.kernels(plan, kernel.config.scheme)[place]
        assert list(tensors) == list(called.tensors)
        assert set(constants) == {*called.scalars, *called.constants}
        assert kwargs["tensors_to_clone"] == list(called.writes)
        grid = kwargs["grid"][0]
        if plan.states:
            return scanned(kernel, called, tensors, constants, grid)
        if plan.product is not None:
            return multiplied(kernel, called, tensors, constants, grid)
        if kernel.config.scheme in OVER_ROWS:
            return self._over_rows(kernel, called, tensors, constants, grid)
        assert grid[0] * constants["BLOCK_ROWS"] >= constants["n_rows"]
        if place < len(kernel.functions) - 1:  # partial results: marked, and checked when read
            shape = (constants["n_rows"], constants["n_splits"])
            assert all(tensors[name].shape == shape for name in called.writes)
            return {name: tensors[name].fill_(float(place)) for name in called.writes}
        for name in called.reads[len(plan.inputs) :]:
            assert bool((tensors[name] == place - 1).all())
        inputs = addressed(plan, tensors, constants)
        results = evaluate(plan, list(inputs.values()), "native")
        return {
            name: stored(plan, name, result, tensors[name], constants)
            for name, result in zip(kwargs["tensors_to_clone"], results, strict=True)
        }

    def _over_rows(
        self,
        kernel: ReadyKernel,
        called: abi.KernelAbi,
        tensors: Mapping[str, torch.Tensor],
        constants: Mapping[str, Any],
        grid: tuple[int, ...],
    ) -> dict[str, torch.Tensor]:
        """Shares of the rows are marked; the second kernel gives what the first one computed."""
        columns = constants["n_columns"]
        if called.grid == "parts":
            assert grid[0] * constants["PART_COLUMNS"] >= columns
            for name in called.reads:
                if name.startswith("partial"):
                    assert tensors[name].shape == (constants["n_splits"], columns)
                    assert bool((tensors[name] == 7.0).all())
        else:
            assert grid[called.grid == "shares and columns"] * constants["BLOCK_COLUMNS"] >= columns
        read = self.read.setdefault(id(kernel), {})
        read |= addressed(kernel.plan, tensors, constants)
        axes = kernel.plan.row_axes + kernel.plan.column_axes
        nothing = torch.zeros((1,) * axes)  # read by the other kernel
        inputs = [read.get(item.name, nothing) for item in kernel.plan.inputs]
        values = evaluate(kernel.plan, inputs, "native")
        results = dict(zip(abi.output_names(kernel.plan), values, strict=True))
        return {
            name: stored(kernel.plan, name, results[name], tensors[name], constants)
            if name in results
            else tensors[name].fill_(7.0)
            for name in called.writes
        }


def addressed(
    plan: FusionPlan, tensors: Mapping[str, torch.Tensor], constants: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The inputs as the kernel's own arguments address them, one dimension an axis."""
    held = {t.name: t for t in strided(plan)}
    found = {}
    for item in plan.inputs:
        if item.name not in tensors:
            continue
        sizes, spans = axis_sizes(plan, constants), plan.along(item)
        if len(sizes) < len(spans):  # row axes that no tensor needs apart
            spans = (item.spans[0], *spans[plan.row_axes :])
        shape = [size if span else 1 for size, span in zip(sizes, spans, strict=True)]
        if item.gathered is not None:
            shape = [1] * len(shape[:-1]) + shape[-1:]
            shape[spans.index(True)] = tensors[item.name].shape[0]
        strides = list(torch.empty(shape, device="meta").stride())
        if not item.dense:
            strides = [1] * len(shape)
            for axis, name in held[item.name].strides:
                strides[axis] = constants[name]
        found[item.name] = tensors[item.name].as_strided(shape, strides)
    return found


def axis_sizes(plan: FusionPlan, constants: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes of the axes that a kernel knows, from its arguments."""
    inner = [constants.get(name, 1) for _, name in abi.size_names(plan)]
    columns = [constants.get(name, 1) for _, name in abi.column_size_names(plan)]
    columns = columns or [1] * (plan.column_axes - 1)
    rows = constants["n_rows"] // math.prod(inner)
    return (rows, *inner, constants["n_columns"] // math.prod(columns), *columns)


def stored(
    plan: FusionPlan, name: str, result: torch.Tensor, into: torch.Tensor, constants: Any
) -> torch.Tensor:
    """A result of a plan in memory that is laid out as a kernel's arguments say."""
    held = {t.name: t for t in strided(plan)}.get(name)
    if held is None:
        return result.broadcast_to(*result.shape).reshape(-1).as_strided(into.shape, into.stride())
    sizes = axis_sizes(plan, constants)
    shape = [n if span else 1 for n, span in zip(sizes, held.along, strict=True)]
    strides = [1] * len(shape)
    for axis, parameter in held.strides:
        strides[axis] = constants[parameter]
    made = torch.empty_like(into)
    assert made.stride() == into.stride()
    made.as_strided(shape, strides).copy_(result.reshape(shape))
    return made
