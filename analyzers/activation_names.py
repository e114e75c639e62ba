"""Activations among the ops of a program, as ATen's decompositions spell them, and dropout.

- ReLU: max(x, 0); SiLU: x · sigmoid(x) or x / (1 + exp(-x))
- GELU: x Φ(x), with Φ(x) = (1 + erf(x / √2)) / 2, or (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2
  (Hendrycks and Gimpel, 2016)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.model.graph import Arg
from advisor.model.optable import RANDOM
from advisor.model.plan import FusionPlan, PlanOp
from analyzers.plan_values import PlanValues

_GELU_CUBIC, _ROOT_HALF = 0.044715, math.sqrt(0.5)


class _Values(PlanValues):
    """Ops by the value that each makes; values are looked through types and numbers as factors."""

    def inner(self, op: PlanOp) -> Arg | None:
        """What a cast, or a number, is applied to; None for other ops."""
        values = [arg for arg in op.args if isinstance(arg, str)]
        return values[0] if op.op in ("cast", "mul") and len(values) == 1 else None


def activations(ops: Sequence[PlanOp]) -> list[str]:
    """ReLU, GELU and SiLU among ops, each once."""
    here = _Values(ops)
    normal = {op.name for op in ops if _is_normal(op, here)}
    found: dict[str, None] = {}
    for op in ops:
        if op.op == "relu":
            found["ReLU"] = None
        elif op.op == "mul" and _is_gelu(op, here, normal):
            found["GELU"] = None
        elif op.op in ("mul", "div") and _is_gate(op, here):
            found["SiLU"] = None
    return list(found)


def activation_gradients(ops: Sequence[PlanOp]) -> list[str]:
    """Activations whose gradients ops take: of ReLU where x ≤ 0 gives 0, of the others by what
    their derivatives are computed of.
    """
    here, found = _Values(ops), dict[str, None]()
    for op in ops:
        test = here.of(op.args[0])
        if op.op == "where" and test is not None and test.op == "le":
            if test.args[1] == op.args[1] == 0:
                found["ReLU"] = None
        elif op.op == "add" and _is_normal(op, here) and _is_gelu_slope(op, here):
            found["GELU"] = None
        elif op.op == "sub" and op.args[0] == 1 and _is(here.of(op.args[1]), "sigmoid"):
            more = {user.name for user in ops if op.name in user.args and user.op == "mul"}
            if any(u.op == "add" and more & {*u.args} and 1 in u.args for u in ops):
                found["SiLU"] = None
    return list(found)


def _is(op: PlanOp | None, name: str) -> bool:
    return op is not None and op.op == name


def _is_normal(op: PlanOp, here: _Values) -> bool:
    """Whether an op makes 2 Φ(x): one more than an erf of x / √2, or than the tanh of a cubic."""
    if op.op != "add" or 1 not in op.args:
        return False
    inner = next((made for arg in op.args if (made := here.of(arg)) is not None), None)
    if inner is None:
        return False
    scaled = here.of(inner.args[0])
    if inner.op == "erf" and scaled is not None:
        share = {"mul": _ROOT_HALF, "div": 1 / _ROOT_HALF}.get(scaled.op)
        return share is not None and any(_near(arg, share) for arg in scaled.args)
    return inner.op == "tanh" and any(
        _near(arg, _GELU_CUBIC) for made in here.sources(inner.name) for arg in made.args
    )


def _is_gelu_slope(normal: PlanOp, here: _Values) -> bool:
    """Whether x times the derivative of Φ(x) is there too: x exp(-x²/2), or the cubic's slope."""
    sources = here.sources(normal.name)
    if not any(op.op == "erf" for op in sources):
        return any(_near(arg, 3 * _GELU_CUBIC) for op in here.ops for arg in op.args)
    read = {str(arg) for op in sources for arg in op.args if isinstance(arg, str)}
    for op in here.ops:
        pair = [here.bare(arg) for arg in op.args if isinstance(arg, str)]
        if op.op == "mul" and any(_is(here.of(one), "exp") for one in pair) and read & {*pair}:
            return True
    return False


def _near(arg: Arg, number: float) -> bool:
    return isinstance(arg, float) and abs(arg - number) < 1e-6


def _is_gelu(op: PlanOp, here: _Values, normal: set[str]) -> bool:
    """Whether x, perhaps halved, is multiplied by what is made of Φ(x) alone."""
    for one, other in (op.args[:2], op.args[1::-1]):
        share = here.bare(one)
        if share in normal:
            read = {str(arg) for made in here.sources(share) for arg in made.args}
            if isinstance(other, str) and here.bare(other) in read:
                return True
    return False


def _is_gate(op: PlanOp, here: _Values) -> bool:
    """Whether a value is multiplied by its sigmoid: `x * sigmoid(x)` or `x / (1 + exp(-x))`."""
    value, other = op.args[0], here.of(op.args[1])
    if op.op == "mul":
        return other is not None and other.op == "sigmoid" and other.args == (value,)
    if other is None or 1 not in other.args:
        return False
    for expected in ("add", "exp", "neg"):
        if other is None or other.op != expected:
            return False
        inner = other.args[0]
        other = here.of(inner)
    return inner == value


def drops_out(plan: FusionPlan, among: Sequence[PlanOp] | None = None) -> bool:
    """Whether random numbers `among` the ops are compared with a probability to keep something."""
    drawn = {op.name for op in plan.ops if op.op == RANDOM}
    drawn |= {op.name for op in plan.ops if op.op == "cast" and op.args[0] in drawn}
    tests = {
        op.name
        for op in (plan.ops if among is None else among)
        if op.op == "gt" and op.args[0] in drawn and isinstance(op.args[1], float)
    }
    return any(op.op in ("mul", "where") and tests & set(map(str, op.args)) for op in plan.ops)
