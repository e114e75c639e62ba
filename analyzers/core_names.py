"""What reductions along the row belong to: a norm, a softmax, a quantisation.

Each name is a formula, tested whole: what is reduced, what is made of the result, and that it comes
back to the very values that were reduced. With m = mean x and no matter what weights follow:

- softmax: exp(x - max x) / Σ exp(x - max x); log-softmax: (x - max x) - log Σ exp(x - max x)
- log-sum-exp: max x + log Σ exp(x - max x)
- layer norm: (x - m) / √(mean (x - m)² + ε), the variance perhaps as mean x² - m²
- RMS norm: x / √(mean x² + ε); L2 normalisation: x / √Σx²; L2 norm: √Σx² itself
- quantisation: x over a share of max |x|, rounded to eight bits
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.model.graph import Arg
from advisor.model.optable import FLOAT8_MAX
from advisor.model.plan import FusionPlan, PlanOp
from advisor.model.spaces import Space, space_of
from analyzers.plan_values import PlanValues

_EIGHT_BITS = (*FLOAT8_MAX, "int8")
# What is added to scores of which no share is to be left; no activation gives so little.
_HIDDEN = -1e3
_ROOTS = {"sqrt": 0.5, "rsqrt": -0.5}
_KEEP = ("maximum", "minimum", "add", "where")


class CoreValues(PlanValues):
    """The ops of a plan, and how a value of each row comes back to the row."""

    def __init__(self, plan: FusionPlan) -> None:
        super().__init__(plan.ops)
        # A program that was looked for in a graph, and not placed yet, has no sizes.
        self.columns = plan.sites[0].columns if plan.sites else None
        self._powers: dict[tuple[str, str], float] = {}
        self._spaces = {item.name: space_of(item.spans) for item in plan.inputs}

    def plain(self, value: Arg) -> str:
        """The value that this one is, but for its type, guards, and factors that are numbers."""
        while (op := self.of(self.bare(value))) is not None:
            values = [arg for arg in op.args if isinstance(arg, str) and not _is_number(arg)]
            if op.op == "where":
                values = values[1:]
            is_divided = op.op == "div" and op.args[0] in values
            if len(values) != 1 or not (is_divided or op.op in ("mul", "where")):
                break
            value = values[0]
        return self.bare(value)

    def power(self, value: Arg, row: PlanOp) -> float:
        """The exponent with which a value of the row grows with another; 0 where none is known.

        Factors, guards and numbers that are added change nothing of that.
        """
        op = self.of(value)
        if op is None or op.space != "row":
            return 0.0
        if (op.name, row.name) not in self._powers:
            self._powers[op.name, row.name] = 1.0 if op is row else self._power_of(op, row)
        return self._powers[op.name, row.name]

    def _power_of(self, op: PlanOp, row: PlanOp) -> float:
        powers = [self.power(arg, row) for arg in op.args]
        places = [place for place, power in enumerate(powers) if power]
        if len(places) != 1:
            return 0.0
        here, others = powers[places[0]], [arg for n, arg in enumerate(op.args) if n != places[0]]
        if op.op == "reciprocal" or (op.op == "div" and places == [1]):
            return -here
        if op.op in _ROOTS:
            return here * _ROOTS[op.op]
        # An epsilon that a trace does not hold, or that is one for any value, is an input.
        alone = all(
            _is_number(arg) or self._space(arg) == "scalar" for arg in others[op.op == "where" :]
        )
        scales = op.op in ("cast", "mul", "div")
        return here if scales or (op.op in _KEEP and alone) else 0.0

    def divided(self, row: PlanOp, exponent: float) -> Iterator[tuple[str, PlanOp]]:
        """What a value of the row, to a power, divides, however spelled, and the op that does."""
        for op in self.ops:
            if op.space != "tile" or op.op not in ("mul", "div"):
                continue
            one, other = op.args[:2]
            if self.power(other, row) == (exponent if op.op == "div" else -exponent):
                yield str(one), op
            elif op.op == "mul" and self.power(one, row) == -exponent:
                yield str(other), op

    def unweighted(self, value: Arg) -> str:
        """The value that this one is, but for its type and what is the same in each row."""
        while (op := self.of(self.plain(value))) is not None and op.op == "mul":
            spans = [arg for arg in op.args if self._space(arg) == "tile"]
            if len(spans) != 1:
                break
            value = spans[0]
        return self.plain(value)

    def _space(self, value: Arg) -> Space:
        op = self.of(value)
        return op.space if op is not None else self._spaces.get(str(value), "scalar")

    def is_mean(self, row: Arg, of: str) -> bool:
        """Whether a value of the row is the mean of others, given or as their sum over n."""
        op, share = self.of(self.bare(row)), False
        while op is not None and op.op in ("mul", "div") and not share:
            values = [arg for arg in op.args if not _is_number(arg)]
            if len(values) != 1 or (op.op == "div" and op.args[0] != values[0]):
                return False
            share, op = self.is_share(op), self.of(self.bare(values[0]))
        reduced = op is not None and self.bare(op.args[0]) == of
        return reduced and op is not None and op.op == ("sum" if share else "mean")

    def is_share(self, op: PlanOp, *, root: bool = False) -> bool:
        """Whether an op divides by the number of columns, or its `root`; by whatever number, where
        that of the columns is not known.
        """
        numbers = _numbers(op)
        if len(numbers) != 1 or not numbers[0]:
            return False
        share = numbers[0] if op.op == "mul" else 1 / numbers[0]
        if root:
            # sqrt(n) x / |x| multiplies by the root where |x| divides after.
            share = min(share * share, 1 / (share * share))
        return self.columns is None or abs(share * self.columns - 1) < 1e-4

    def centred(self, value: str) -> str:
        """What the mean is taken from to give a value; empty if none is."""
        op = self.of(value)
        if op is None or op.op != "sub" or op.space != "tile":
            return ""
        inner = self.bare(op.args[0])
        return inner if self.is_mean(op.args[1], inner) else ""


def _is_number(arg: Arg) -> bool:
    """Whether an argument is one; the infinite ones are spelled out."""
    return not isinstance(arg, str) or arg in ("inf", "-inf", "nan")


def _numbers(op: PlanOp) -> list[float]:
    return [float(arg) for arg in op.args if arg is not None and _is_number(arg)]


def softmax(plan: FusionPlan, values: CoreValues, total: PlanOp) -> str:
    """Of Σ exp(x - max x): what it divides, or whose logarithm is taken away or joined."""
    power = values.of(values.plain(total.args[0]))
    if total.op != "sum" or power is None or power.op not in ("exp", "exp2"):
        return ""
    apart = values.of(values.plain(power.args[0]))
    largest = _largest(values, apart)
    if apart is None or largest is None:
        return ""
    # What is read before the largest is known; guards against -inf come after.
    mask = _mask(plan, values, largest)
    logarithms = [
        op for op in plan.ops if op.op in ("log", "log2") and values.bare(op.args[0]) == total.name
    ]
    if any(_is_less(values, op, apart, largest, logarithms) for op in plan.ops):
        return f"{mask}log-softmax"
    if any(values.plain(value) == power.name for value, _ in values.divided(total, 1.0)):
        return f"{mask}softmax"
    sums = [
        op
        for op in plan.ops
        if op.op == "add" and values.sources(op.name).count(largest) and op.space == "row"
    ]
    joined = [op for op in sums if any(values.plain(arg) in _names(logarithms) for arg in op.args)]
    return f"{mask}log-sum-exp" if joined else ""


def _largest(values: CoreValues, apart: PlanOp | None) -> PlanOp | None:
    """The maximum of x that is taken from x; None where anything else is."""
    if apart is None or apart.op != "sub" or apart.space != "tile":
        return None
    largest = values.of(values.plain(apart.args[1]))
    if largest is None or largest.op != "amax":
        return None
    return largest if values.plain(largest.args[0]) == values.plain(apart.args[0]) else None


def _is_less(
    values: CoreValues, op: PlanOp, apart: PlanOp, largest: PlanOp, logarithms: list[PlanOp]
) -> bool:
    """Whether an op takes the logarithm from x - max x, or both from x."""
    if op.op != "sub" or op.space != "tile":
        return False
    logs = _names(logarithms)
    taken = values.of(values.plain(op.args[1]))
    if taken is None:
        return False
    if values.plain(op.args[0]) == apart.name:
        return taken.name in logs
    both = taken.op == "add" and {*map(values.plain, taken.args)} <= {*logs, largest.name}
    return both and values.plain(op.args[0]) == values.plain(apart.args[0])


def _names(ops: list[PlanOp]) -> set[str]:
    return {op.name for op in ops}


def _mask(plan: FusionPlan, values: CoreValues, largest: PlanOp) -> str:
    """`masked ` where some scores are replaced by next to nothing, or a tensor of fewer axes than
    theirs is added, before; `biased ` where one as large is.
    """
    before = values.sources(largest.name)
    chosen = [op for op in before if op.op == "where" and op.space == "tile"]
    if any(number <= _HIDDEN for op in chosen for number in _numbers(op)):
        return "masked "
    held = [item for item in plan.inputs if not item.segments and item.gathered is None]
    partial = {i.name for i in held if not all(i.spans) and sum(i.spans) > 1}
    added = [{*map(str, op.args)} for op in before if op.op in ("add", "where")]
    if any(partial & args for args in added):
        return "masked "
    whole = {item.name for item in held if all(item.spans)}
    return "biased " if any(op.op == "add" and {*op.args} <= whole for op in before) else ""


def norm(values: CoreValues, moment: PlanOp) -> str:
    """Of a variance, or of a mean or sum of squares, whose root divides what it is of."""
    if moment.op == "var":
        return _layer_norm(values, moment, values.bare(moment.args[0]))
    squared = _squared(values, moment)
    if squared is None:
        return ""
    for op in values.ops:  # mean x² - m²
        if _is_variance(values, op, moment, squared):
            return _layer_norm(values, op, squared)
    is_mean = moment.op == "mean" or _is_shared(values, moment)
    if inner := values.centred(squared):
        return _layer_norm(values, moment, inner) if is_mean else ""
    if _divides(values, moment, squared):
        return "RMS norm" if is_mean else "L2 normalisation"
    roots = [op for op in values.ops if op.op == "sqrt" and values.bare(op.args[0]) == moment.name]
    return "L2 norm" if roots and moment.op == "sum" else ""


def _squared(values: CoreValues, moment: PlanOp) -> str | None:
    """What is squared before a mean or sum; None if nothing is."""
    source = values.of(values.bare(moment.args[0]))
    if moment.op not in ("mean", "sum") or source is None or source.op != "mul":
        return None
    one, other = map(values.bare, source.args)
    return one if one == other else None


def _is_variance(values: CoreValues, op: PlanOp, moment: PlanOp, squared: str) -> bool:
    """Whether an op takes the square of the mean from the mean of squares."""
    if op.op != "sub" or op.space != "row":
        return False
    taken = values.of(values.bare(op.args[1]))
    reduced = values.bare(moment.args[0])
    return (
        taken is not None
        and taken.op == "mul"
        and taken.args[0] == taken.args[1]
        and values.is_mean(op.args[0], reduced)
        and values.is_mean(taken.args[0], squared)
    )


def _is_shared(values: CoreValues, moment: PlanOp) -> bool:
    """Whether a sum of squares is divided by the columns, before its root or after."""
    for op in values.ops:
        if op.space == "row" and op.op in ("mul", "div") and values.depends(op, moment):
            half = values.power(op.name, moment) in (0.5, -0.5)
            if values.is_share(op, root=half):
                return True
    return False


def _divides(values: CoreValues, row: PlanOp, value: str) -> bool:
    """Whether the root of a value of the row divides what it was made of."""
    return any(
        value in (values.bare(one), values.plain(one), values.unweighted(one))
        for one, _ in values.divided(row, 0.5)
    )


def _layer_norm(values: CoreValues, variance: PlanOp, value: str) -> str:
    """Where the root of a variance divides x - m, or x of which as much is taken after."""
    for one, op in values.divided(variance, 0.5):
        if values.centred(values.plain(one)) == value or (
            values.centred(values.unweighted(one)) == value
        ):
            return "layer norm"
        if values.unweighted(one) == value and _is_centred_after(values, op, value):
            return "layer norm"
    return ""


def _is_centred_after(values: CoreValues, product: PlanOp, value: str) -> bool:
    """Whether what is made of the mean is taken from a product."""
    means = [op for op in values.ops if op.space == "row" and values.is_mean(op.name, value)]
    return any(
        op.op in ("sub", "add", "fma")
        and values.unweighted(op.args[0]) in (product.name, values.unweighted(product.name))
        and any(values.depends(user, mean) for mean in means for user in _makers(values, op))
        for op in values.ops
        if op.space == "tile"
    )


def _makers(values: CoreValues, op: PlanOp) -> list[PlanOp]:
    return [made for arg in op.args[1:] if (made := values.of(arg)) is not None]


def quantisation(values: CoreValues, largest: PlanOp) -> str:
    """Of the largest absolute value of a row: what it scales is rounded to eight bits."""
    size = values.of(values.bare(largest.args[0]))
    if largest.op != "amax" or size is None or size.op != "abs":
        return ""
    reduced = values.plain(size.args[0])
    scaled = {op.name for one, op in values.divided(largest, 1.0) if values.plain(one) == reduced}
    for op in values.ops:
        if op.op == "cast" and op.dtype in _EIGHT_BITS and _rounded(values, op) in scaled:
            return f"quantisation to {op.dtype}"
    return ""


def _rounded(values: CoreValues, cast: PlanOp) -> str:
    """What is rounded to eight bits: before guards, limits and the rounding to integers."""
    value = values.plain(cast.args[0])
    while (op := values.of(value)) is not None and op.op in ("round", "maximum", "minimum"):
        values_in = [arg for arg in op.args if not _is_number(arg)]
        if len(values_in) != 1:
            break
        value = values.plain(values_in[0])
    return value
