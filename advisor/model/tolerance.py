"""How far a kernel's results may be from exact ones: counted from its plan, not fitted."""

from __future__ import annotations

import math
from typing import NamedTuple

from advisor.model.gemm import PRODUCT, TF32_BITS_OF, depth_of
from advisor.model.optable import FLOAT_DTYPES, spec_of
from advisor.model.plan import FusionPlan
from advisor.model.scan import carried_ops

# Rounding the result costs half an ulp; another order of float32 operations may cost one more.
FLOOR_ULPS = 2.0
EAGER_FACTOR = 2.0
# How far eager's own error may stretch the allowance where results are rounded to a narrow type.
MOST_STRETCH = 4.0
# Cancellation inside a program amplifies float32 roundings; beyond this it is another computation.
MOST_FLOAT32_ULPS = 64.0
ROUNDED = ("round", "floor", "ceil")
# The share of rounded integers that may be one off.
MOST_STEPS = 1e-3
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# The steps of the longest case that a scan is verified with.
LONGEST_SCAN = 1000


def roundings(plan: FusionPlan, value: str) -> tuple[str, ...]:
    """The narrow types that the plan itself casts to on the way to a value, in order.

    Operands of a product that matrix units round are first, as the type with as many bits.
    """
    by_name = {op.name: op for op in plan.ops}
    needed, pending = set(), [value]
    while pending:
        name = pending.pop()
        if name in by_name and name not in needed:
            needed.add(name)
            pending += [arg for arg in by_name[name].args if isinstance(arg, str)]
    casts = [op.dtype for op in plan.ops if op.name in needed and op.op == "cast"]
    multiplied = any(PRODUCT in by_name[name].args for name in needed)
    rounded = plan.product is not None and plan.product.tf32 and multiplied
    return (TF32_BITS_OF,) * rounded + tuple(dtype for dtype in casts if dtype in NARROW)


def steps(plan: FusionPlan, value: str) -> bool:
    """Whether a value is an integer that a float was rounded to: where one lay between two of them,
    the last place of a float32 decides which.
    """
    by_name = {op.name: op for op in plan.ops}
    op = by_name.get(value)
    if op is None or op.op != "cast" or op.dtype in FLOAT_DTYPES:
        return False
    while op is not None and op.op in ("cast", "minimum", "maximum"):
        op = next((by_name[str(arg)] for arg in op.args if arg in by_name), None)
    return op is not None and op.op in ROUNDED


class Allowance(NamedTuple):
    """Error in ulps that is always allowed, and that twice eager's own may stretch it to."""

    ulps: float
    most_ulps: float

    def beside(self, eager_ulps: float) -> float:
        """What is allowed where eager itself is that far off."""
        return max(self.ulps, min(EAGER_FACTOR * eager_ulps, self.most_ulps))


def longest_sum(plan: FusionPlan, rows: int, columns: int) -> int:
    """The most terms that a reduction of a plan has."""
    return max(rows, columns) if plan.late_values() else columns


def allowance(plan: FusionPlan, value: str, terms: int, *, narrow: bool) -> Allowance:
    """Error in ulps that a value may have: the floor and one a rounding of the plan.

    Eager rounds every narrow intermediate, the kernel only where the plan casts, so eager's own
    error stretches the allowance only so far. Counted in float32's last place (not `narrow`),
    pairwise summation of n terms adds about log2(n) ulps (Higham, Accuracy and Stability of
    Numerical Algorithms, 4.2) for every reduction.
    """
    reductions = sum(spec_of(op.op).kind == "reduction" for op in plan.ops)
    summed = 0.0 if narrow else reductions * math.log2(max(terms, 2))
    if plan.states and not narrow:
        # Every step rounds, and hands its error on: a walk of random steps goes as their root.
        steps = max((site.row_sizes[-1] for site in plan.sites), default=LONGEST_SCAN)
        summed += carried_ops(plan) * math.sqrt(max(steps, LONGEST_SCAN))
    if plan.product is not None and not narrow:
        # Every term rounds the sum so far, likewise.
        summed += math.sqrt(max((depth_of(site) for site in plan.sites), default=LONGEST_SCAN))
    ulps = FLOOR_ULPS + len(roundings(plan, value)) + summed
    return Allowance(ulps, MOST_STRETCH * ulps if narrow else max(ulps, MOST_FLOAT32_ULPS))
