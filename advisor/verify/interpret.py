"""A plan run by PyTorch, op by op: in eager's dtypes, or exactly (float64, no rounding casts).

Or `as_planned`: in float64 with the casts to narrow floats that the plan has, which is what its
kernel rounds. Where what follows amplifies that, a right kernel is far from the exact results.

Random numbers are the kernel's own, in both: float32 also where eager compares them in a narrower
type, as Inductor does. So both see the mask that the kernel draws. What is stored in eight bits is
rounded in both too, since rounding is what such a program is for. Numbers
are compared in all as eager's types have them: beside a bfloat16 0.3 is 0.30078125.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from advisor.model.comparisons import COMPARISONS, as_compared
from advisor.model.gemm import PRODUCT
from advisor.model.graph import Arg, literal_value
from advisor.model.members import first_inputs, split
from advisor.model.optable import FLOAT8_MAX, FLOAT_DTYPES, RANDOM, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp
from advisor.verify.philox import uniform
from advisor.verify.products import product_of
from advisor.verify.scan_steps import evaluate_scan

Precision = Literal["native", "exact", "as_planned"]


def _fused(a: Any, b: Any, c: Any) -> torch.Tensor:
    """a b + c rounded once: float64 holds products of two narrower floats exactly."""
    wide = [item.double() if isinstance(item, torch.Tensor) else item for item in (a, b, c)]
    result: torch.Tensor = wide[0] * wide[1] + wide[2]
    return result


_POINTWISE: dict[str, Callable[..., Any]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "relu": torch.relu,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "sign": torch.sign,
    "logical_not": torch.logical_not,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "where": torch.where,
    "fma": _fused,
}
# PyTorch takes no Python number as (first) operand of these.
_TENSORS_ONLY = frozenset(
    ("maximum", "minimum", "where", *COMPARISONS, "logical_and", "logical_or")
)


def evaluate(
    plan: FusionPlan, inputs: Sequence[torch.Tensor], precision: Precision
) -> tuple[torch.Tensor, ...]:
    """The plan's outputs for inputs of one dimension an axis (size 1 where an input repeats).

    Outputs have one an axis too, of size 1 where they are the same along it. All but `native`
    compute everything in float64.
    """
    if plan.members:
        return _by_member(plan, inputs, precision)
    plan = as_compared(plan)
    values: dict[str, torch.Tensor] = {}
    for item, tensor in zip(plan.inputs, inputs, strict=True):
        wide = precision != "native" and tensor.is_floating_point()
        values[item.name] = tensor.double() if wide else tensor
    for item in plan.inputs:
        if item.gathered is not None:
            values[item.name] = gathered(values[item.name], values[item.gathered])
    sizes = torch.broadcast_shapes(*(values[item.name].shape for item in plan.inputs))
    for item in plan.inputs:
        if item.counts is not None:
            values[item.name] = counted(item, values[item.name])
    if plan.states:

        def run(op: PlanOp, held: dict[str, torch.Tensor]) -> torch.Tensor:
            if spec_of(op.op).kind == "reduction":
                return _reduced(op, held, precision, sizes[: plan.row_axes])
            return _apply(op, held, precision)

        return evaluate_scan(plan, values, run, lambda name: _dtype(name, precision))
    if plan.product is not None:
        values[PRODUCT] = product_of(plan, values)
    last_use = {arg: op.name for op in plan.ops for arg in op.args if isinstance(arg, str)}
    kept = {output.value for output in plan.outputs}
    drawn = plan.drawn_values()
    for op in plan.ops:
        if op.name in drawn:
            values[op.name] = _drawn(op, values, sizes, plan.row_axes)
        elif spec_of(op.op).kind == "reduction":
            values[op.name] = _reduced(op, values, precision, sizes[: plan.row_axes])
        else:
            values[op.name] = _apply(op, values, precision)
        for arg in op.args:
            if isinstance(arg, str) and last_use.get(arg) == op.name and arg not in kept:
                values.pop(arg, None)
    return tuple(
        values[o.value].to(_dtype(o.dtype, precision)) if o.value in drawn else values[o.value]
        for o in plan.outputs
    )


def counted(item: PlanInput, tensor: torch.Tensor) -> torch.Tensor:
    """What an input that counts holds, in the shape and on the device of what is given for it."""
    assert item.counts is not None
    first, step = item.counts
    numbers = torch.arange(tensor.numel(), device=tensor.device)
    return (numbers * step + first).reshape(tensor.shape)


def gathered(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The row of a table [..., columns] for each index [..., 1]."""
    return table.flatten(0, -2)[index[..., 0]]


def _drawn(
    op: PlanOp, values: dict[str, torch.Tensor], sizes: Sequence[int], row_axes: int
) -> torch.Tensor:
    """Random numbers, which stay float32 where they are compared in a narrower type."""
    if op.op != RANDOM:
        return _tensor(op.args[0], values)
    rows = [size if op.space != "column" else 1 for size in sizes[:row_axes]]
    columns = [size if op.space != "row" else 1 for size in sizes[row_axes:]]
    return uniform(_tensor(op.args[0], values), [*rows, *columns])


def _by_member(
    plan: FusionPlan, inputs: Sequence[torch.Tensor], precision: Precision
) -> tuple[torch.Tensor, ...]:
    """The outputs of all members of a horizontal plan, one after the other."""
    found: list[torch.Tensor] = []
    for part, begin in zip(split(plan), first_inputs(plan), strict=True):
        found += evaluate(part, inputs[begin : begin + len(part.inputs)], precision)
    return tuple(found)


def _apply(op: PlanOp, values: dict[str, torch.Tensor], precision: Precision) -> torch.Tensor:
    dtype = _dtype(op.dtype, precision)
    if op.op == "cast":
        value = _tensor(op.args[0], values)
        if precision == "as_planned" and op.dtype in ("float16", "bfloat16"):
            return value.to(getattr(torch, op.dtype)).double()
        if value.dtype == dtype:
            return value
        # What is too large is the largest number, as compiled; in eager from PyTorch 2.13 on.
        largest = FLOAT8_MAX["float8_e4m3fn"]
        return (value.clamp(-largest, largest) if op.dtype == "float8_e4m3fn" else value).to(dtype)
    args = [
        values[arg] if isinstance(arg, str) and arg in values else literal_value(arg)
        for arg in op.args
    ]
    if op.op in _TENSORS_ONLY:
        like = next(a for a in args if isinstance(a, torch.Tensor))
        args = [
            a if isinstance(a, torch.Tensor) else _filled(a, op, position, dtype).to(like.device)
            for position, a in enumerate(args)
        ]
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if dtype == torch.float64 and not any(arg.is_floating_point() for arg in tensors):
        # Of integers alone a float would be made in PyTorch's default, float32.
        wide = {id(arg): arg.double() for arg in tensors if arg.dtype != torch.bool}
        args = [wide.get(id(arg), arg) for arg in args]
    result: torch.Tensor = _POINTWISE[op.op](*args)
    return result.to(dtype)


def _reduced(
    op: PlanOp, values: dict[str, torch.Tensor], precision: Precision, rows: Sequence[int]
) -> torch.Tensor:
    """A reduction over the column axes, or over all of the rows, along which a value may repeat."""
    operand = _tensor(op.args[0], values)
    axes = tuple(range(len(rows), operand.dim()))
    if op.over_rows:
        axes = tuple(range(len(rows)))
        operand = operand.expand(*rows, *operand.shape[len(rows) :])
    if op.op in ("sum", "mean"):
        reduce = torch.sum if op.op == "sum" else torch.mean
        return reduce(operand, axes, keepdim=True, dtype=_dtype(op.dtype, precision))
    if op.op == "var":
        return torch.var(operand, axes, correction=op.correction, keepdim=True)
    extreme = torch.amax if op.op == "amax" else torch.amin
    return extreme(operand, axes, keepdim=True)


def _filled(number: float, op: PlanOp, position: int, dtype: torch.dtype) -> torch.Tensor:
    """A literal as a tensor without dimensions, which does not promote the other operands."""
    if op.op == "where" and position == 0:
        return torch.tensor(bool(number))
    test = spec_of(op.op).result == "bool" and isinstance(number, float)
    return torch.tensor(
        number, dtype=torch.float64 if test else None if op.dtype == "bool" else dtype
    )


def _tensor(arg: Arg, values: dict[str, torch.Tensor]) -> torch.Tensor:
    return values[str(arg)]


def _dtype(name: str, precision: Precision) -> torch.dtype:
    if precision != "native" and name in FLOAT_DTYPES:
        return torch.float64
    dtype: torch.dtype = getattr(torch, name)
    return dtype
