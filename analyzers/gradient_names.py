"""What a backward row program differentiates, by the way its row sums come back into the row.

With g the gradient that arrives (times the weight, where there is one), n the columns:

- layer norm, x̂ its normalised input: (g - (Σg + x̂ Σ(g x̂)) / n) · rstd
- RMS norm: g · rstd - x Σ(g x) · rstd³ / n
- softmax, y its result: g y - y Σ(g y)
- log-softmax, y its result: g - exp(y) Σg

as ATen's `derivatives.yaml` and decompositions have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.model.graph import Arg
from advisor.model.plan import FusionPlan, PlanOp


class _Program:
    """The ops of a plan by name; names are looked through casts, signs and constant factors."""

    def __init__(self, plan: FusionPlan) -> None:
        self.ops = plan.ops
        # A program that was looked for in a graph, and not placed yet, has no sizes.
        self.columns = plan.sites[0].columns if plan.sites else None
        self._by_name = {op.name: op for op in plan.ops}

    def of(self, value: Arg) -> PlanOp | None:
        return self._by_name.get(str(value))

    def bare(self, value: Arg) -> str:
        """The value that this one is, but for its type, its sign or a constant factor."""
        op = self.of(value)
        while op is not None and (inner := _inner(op)) is not None:
            value, op = inner, self.of(inner)
        return str(value)

    def row_sums(self) -> list[PlanOp]:
        return [op for op in self.ops if op.op in ("sum", "mean") and op.space == "row"]

    def factors(self, value: Arg) -> tuple[str, ...]:
        """What is multiplied to give a value; empty if it is no product."""
        op = self.of(self.bare(value))
        return _values(self, op) if op is not None and op.op == "mul" else ()

    def from_row(self, total: PlanOp) -> set[str]:
        """All values of a whole row that a sum leads to, itself included."""
        found = {total.name}
        for op in self.ops:
            if op.space == "row" and found.intersection(map(str, op.args)):
                found.add(op.name)
        return found

    def back(self, total: PlanOp) -> Iterator[tuple[PlanOp, str]]:
        """Ops that multiply a sum (or what became of it) into the row, and by which value."""
        known = self.from_row(total)
        for op in self.ops:
            if op.op not in ("mul", "fma") or op.name in known:
                continue
            pair = [str(argument) for argument in op.args[:2]]
            for value, other in (pair, pair[::-1]):
                if value in known:
                    yield op, self.bare(other)


def gradient_name(plan: FusionPlan) -> str:
    """`layer norm`, `group norm`, `RMS norm`, `softmax` or `log-softmax`; empty for any other."""
    program = _Program(plan)
    sums = program.row_sums()
    if any(_is_layer_norm(program, one, other) for one in sums for other in sums):
        return "group norm" if any(item.segments for item in plan.inputs) else "layer norm"
    for total in sums:
        for name, test in (
            ("softmax", _is_softmax),
            ("log-softmax", _is_log_softmax),
            ("RMS norm", _is_rms_norm),
        ):
            if test(program, total):
                return name
    return ""


def _is_layer_norm(program: _Program, one: PlanOp, other: PlanOp) -> bool:
    """Σg and Σ(g x̂), of which the second comes back times x̂."""
    factors = program.factors(other.args[0])
    gradient = program.bare(one.args[0])
    if one is other or gradient not in factors:
        return False
    return any(by in factors and by != gradient for _, by in program.back(other))


def _is_softmax(program: _Program, total: PlanOp) -> bool:
    product, factors = program.bare(total.args[0]), program.factors(total.args[0])
    return any(by in factors and _takes(program, op, product) for op, by in program.back(total))


def _is_log_softmax(program: _Program, total: PlanOp) -> bool:
    gradient = program.bare(total.args[0])
    for op, by in program.back(total):
        power = program.of(by)
        if power is not None and power.op == "exp" and _takes(program, op, gradient):
            return True
    return False


def _is_rms_norm(program: _Program, total: PlanOp) -> bool:
    """Σ(g x) comes back times x, over the number of columns."""
    factors = program.factors(total.args[0])
    if len(set(factors)) < 2:
        return False  # Σx²: the norm itself, computed again
    known = program.from_row(total)
    after = [op for op in program.ops if op.name in known or known.intersection(map(str, op.args))]
    shares = total.op == "mean" or any(_is_share(op, program.columns) for op in after)
    return shares and any(by in factors for _, by in program.back(total))


def _takes(program: _Program, op: PlanOp, value: str) -> bool:
    """Whether a product is taken from a value: `value - product`, or a fused multiply-add on it."""
    if op.op == "fma":
        return program.bare(op.args[2]) == value
    users = [user for user in program.ops if op.name in map(str, user.args)]
    return any(
        user.op in ("sub", "add") and value in map(program.bare, user.args) for user in users
    )


def _is_share(op: PlanOp, columns: int | None) -> bool:
    if columns is None:
        return False
    numbers = [float(argument) for argument in op.args if isinstance(argument, int | float)]
    if op.op == "div":
        return columns in numbers
    return op.op == "mul" and any(abs(number * columns - 1) < 1e-6 for number in numbers)


def _inner(op: PlanOp) -> Arg | None:
    """What a cast, a change of sign or a constant factor is applied to; None for other ops."""
    if op.op in ("cast", "neg"):
        return op.args[0]
    if op.op == "mul":
        values = [argument for argument in op.args if isinstance(argument, str)]
        return values[0] if len(values) == 1 else None
    return None


def _values(program: _Program, op: PlanOp) -> tuple[str, ...]:
    names: Sequence[Arg] = [a for a in op.args if isinstance(a, str)]
    return tuple(program.bare(name) for name in names)
