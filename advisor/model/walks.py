"""What the kernels of a program with reductions over the rows compute, each in its place.

A walk over the rows computes what varies along them and takes it into the reductions over them;
what is the same for all rows is computed before. What needs all rows is computed once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from advisor.model.gathers import with_indices
from advisor.model.plan import FusionPlan, PlanOp


@dataclass(frozen=True)
class Walk:
    """The ops of a plan by when they run, each in the order of the plan.

    `fixed` are the same for all rows, `moving` run on every block of rows (reductions over the rows
    among them), `late` at the end; `early` are those of the fixed ops that late ones need.
    `walked` and `ended` name the inputs that are read before the end, and at it.
    """

    fixed: tuple[PlanOp, ...]
    moving: tuple[PlanOp, ...]
    early: tuple[PlanOp, ...]
    late: tuple[PlanOp, ...]
    walked: frozenset[str]
    ended: frozenset[str]


def walk_of(plan: FusionPlan) -> Walk:
    """The parts of a checked plan that has reductions over the rows."""
    late = plan.late_values()
    reductions = [op for op in plan.ops if op.over_rows]
    roots = [str(op.args[0]) for op in reductions]
    roots += [output.value for output in plan.outputs if output.value not in late]
    before = _needed(plan, roots)
    after = _needed(plan, (output.value for output in plan.outputs if output.value in late))
    names = {op.name for op in reductions}
    walked = [op for op in plan.ops if op.name in before and op.name not in late]
    ended = [op for op in plan.ops if op.name in after and op.name not in names]
    steady = ("column", "scalar")
    return Walk(
        fixed=tuple(op for op in walked if op.space in steady),
        moving=tuple(
            op for op in plan.ops if op.name in names or (op in walked and op.space not in steady)
        ),
        early=tuple(op for op in ended if op.name not in late),
        late=tuple(op for op in ended if op.name in late),
        walked=_inputs(plan, walked, roots),
        ended=_inputs(plan, ended, ()),
    )


def _needed(plan: FusionPlan, roots: Iterable[str]) -> set[str]:
    """The ops that lead to some values; what a reduction over the rows needs is not followed."""
    ops = {op.name: op for op in plan.ops}
    found: set[str] = set()
    pending = list(roots)
    while pending:
        op = ops.get(pending.pop())
        if op is not None and op.name not in found:
            found.add(op.name)
            if not op.over_rows:
                pending += [arg for arg in op.args if isinstance(arg, str)]
    return found


def _inputs(plan: FusionPlan, ops: Iterable[PlanOp], roots: Iterable[str]) -> frozenset[str]:
    used = {arg for op in ops for arg in op.args if isinstance(arg, str)} | set(roots)
    return with_indices(plan, (item.name for item in plan.inputs if item.name in used))
