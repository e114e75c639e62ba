"""Special functions that cost less where they stand: softmax, SiLU, GELU, as graphs have them.

An exponential is never negative, and neither is what is added up of some: its reciprocal is the
square of its reciprocal root, one special function, where a division checks and scales both sides.
Below the smallest normal number such a root knows only 0, as 2^x does: what may become that small
is divided by, or asked for its logarithm, at full cost. An erf that is added to 1 needs no more
digits than the sum has, a tanh of 16 bits no more than these; what divides a whole row is inverted
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.codegen.expressions import POINTWISE
from advisor.model.comparisons import COMPARISONS
from advisor.model.graph import Arg
from advisor.model.optable import FLOAT8_MAX, FLOAT_DTYPES, RANDOM
from advisor.model.plan import FusionPlan, PlanOp
from advisor.model.spaces import space_of

INVERSE, DIVIDED, ERF_BESIDE = "inverse", "divided", "erf_beside"
TANH_16, DRAW = "tanh_16", "draw"
# What an erf is added to: a number that is not small beside it.
_NOT_SMALL = 0.5
_EXPONENTIALS = ("exp", "exp2", "sigmoid")
# Of what is never negative they make what is never negative.
_KEPT = ("add", "mul", "sum", "mean", "amax", "amin", "cast")
# Whose results jump where their operand has a last place more.
_ROUNDING = ("floor", "ceil", "round", "sign")
# The gradient goes to the elements that are equal to them.
_EXTREMES = ("amax", "amin")
# Products of a few numbers of this size are normal float32.
_LEAST = 1e-9
# Of their operand (the last of a division) they tell 0 from what is next to nothing.
_TELLING = ("log", "log2", "rsqrt", "reciprocal", "div", "pow", *COMPARISONS)


def divided_by_exponentials(ops: Iterable[PlanOp]) -> frozenset[str]:
    """The divisions and reciprocals whose divisor is made of exponentials, and never tiny."""
    rows = tuple(ops)
    sizeable = _sizeable(rows)
    return frozenset(
        op.name
        for op in rows
        if op.op in ("div", "reciprocal") and op.dtype in FLOAT_DTYPES and op.args[-1] in sizeable
    )


def exponentials_told_from_0(ops: Iterable[PlanOp]) -> frozenset[str]:
    """The exponentials of which something that reads them tells the tiniest from 0."""
    rows = tuple(ops)
    sizeable = _sizeable(rows)
    told: set[Arg] = set()
    for op in reversed(rows):
        beside = [arg for arg in op.args if isinstance(arg, (int, float)) and abs(arg) >= _LEAST]
        if op.op in _TELLING and not (op.dtype == "bool" and beside):
            told |= {op.args[-1]} if op.op == "div" else set(op.args)
        hidden = op.name in sizeable or (op.op in ("add", "sub") and beside)
        if op.name in told and not hidden:
            told |= set(op.args)
    return frozenset(op.name for op in rows if op.op == "exp" and op.name in told)


def _sizeable(ops: Sequence[PlanOp]) -> frozenset[str]:
    """What is made of exponentials, never negative and far above the smallest normal number."""
    known: set[str] = set()
    found: set[str] = set()
    peaks: set[str] = set()
    relative: set[str] = set()
    shifted: set[str] = set()
    for op in ops:
        if op.dtype not in FLOAT_DTYPES:
            continue
        if op.op == "amax" or (op.op in ("where", "cast", "maximum") and peaks & set(op.args)):
            peaks.add(op.name)
        scaled = op.op in ("mul", "div", "cast") and shifted & set(op.args)
        if (op.op == "sub" and op.args[1] in peaks) or (scaled and _one_value(op)):
            shifted.add(op.name)
        if op.op in _EXPONENTIALS:
            known.add(op.name)
            relative |= {op.name} if op.op != "sigmoid" and op.args[0] in shifted else set()
            continue
        if op.op not in _KEPT or not any(arg in known for arg in op.args):
            continue
        if not all(_positive(arg, known) for arg in op.args):
            continue
        known.add(op.name)
        large = [arg in found or _is_least(arg) for arg in op.args]
        if op.op == "cast" and op.args[0] in relative:
            relative.add(op.name)
            continue
        of_peak = op.op in ("sum", "mean", "amax") and op.args[0] in relative  # which is 1
        if of_peak or (any(large) if op.op == "add" else all(large)):
            found.add(op.name)
    return frozenset(found)


def erfs_beside_numbers(plan: FusionPlan) -> frozenset[str]:
    """The erfs of which nothing is read but sums with numbers that are not small."""
    erfs = {op.name for op in plan.ops if op.op == "erf"}
    other = {output.value for output in plan.outputs} | {state.value for state in plan.states}
    for op in plan.ops:
        numbers = [arg for arg in op.args if isinstance(arg, (int, float))]
        added = op.op in ("add", "sub") and any(abs(number) >= _NOT_SMALL for number in numbers)
        if not added:
            other.update(arg for arg in op.args if isinstance(arg, str))
    return frozenset(erfs - other)


def divided_by_rows(plan: FusionPlan) -> frozenset[str]:
    """The divisions of tiles by what is the same throughout a row, but for exponentials.

    None whose last place decides on an integer or a truth value, here or in another kernel: what a
    written maximum is compared with is divided there again.
    """
    spaces = {item.name: space_of(item.spans) for item in plan.inputs}
    spaces |= {op.name: op.space for op in plan.ops}
    written = {output.value for output in plan.outputs}
    other, exact = divided_by_exponentials(plan.ops), set[Arg]()
    for op in reversed(plan.ops):
        floats = op.dtype in FLOAT_DTYPES or op.dtype in FLOAT8_MAX
        compared = op.op in _EXTREMES and op.name in written
        if op.op in _ROUNDING or compared or not floats or op.name in exact:
            exact |= set(op.args)
    return frozenset(
        op.name
        for op in plan.ops
        if op.op == "div" and op.dtype in FLOAT_DTYPES and op.name not in other | exact
        if op.space == "tile" and spaces.get(str(op.args[1])) in ("row", "scalar")
    )


def is_short_tanh(op: PlanOp) -> bool:
    """Whether an op is a tanh whose result has 16 bits."""
    return op.op == "tanh" and op.dtype in ("float16", "bfloat16")


def pointwise_helpers(plan: FusionPlan) -> set[str]:
    """The device functions that the pointwise ops of a plan call."""
    rows = (POINTWISE.get(op.op) for op in plan.ops if not is_short_tanh(op))
    found = {row.helper for row in rows if row is not None and row.helper is not None}
    found |= {DRAW} if any(op.op == RANDOM for op in plan.ops) else set()
    found |= {TANH_16} if any(map(is_short_tanh, plan.ops)) else set()
    found |= {DIVIDED} if divided_by_rows(plan) else set()
    found |= {INVERSE} if divided_by_exponentials(plan.ops) else set()
    return found | ({ERF_BESIDE} if erfs_beside_numbers(plan) else set())


def _positive(arg: Arg, known: set[str]) -> bool:
    return arg in known or (isinstance(arg, (int, float)) and arg >= 0)


def _one_value(op: PlanOp) -> bool:
    return sum(isinstance(arg, str) for arg in op.args) == 1


def _is_least(arg: Arg) -> bool:
    return isinstance(arg, (int, float)) and arg >= _LEAST
