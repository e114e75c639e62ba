"""Special functions that cost less where they stand: softmax, SiLU, GELU, as graphs have them.

An exponential is never negative, and neither is what is added up of some: its reciprocal is the
square of its reciprocal root, one special function, where a division checks and scales both sides.
An erf that is added to 1 needs no more digits than the sum has.
"""

from __future__ import annotations

from collections.abc import Iterable

from advisor.codegen.expressions import POINTWISE
from advisor.model.graph import Arg
from advisor.model.optable import FLOAT_DTYPES, RANDOM
from advisor.model.plan import FusionPlan, PlanOp

INVERSE, ERF_BESIDE, DRAW = "inverse", "erf_beside", "draw"
# What an erf is added to: a number that is not small beside it.
_NOT_SMALL = 0.5
_EXPONENTIALS = ("exp", "exp2", "sigmoid")
# Of what is never negative they make what is never negative.
_KEPT = ("add", "mul", "sum", "mean", "amax", "amin", "cast")


def divided_by_exponentials(ops: Iterable[PlanOp]) -> frozenset[str]:
    """The divisions and reciprocals among ops whose divisor is an exponential or a sum of some."""
    known: set[str] = set()
    found: set[str] = set()
    for op in ops:
        if op.dtype not in FLOAT_DTYPES:
            continue
        if op.op in ("div", "reciprocal") and op.args[-1] in known:
            found.add(op.name)
        named = any(arg in known for arg in op.args)
        if op.op in _EXPONENTIALS or (
            op.op in _KEPT and named and all(_positive(arg, known) for arg in op.args)
        ):
            known.add(op.name)
    return frozenset(found)


def erfs_beside_numbers(plan: FusionPlan) -> frozenset[str]:
    """The erfs of which nothing is read but sums with numbers that are not small."""
    erfs = {op.name for op in plan.ops if op.op == "erf"}
    other = {output.value for output in plan.outputs}
    for op in plan.ops:
        numbers = [arg for arg in op.args if isinstance(arg, (int, float))]
        added = op.op in ("add", "sub") and any(abs(number) >= _NOT_SMALL for number in numbers)
        if not added:
            other.update(arg for arg in op.args if isinstance(arg, str))
    return frozenset(erfs - other)


def pointwise_helpers(plan: FusionPlan) -> set[str]:
    """The device functions that the pointwise ops of a plan call."""
    rows = (POINTWISE.get(op.op) for op in plan.ops)
    found = {row.helper for row in rows if row is not None and row.helper is not None}
    found |= {DRAW} if any(op.op == RANDOM for op in plan.ops) else set()
    found |= {INVERSE} if divided_by_exponentials(plan.ops) else set()
    return found | ({ERF_BESIDE} if erfs_beside_numbers(plan) else set())


def _positive(arg: Arg, known: set[str]) -> bool:
    return arg in known or (isinstance(arg, (int, float)) and arg >= 0)
