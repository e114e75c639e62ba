"""What a backward row program differentiates, by the way its row sums come back into the row.

With g the gradient that arrives (times the weight, where there is one), n the columns:

- layer norm, x̂ its normalised input: (g - (Σg + x̂ Σ(g x̂)) / n) · rstd
- RMS norm: g · rstd - x Σ(g x) · rstd³ / n
- L2 normalisation, y = x / |x|: g / |x| - x Σ(g x) / |x|³
- softmax, y its result: g y - y Σ(g y)
- log-softmax, y its result: g - exp(y) Σg; of a cross-entropy if g is chosen by the target

as ATen's `derivatives.yaml` and decompositions have them. The powers of the size r that divides a
row tell a norm's gradient from those of other functions x rᵖ, which are made of the same sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from advisor.model.graph import Arg
from advisor.model.plan import FusionPlan, PlanOp
from analyzers.plan_values import PlanValues

# Ops that keep factors, to a power; of a guard and of ε the value that they are for.
_FACTORS = {
    "cast": 1.0, "neg": 1.0, "mul": 1.0, "div": 1.0, "sum": 1.0, "mean": 1.0, "add": 1.0,
    "maximum": 1.0, "where": 1.0, "reciprocal": -1.0, "sqrt": 0.5, "rsqrt": -0.5, "pow": 0.0,
}  # fmt: skip
# The exponents of a size r in 1 / r, by itself and by its square.
_SIZES = (1.0, 0.5)


class _Program(PlanValues):
    """The ops of a backward plan; values are looked through casts, signs, and factors that are
    constant or one a row.
    """

    def __init__(self, plan: FusionPlan) -> None:
        super().__init__(plan.ops)
        # A program that was looked for in a graph, and not placed yet, has no sizes.
        self.columns = plan.sites[0].columns if plan.sites else None
        self._whole = {item.name for item in plan.inputs if all(item.spans)}
        held = (item for item in plan.inputs if not item.segments and item.gathered is None)
        axes = plan.column_axes
        self._powers: dict[str, Counter[str]] = {}
        self._rows = {item.name for item in held if not any(item.spans[-axes:])}

    def is_whole_input(self, value: str) -> bool:
        """Whether it is a tensor that is read whole."""
        return value in self._whole

    def inner(self, op: PlanOp) -> Arg | None:
        """What a cast, a sign, a guard or a factor of the row is applied to; None for other ops."""
        if op.op in ("cast", "neg"):
            return op.args[0]
        if op.op == "where":
            chosen = [arg for arg in op.args[1:] if isinstance(arg, str)]
            return chosen[0] if len(chosen) == 1 and self._is_narrow(op.args[0]) else None
        if op.op == "div" and op.space == "tile":
            return op.args[0] if self._is_narrow(op.args[1]) else None
        if op.op == "mul":
            values = [arg for arg in op.args if isinstance(arg, str)]
            if len(values) == 1:
                return values[0]
            wide = [arg for arg in values if not self._is_narrow(arg)]
            return wide[0] if len(wide) == 1 and op.space == "tile" else None
        return None

    def _is_narrow(self, value: Arg) -> bool:
        """Whether it is a number, or one number a row."""
        if not isinstance(value, str):
            return True
        op = self.of(value)
        return op.space == "row" if op is not None else value in self._rows

    def row_sums(self) -> list[PlanOp]:
        return [op for op in self.ops if op.op in ("sum", "mean") and op.space == "row"]

    def factors(self, value: Arg) -> tuple[str, ...]:
        """What is multiplied to give a value; empty if it is no product."""
        op = self.of(self.bare(value))
        return _values(self, op) if op is not None and op.op == "mul" else ()

    def row_powers(self, value: Arg) -> Counter[str]:
        """The numbers of each row that a product holds as factors, with their exponents."""
        op = self.of(value)
        if op is None:
            return Counter({str(value): 1.0} if str(value) in self._rows else {})
        if op.name not in self._powers:
            self._powers[op.name] = self._powers_of(op)
        return self._powers[op.name].copy()

    def _powers_of(self, op: PlanOp) -> Counter[str]:
        squared = op.op in ("sum", "mean") and len({*op.args, *self.factors(op.args[0])}) < 3
        if op.op not in _FACTORS or squared:
            return Counter({op.name: 1.0} if op.space == "row" else {})
        kept = [arg for arg in op.args[1:] if isinstance(arg, str)] if op.op == "where" else op.args
        powers = [self.row_powers(arg) for arg in kept] or [Counter()]
        exponent = _FACTORS[op.op]
        if op.op == "pow":
            exponent = float(op.args[1]) if isinstance(op.args[1], int | float) else 0.0
        found = Counter({name: exponent * power for name, power in powers[0].items()})
        for name, power in powers[1].items() if op.op in ("mul", "div") else ():
            found[name] += power if op.op == "mul" else -power
        return found

    def terms(self, term: PlanOp, values: set[str]) -> dict[str, list[Counter[str]]]:
        """Of the sum that a product is a term of, terms that are one of the `values`, looked
        through: each with the numbers of the row by which it is multiplied in the end.
        """
        root, after, sums = term, Counter[str](), {term.name}
        for op in self.ops:
            if op.space != "tile" or not sums.intersection(map(str, op.args)):
                continue
            if op.op in ("add", "sub", "fma", "neg", "cast"):
                sums.add(op.name)
                root = op
            elif op.op in ("mul", "div"):
                after = self._scaled(after, op, sums)
                break
        found: dict[str, list[Counter[str]]] = {value: [] for value in values}
        self._collect(root.name, after, found, set())
        return found

    def _collect(
        self, value: Arg, scale: Counter[str], found: dict[str, list[Counter[str]]], seen: set[str]
    ) -> None:
        """Terms below a value, each sum entered once."""
        while (op := self.of(value)) is not None and (inner := self.inner(op)) is not None:
            value, scale = inner, self._scaled(scale, op, {str(inner)})
        if op is None or str(value) in found or op.op not in ("add", "sub", "fma"):
            found.get(str(value), []).append(scale)
            return
        if op.name in seen:
            return
        seen.add(op.name)
        for place, arg in enumerate(op.args):
            other = op.args[1 - place] if op.op == "fma" and place < 2 else None
            own = scale if other is None else _together(scale, self.row_powers(other))
            self._collect(arg, own, found, seen)

    def _scaled(self, scale: Counter[str], op: PlanOp, values: set[str]) -> Counter[str]:
        """A scale with what an op multiplies some values by, or divides them."""
        if op.op not in ("mul", "div"):
            return scale
        exponent = 1.0 if op.op == "mul" else -1.0
        for arg in op.args:
            if str(arg) not in values:
                scale = _together(scale, self.row_powers(arg), exponent)
        return scale

    def is_chosen(self, total: PlanOp) -> bool:
        """Whether what is summed depends on which column the target is."""
        made = self.sources(str(total.args[0]))
        return any(op.op == "eq" and op.space == "tile" for op in made)

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
    """`layer norm`, `group norm`, `RMS norm`, `L2 normalisation`, `softmax`, `log-softmax` or
    `cross-entropy`; empty for any other.
    """
    program = _Program(plan)
    sums = program.row_sums()
    if any(_is_layer_norm(program, one, other) for one in sums for other in sums):
        return "group norm" if any(item.segments for item in plan.inputs) else "layer norm"
    for total in sums:
        for name, test in (
            ("softmax", _is_softmax),
            ("log-softmax", _is_log_softmax),
            ("RMS norm", _is_rms_norm),
            ("L2 normalisation", _is_l2),
        ):
            if test(program, total):
                chosen = name == "log-softmax" and program.is_chosen(total)
                return "cross-entropy" if chosen else name
    return ""


def are_norm_sums(plan: FusionPlan) -> bool:
    """Whether the row sums are Σg and Σ(g x), and leave as they are: another program uses them."""
    program = _Program(plan)
    sums = program.row_sums()
    results = {output.value for output in plan.outputs}
    return len(sums) == 2 and any(
        program.bare(one.args[0]) in program.factors(other.args[0])
        and {one.name, other.name} <= results
        for one, other in (sums, sums[::-1])
    )


def _is_layer_norm(program: _Program, one: PlanOp, other: PlanOp) -> bool:
    """Σg and Σ(g x̂), of which the second comes back times x̂."""
    factors = program.factors(other.args[0])
    gradient = program.bare(one.args[0])
    if one is other or gradient not in factors:
        return False
    return any(
        by in factors and by != gradient and _is_over_a_size(program, op, by, gradient)
        for op, by in program.back(other)
    )


def _is_softmax(program: _Program, total: PlanOp) -> bool:
    product, factors = program.bare(total.args[0]), program.factors(total.args[0])
    return any(by in factors and _takes(program, op, product) for op, by in program.back(total))


def _is_log_softmax(program: _Program, total: PlanOp) -> bool:
    gradient = program.bare(total.args[0])
    for op, by in program.back(total):
        power = program.of(by)
        is_power = power is not None and power.op == "exp"
        # What was saved may be exp(y): then the choice of a target says what it is.
        saved = program.is_whole_input(by) and program.is_chosen(total)
        if (is_power or saved) and _takes(program, op, gradient):
            return True
    return False


def _is_rms_norm(program: _Program, total: PlanOp) -> bool:
    """Σ(g x) comes back times x, over the number of columns."""
    factors = program.factors(total.args[0])
    if len(set(factors)) < 2:
        return False  # Σx²: the norm itself, computed again
    if not _comes_as_a_share(program, total):
        return False
    # x may be held twice: as it was read, and as what was squared.
    held = any(map(program.is_whole_input, factors))
    return any(
        (by in factors or (held and program.is_whole_input(by)))
        and any(
            _takes(program, op, value) and _is_over_a_size(program, op, by, value)
            for value in factors
            if value != by
        )
        for op, by in program.back(total)
    )


def _comes_as_a_share(program: _Program, total: PlanOp) -> bool:
    known = program.from_row(total)
    after = [op for op in program.ops if op.name in known or known.intersection(map(str, op.args))]
    return total.op == "mean" or any(_is_share(op, program.columns) for op in after)


def _is_l2(program: _Program, total: PlanOp) -> bool:
    """Σ(g x) comes back times x, and is taken from g: no share of the columns."""
    factors = program.factors(total.args[0])
    if len(set(factors)) < 2 or _comes_as_a_share(program, total):
        return False
    for op, by in program.back(total):
        others = [value for value in factors if value != by and by in factors]
        if any(_takes(program, op, g) and _is_over_a_size(program, op, by, g) for g in others):
            return True
    return False


def _is_over_a_size(program: _Program, op: PlanOp, by: str, gradient: str) -> bool:
    """Whether the gradient arrives over r where the sum comes back over r³, or with x / r over r.

    Of x rᵖ with any other p they arrive as rᵖ and rᵖ⁻²; r may be given as its square or inverse.
    """
    terms = program.terms(op, {by, gradient})
    return any(
        abs(power) in _SIZES and scale[name] in (power, 3 * power)
        for powers in terms[gradient]
        for name, power in powers.items()
        for scale in terms[by]
    )


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


def _values(program: _Program, op: PlanOp) -> tuple[str, ...]:
    names: Sequence[Arg] = [a for a in op.args if isinstance(a, str)]
    return tuple(program.bare(name) for name in names)


def _together(one: Counter[str], other: Counter[str], exponent: float = 1.0) -> Counter[str]:
    """The factors of a product, the second to a power; also exponents below zero."""
    return Counter({name: one[name] + exponent * other[name] for name in {**one, **other}})
