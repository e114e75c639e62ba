"""Derivatives of the ops of the table: what an op's gradient gives each of its operands.

As PyTorch's own (`tools/autograd/derivatives.yaml`): half to each of two equal values in a maximum,
an even share to all equal ones in a reduction, nothing where a function is flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from advisor.codegen.tape import Tape
from advisor.model.graph import Arg, literal_value
from advisor.model.plan import PlanOp

LN_2, TWO_OVER_ROOT_PI = math.log(2.0), 2.0 / math.sqrt(math.pi)
# Constant almost everywhere, or of a seed: no gradient.
FLAT = ("floor", "ceil", "round", "sign", "random")

Rule = Callable[[Tape, PlanOp, str], Sequence[str | None]]


def _times(factor: Callable[[Tape, Arg, str], Arg]) -> Rule:
    """The gradient of a function of one value: that of its result times `factor(x, f(x))`."""
    return lambda t, op, g: [t.op("mul", g, factor(t, op.args[0], op.name))]


def _over(divisor: Callable[[Tape, Arg, str], Arg]) -> Rule:
    return lambda t, op, g: [t.op("div", g, divisor(t, op.args[0], op.name))]


def _pow(t: Tape, op: PlanOp, g: str) -> Sequence[str | None]:
    base, power = op.args
    if not isinstance(power, str) or power not in t.spaces:
        number = float(literal_value(power))
        if number == 0.0:
            return [None, None]
        lower: Arg = base if number == 2.0 else t.op("pow", base, number - 1.0)
        return [t.op("mul", t.op("mul", g, number), lower), None]
    lower = t.op("mul", power, t.op("pow", base, t.op("sub", power, 1.0)))
    flat = t.op("eq", power, 0.0, dtype="bool")
    of_base = t.op("where", flat, 0.0, t.op("mul", g, lower))
    zero = t.op("eq", base, 0.0, dtype="bool") if t.varies(base) else None
    log = t.op("log", base) if t.varies(base) else math.log(float(literal_value(base)))
    of_power = t.op("mul", g, t.op("mul", op.name, log))
    if zero is not None:
        still = t.op("logical_and", zero, t.op("ge", power, 0.0, dtype="bool"), dtype="bool")
        of_power = t.op("where", still, 0.0, of_power)
    return [of_base, of_power]


def _extreme(wins: str, bound: str) -> Rule:
    """maximum and minimum: halves where two values are equal, all of it at a constant bound."""

    def rule(t: Tape, op: PlanOp, g: str) -> Sequence[str | None]:
        a, b = op.args
        if not (t.varies(a) and t.varies(b)):
            return [
                t.op("where", t.op(bound, x, y, dtype="bool"), g, 0.0) if t.varies(x) else None
                for x, y in ((a, b), (b, a))
            ]
        equal, half = t.op("eq", a, b, dtype="bool"), t.op("mul", g, 0.5)
        parts = [t.op("where", t.op(wins, x, y, dtype="bool"), g, 0.0) for x, y in ((a, b), (b, a))]
        return [t.op("where", equal, half, part) for part in parts]

    return rule


POINTWISE: dict[str, Rule] = {
    "neg": lambda t, op, g: [t.op("neg", g)],
    "abs": _times(lambda t, x, y: t.op("sign", x)),
    "exp": _times(lambda t, x, y: y),
    "exp2": _times(lambda t, x, y: t.op("mul", y, LN_2)),
    "expm1": _times(lambda t, x, y: t.op("add", y, 1.0)),
    "log": _over(lambda t, x, y: x),
    "log2": _over(lambda t, x, y: t.op("mul", x, LN_2)),
    "log1p": _over(lambda t, x, y: t.op("add", x, 1.0)),
    "sqrt": _over(lambda t, x, y: t.op("mul", y, 2.0)),
    "rsqrt": _times(lambda t, x, y: t.op("mul", t.op("mul", y, -0.5), t.op("mul", y, y))),
    "reciprocal": _times(lambda t, x, y: t.op("mul", t.op("neg", y), y)),
    "sin": _times(lambda t, x, y: t.op("cos", x)),
    "cos": _times(lambda t, x, y: t.op("neg", t.op("sin", x))),
    "tanh": _times(lambda t, x, y: t.op("sub", 1.0, t.op("mul", y, y))),
    "sigmoid": _times(lambda t, x, y: t.op("mul", y, t.op("sub", 1.0, y))),
    "erf": _times(
        lambda t, x, y: t.op("mul", t.op("exp", t.op("neg", t.op("mul", x, x))), TWO_OVER_ROOT_PI)
    ),
    "relu": lambda t, op, g: [t.op("where", t.op("gt", op.name, 0.0, dtype="bool"), g, 0.0)],
    "add": lambda t, op, g: [g, g],
    "sub": lambda t, op, g: [g, t.op("neg", g)],
    "mul": lambda t, op, g: [t.op("mul", g, op.args[1]), t.op("mul", g, op.args[0])],
    "div": lambda t, op, g: [
        t.op("div", g, op.args[1]),
        t.op("neg", t.op("div", t.op("mul", g, op.name), op.args[1])),
    ],
    "pow": _pow,
    "maximum": _extreme("gt", "ge"),
    "minimum": _extreme("lt", "le"),
    "where": lambda t, op, g: [
        None,
        t.op("where", op.args[0], g, 0.0),
        t.op("where", op.args[0], 0.0, g),
    ],
    "fma": lambda t, op, g: [t.op("mul", g, op.args[1]), t.op("mul", g, op.args[0]), g],
    "cast": lambda t, op, g: [g],
}


def _of_extreme(t: Tape, op: PlanOp, g: str) -> str:
    """Shared evenly by all that are as large."""
    hit = t.op("eq", op.args[0], op.name, dtype="bool")
    ties = t.op("sum", t.op("where", hit, 1.0, 0.0))
    return t.op("where", hit, t.op("div", g, ties), 0.0)


def _of_var(t: Tape, op: PlanOp, g: str) -> str:
    """2 (x - mean x) / (n - correction)."""
    apart = t.op("sub", op.args[0], t.op("mean", op.args[0]))
    share = t.op("div", t.op("mul", g, 2.0), t.op("sub", t.columns(), op.correction))
    return t.op("mul", apart, share)


REDUCTIONS: dict[str, Callable[[Tape, PlanOp, str], str]] = {
    "sum": lambda t, op, g: g,
    "mean": lambda t, op, g: t.op("div", g, t.columns()),
    "amax": _of_extreme,
    "amin": _of_extreme,
    "var": _of_var,
}
