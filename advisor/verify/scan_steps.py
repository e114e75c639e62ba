"""A scan run by PyTorch: what needs no state at once, the rest step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from advisor.model.graph import literal_value
from advisor.model.plan import FusionPlan, PlanOp
from advisor.model.scan import PlanState, stateful

RunOp = Callable[[PlanOp, dict[str, torch.Tensor]], torch.Tensor]


def evaluate_scan(
    plan: FusionPlan,
    inputs: Mapping[str, torch.Tensor],
    run: RunOp,
    dtype_of: Callable[[str], torch.dtype],
) -> tuple[torch.Tensor, ...]:
    """The outputs for inputs of one dimension an axis; `run` computes an op of values by name."""
    axis, known = plan.row_axes - 1, stateful(plan)
    sizes = torch.broadcast_shapes(*(tensor.shape for tensor in inputs.values()))
    backwards = {item.name for item in plan.inputs if item.reverse}
    whole = {n: t.flip(axis) if n in backwards else t for n, t in inputs.items()}
    for op in plan.ops:
        if op.name not in known:
            whole[op.name] = run(op, whole)
    states = {state.name: _first(state, whole, sizes, axis, dtype_of) for state in plan.states}
    steps = [op for op in plan.ops if op.name in known]
    read = {arg for op in steps for arg in op.args if isinstance(arg, str)} & whole.keys()
    found: dict[str, list[torch.Tensor]] = {output.value: [] for output in plan.outputs}
    for step in range(sizes[axis]):
        values = {name: _of_step(whole[name], axis, step) for name in read} | states
        for op in steps:
            values[op.name] = run(op, values)
        states = {state.name: values[state.value] for state in plan.states}
        for name, rows in found.items():
            rows.append(values[name] if name in values else _of_step(whole[name], axis, step))
    held = {state.value: states[state.name] for state in plan.states}
    results = []
    for output in plan.outputs:
        if output.last:
            results.append(held[output.value])
            continue
        rows = found[output.value]
        if not rows:
            shape = output.shape(sizes[:-1], sizes[-1:])
            results.append(torch.empty(shape, dtype=dtype_of(output.dtype), device=_device(inputs)))
            continue
        results.append(torch.cat(rows[::-1] if output.reverse else rows, axis))
    return tuple(results)


def _of_step(tensor: torch.Tensor, axis: int, step: int) -> torch.Tensor:
    return tensor.narrow(axis, step, 1) if tensor.shape[axis] > 1 else tensor


def _first(
    state: PlanState,
    values: Mapping[str, torch.Tensor],
    sizes: Sequence[int],
    axis: int,
    dtype_of: Callable[[str], torch.dtype],
) -> torch.Tensor:
    """A state before the first step, as large as it will be."""
    shape = (*sizes[:axis], 1, sizes[-1] if state.space == "tile" else 1)
    if isinstance(state.initial, str) and state.initial in values:
        return values[state.initial].to(dtype_of(state.dtype)).expand(shape)
    number = literal_value(state.initial)
    return torch.full(shape, number, dtype=dtype_of(state.dtype), device=_device(values))


def _device(values: Mapping[str, torch.Tensor]) -> torch.device:
    return next(iter(values.values())).device
