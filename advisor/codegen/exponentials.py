"""What is divided by exponentials: softmax, sigmoid and SiLU, as graphs have them.

An exponential is never negative, and neither is what is added up of some: its reciprocal is the
square of its reciprocal root, one special function, where a division checks and scales both sides.
"""

from __future__ import annotations

from collections.abc import Iterable

from advisor.codegen.expressions import POINTWISE
from advisor.model.graph import Arg
from advisor.model.optable import FLOAT_DTYPES
from advisor.model.plan import PlanOp

INVERSE = "inverse"
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


def pointwise_helpers(ops: Iterable[PlanOp]) -> set[str]:
    """The device functions that pointwise ops call."""
    every = tuple(ops)
    rows = (POINTWISE.get(op.op) for op in every)
    found = {row.helper for row in rows if row is not None and row.helper is not None}
    return found | ({INVERSE} if divided_by_exponentials(every) else set())


def _positive(arg: Arg, known: set[str]) -> bool:
    return arg in known or (isinstance(arg, (int, float)) and arg >= 0)
