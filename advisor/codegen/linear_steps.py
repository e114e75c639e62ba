"""A step that is linear in its state, s' = a s + b, as text: what a and b are made of.

Every op between a state and what it becomes has an a and a b of its own, from those of its
operands; an operand without state has a = 0. What zeros and ones make of them is not written.
"""

from __future__ import annotations

from advisor.codegen.values import Values
from advisor.model.graph import Arg
from advisor.model.plan import PlanOp
from advisor.model.scan import linear_path, stateful


def linear_step(values: Values) -> tuple[list[str], str, str]:
    """Statements for a step's a and b, and what these are called."""
    plan = values.plan
    known, state = stateful(plan), plan.states[0]
    parts: dict[str, tuple[str, str]] = {state.name: ("1.0", "0.0")}
    lines: list[str] = []
    for op in linear_path(plan) or ():
        a, b = _of_op(op, [_of_operand(values, arg, op, parts, known) for arg in op.args])
        names = []
        for text, name in ((a, f"{op.name}_a"), (b, f"{op.name}_b")):
            plain = text in ("0.0", "1.0") or text.isidentifier()
            names.append(text if plain else name)
            lines += [] if plain else [f"{name} = {text}"]
        parts[op.name] = (names[0], names[1])
    return lines, *parts[state.value]


def _of_operand(
    values: Values, arg: Arg, op: PlanOp, parts: dict[str, tuple[str, str]], known: frozenset[str]
) -> tuple[str, str]:
    if isinstance(arg, str) and arg in known:
        return parts[arg]
    wanted = "bool" if op.op == "where" and arg is op.args[0] else op.dtype
    return "0.0", values.operand(arg, wanted)


def _of_op(op: PlanOp, terms: list[tuple[str, str]]) -> tuple[str, str]:
    """The a and b of an op from those of its operands."""
    (a, b), *others = terms
    if op.op == "cast":
        return a, b
    if op.op == "neg":
        return times("-1.0", a), times("-1.0", b)
    if op.op == "where":
        (left_a, left_b), (right_a, right_b) = others
        return f"tl.where({b}, {left_a}, {right_a})", f"tl.where({b}, {left_b}, {right_b})"
    next_a, next_b = others[0]
    if op.op == "add":
        return plus(a, next_a), plus(b, next_b)
    if op.op == "sub":
        return plus(a, times("-1.0", next_a)), plus(b, times("-1.0", next_b))
    if op.op == "div":
        return f"{a} / {next_b}", "0.0" if b == "0.0" else f"{b} / {next_b}"
    found = times(next_b, a) if next_a == "0.0" else times(b, next_a)
    constant = times(b, next_b)
    if op.op == "fma":
        return plus(found, others[1][0]), plus(constant, others[1][1])
    return found, constant


def times(first: str, second: str) -> str:
    """A product, without factors of one; zero if a factor is."""
    if "0.0" in (first, second):
        return "0.0"
    if "1.0" in (first, second):
        return second if first == "1.0" else first
    return f"-{_grouped(second)}" if first == "-1.0" else f"{_grouped(first)} * {_grouped(second)}"


def plus(first: str, second: str) -> str:
    """A sum, without terms of zero."""
    if "0.0" in (first, second):
        return second if first == "0.0" else first
    return f"{_grouped(first)} + {_grouped(second)}"


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text
