"""Products in captured graphs: their plans, and their kernels' calls run by the plan in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from advisor.apply.kernels import ReadyKernel
from advisor.codegen import abi
from advisor.codegen.strided import Strided, strided
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from analyzers.gemm_programs import GemmFound, gemm_programs, taken_by
from analyzers.row_plans import cluster, plan_of
from analyzers.row_programs import find_row_programs
from collectors.live.fx_graph import Lowered


def products_of(lowered: Lowered) -> tuple[GemmFound, ...]:
    """What is found of the products of a graph."""
    found = find_row_programs(lowered.graph)
    return gemm_programs(found.flow, taken_by(found))


def gemms_of(lowered: Lowered) -> list[FusionPlan]:
    """The plans of the products of a graph with what follows them."""
    phase = lowered.graph.phase
    programs = [item.program for item in products_of(lowered)]
    groups = cluster((phase, program) for program in programs if program is not None)
    return [plan_of(group, phase, "test") for group in groups]


def multiplied(
    kernel: ReadyKernel,
    called: abi.KernelAbi,
    tensors: Mapping[str, torch.Tensor],
    constants: Mapping[str, Any],
    grid: tuple[int, ...],
) -> dict[str, torch.Tensor]:
    """What the kernel writes, its inputs addressed by the arguments that it gets."""
    plan = kernel.plan
    rows, columns = constants["n_rows"], constants["n_columns"]
    tiles = math.ceil(rows / constants["BLOCK_ROWS"])
    assert grid[0] == tiles * math.ceil(columns / constants["BLOCK_COLUMNS"])
    inner = [constants[name] for _, name in abi.size_names(plan)]
    outer = [rows // math.prod(inner), *inner]
    outer += [1] * (plan.row_axes - 1 - len(outer))  # rows that no tensor needs apart
    sizes = (*outer, constants["n_depth"], columns)
    addressed = {tensor.name: tensor for tensor in strided(plan)}
    inputs = []
    for item in plan.inputs:
        shape, strides = _layout(addressed[item.name], item.spans, sizes, constants)
        inputs.append(tensors[item.name].as_strided(shape, strides))
    found = {}
    for name, result in zip(called.writes, evaluate(plan, inputs, "native"), strict=True):
        shape, strides = _layout(addressed[name], addressed[name].along, sizes, constants)
        made = torch.full_like(tensors[name], float("nan"))
        made.as_strided(shape, strides).copy_(result.expand(shape))
        found[name] = made
    return found


def _layout(
    tensor: Strided,
    spans: tuple[bool, ...],
    sizes: tuple[int, ...],
    constants: Mapping[str, Any],
) -> tuple[list[int], list[int]]:
    """Shape and strides; row axes that are walked as one get theirs from the innermost."""
    shape = [size if span else 1 for size, span in zip(sizes, spans, strict=True)]
    strides = [1] * len(shape)
    for axis, name in tensor.strides:
        strides[axis] = constants[name]
    for axis in reversed(range(len(sizes) - 3)):
        if spans[axis] and not tensor.along[axis]:
            strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return shape, strides
