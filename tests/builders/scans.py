"""Scans in captured graphs: their plans, and their kernels' calls run by the plan in PyTorch."""

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
from analyzers.dataflow import dataflow
from analyzers.row_plans import cluster, plan_of
from analyzers.scan_programs import scan_programs
from collectors.live.fx_graph import Lowered

MARK = 7.0


def scans_of(lowered: Lowered) -> list[FusionPlan]:
    """The plans of the scans of a graph."""
    found = [scan.program for scan in scan_programs(dataflow(lowered.graph))]
    phase = lowered.graph.phase
    programs = ((phase, program) for program in found if program is not None)
    return [plan_of(group, phase, "test") for group in cluster(programs)]


def refusals_of(lowered: Lowered) -> list[str]:
    """Why loops of a graph have no plan."""
    return [scan.why for scan in scan_programs(dataflow(lowered.graph)) if scan.program is None]


def scanned(
    kernel: ReadyKernel,
    called: abi.KernelAbi,
    tensors: Mapping[str, torch.Tensor],
    constants: Mapping[str, Any],
    grid: tuple[int, ...],
) -> dict[str, torch.Tensor]:
    """What a kernel of a scan writes, its inputs addressed by the arguments that it gets."""
    plan = kernel.plan
    assert grid[0] * constants["BLOCK_ROWS"] >= constants["n_lanes"]
    if called.grid == "lanes and shares":
        assert grid[1] == constants["n_splits"]
        assert grid[1] * constants["split_steps"] >= constants["n_steps"]
    if called.writes == abi.LINEAR:
        return {name: tensors[name].fill_(MARK) for name in called.writes}
    for name in called.reads[len(plan.inputs) :]:
        assert bool((tensors[name] == MARK).all())
    sizes = _sizes(plan, constants)
    addressed = {tensor.name: tensor for tensor in strided(plan)}
    inputs = []
    for item in plan.inputs:
        shape, strides = _layout(addressed[item.name], sizes, constants)
        tensor = tensors[item.name]
        offset = tensor.storage_offset() + constants[f"{item.name}_offset"]
        inputs.append(tensor.as_strided(shape, strides, offset))
    found = {}
    for name, result in zip(called.writes, evaluate(plan, inputs, "native"), strict=True):
        shape, strides = _layout(addressed[name], sizes, constants)
        made = torch.full_like(tensors[name], float("nan"))
        made.as_strided(shape, strides).copy_(result.expand(shape))
        found[name] = made
    return found


def _sizes(plan: FusionPlan, constants: Mapping[str, Any]) -> tuple[int, ...]:
    inner = [constants[name] for _, name in abi.size_names(plan)]
    outer = constants["n_lanes"] // math.prod(inner)
    if len(inner) < plan.row_axes - 2:  # lanes that no tensor needs apart
        inner = [1] * (plan.row_axes - 2)
    return (outer, *inner, constants["n_steps"], constants["n_columns"])


def _layout(
    tensor: Strided, sizes: tuple[int, ...], constants: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    shape = [size if span else 1 for size, span in zip(sizes, tensor.along, strict=True)]
    strides = [1] * len(shape)
    for axis, name in tensor.strides:
        strides[axis] = constants[name]
    return shape, strides
