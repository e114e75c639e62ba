"""What the ops of a row program compute forward, part by part, in the words of the field.

What no test of `core_names` and `activation_names` fits has no name here.
"""

from __future__ import annotations

from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, PlanOp
from analyzers.activation_names import drops_out
from analyzers.core_names import CoreValues, norm, quantisation, softmax
from analyzers.plan_values import PlanValues


def reduces(op: PlanOp) -> bool:
    """Whether an op is a reduction, along the row or over the rows."""
    return spec_of(op.op).kind == "reduction"


def row_reductions(plan: FusionPlan) -> list[PlanOp]:
    """The reductions along the row, in order."""
    return [op for op in plan.ops if op.space == "row" and reduces(op)]


def cores(plan: FusionPlan) -> list[str]:
    """The computations along the row that have a name, in order, each once."""
    values, found = CoreValues(plan), dict[str, None]()
    for op in row_reductions(plan):
        for name in (softmax(plan, values, op), norm(values, op), quantisation(values, op)):
            if name:
                found[_layer_norm(plan) if name == "layer norm" else name] = None
    return list(found)


def _layer_norm(plan: FusionPlan) -> str:
    if any(item.segments for item in plan.inputs):
        return "group norm"
    return "batch norm" if of_channels(plan) else "layer norm"


def of_channels(plan: FusionPlan) -> bool:
    """Whether a row is what a channel holds of a whole batch: the columns lie around the rows."""
    along_columns = any(item.spans[-1] and not any(item.spans[:-1]) for item in plan.inputs)
    return plan.row_axes == 1 and plan.column_axes > 1 and not along_columns


def prologue(plan: FusionPlan) -> list[str]:
    """What comes before the first reduction: a lookup, a dropout, a residual."""
    values, found = PlanValues(plan.ops), list[str]()
    first = next(filter(reduces, plan.ops), None)
    before = values.sources(first.name) if first is not None else []
    tables = {item.name for item in plan.inputs if item.gathered is not None}
    looked_up = any(tables.intersection(map(str, op.args)) for op in before)
    if looked_up:
        found.append("embedding")
    drops = drops_out(plan, before)
    if drops:
        found.append("dropout")
    whole = {item.name for item in plan.inputs if all(item.spans) and not item.segments}
    joined = [op for op in before if op.space == "tile" and _of_two(op, whole, values, drops)]
    if [op.op for op in joined] == ["add"] and not looked_up:
        found.append("residual add" if plan.phase != "backward" else "gradient add")
    return found


def _of_two(op: PlanOp, whole: set[str], values: PlanValues, drops: bool) -> bool:
    """Whether an op joins two whole tensors; a dropped one is computed here."""
    read = [str(arg) in whole for arg in op.args if isinstance(arg, str)]
    if len(read) != 2:
        return False
    return all(read) or (drops and op.op == "add" and any(read) and not all(read))
