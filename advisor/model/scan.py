"""Scans: what a plan says of steps that each read what the one before made, and what follows.

    s[t] = f(s[t-1], x[t], w)      y[t] = g(s[t], s[t-1], x[t], w)

The ops of the plan are those of one step, on [lanes, columns]: the state of every lane goes through
all steps in turn, and lanes know nothing of each other. The last row axis are the steps.

A step that is linear in its one state, s' = a s + b, is a function that is closed under
composition: (a2, b2) after (a1, b1) is (a2 a1, a2 b1 + b2). So blocks of steps can be computed at
once (G. Blelloch, "Prefix Sums and Their Applications", 1990).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.graph import NON_FINITE, Arg, literal_value
from advisor.model.optable import FLOAT_DTYPES, RANDOM, item_bytes, spec_of
from advisor.units import counted

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan, PlanOp, Site

MAX_STATES = 4
STREAMED_BYTES = 4
_NARROW = ("float16", "bfloat16")


class PlanState(Record, frozen=True, kw_only=True):
    """What a step of a scan reads of the one before: `value` as it was then, at first `initial`.

    `initial` is a number, or an input that is the same in all steps.
    """

    name: str
    value: str
    initial: Arg
    dtype: str
    space: Literal["tile", "row"]


# --- the parts of a step --------------------------------------------------------------------------


def lanes_of(site: Site) -> int:
    """The lanes of a site: all rows of one step."""
    return math.prod(site.row_sizes[:-1])


def steps_of(site: Site) -> int:
    """The steps of a site."""
    return site.row_sizes[-1]


def sizes_text(site: Site) -> str:
    """The sizes of a site in words: `64 steps, 1,536 lanes × 16`."""
    columns = f" × {site.columns:,}" if site.columns > 1 else ""
    return f"{counted(steps_of(site), 'step')}, {counted(lanes_of(site), 'lane')}{columns}"


def lane_axes(plan: FusionPlan) -> int:
    """The row axes but the last, which are the steps."""
    return plan.row_axes - 1


def stateful(plan: FusionPlan) -> frozenset[str]:
    """The states and all values that depend on one."""
    found = {state.name for state in plan.states}
    for op in plan.ops:
        if found.intersection(a for a in op.args if isinstance(a, str)):
            found.add(op.name)
    return frozenset(found)


def fixed_values(plan: FusionPlan) -> frozenset[str]:
    """The inputs and values that are the same in all steps."""
    found = {item.name for item in plan.inputs if not item.spans[-2]}
    for op in plan.ops:
        if all(arg in found for arg in op.args if isinstance(arg, str) and arg not in NON_FINITE):
            found.add(op.name)
    return frozenset(found)


def loads_ahead(plan: FusionPlan, site: Site, per_thread: float) -> bool:
    """Whether loads of later steps can be on their way: cp.async moves four bytes at least.

    A thread has `per_thread` elements of a step, which it loads at once if they lie side by side.
    """
    inner = -1 if site.columns > 1 else plan.row_axes - 2
    return all(
        item_bytes(item.dtype) * (max(per_thread, 1) if strides[inner] == 1 else 1)
        >= STREAMED_BYTES
        for item, strides in zip(plan.inputs, site.input_strides, strict=True)
        if item.spans[-2]
    )


# --- steps that can be joined ---------------------------------------------------------------------


def linear_path(plan: FusionPlan) -> tuple[PlanOp, ...] | None:
    """The ops that the state goes through to its next value, if they are linear in it.

    None for several states, for anything that is not linear or rounds on the way, and where the
    state of the step before is read off the path: it is never there by itself.
    """
    if len(plan.states) != 1:
        return None
    state = plan.states[0]
    known = stateful(plan)
    needed = _needed(plan, state.value) & known
    path = tuple(op for op in plan.ops if op.name in needed)
    inner = {state.name, *needed} - {state.value}
    read = {op.name for op in plan.ops if inner.intersection(op.args)}
    written = {output.value for output in plan.outputs}
    if state.value not in known or not read <= needed or written & inner:
        return None
    return path if all(_is_linear(op, known) for op in path) else None


def _needed(plan: FusionPlan, value: str) -> set[str]:
    """The ops that a value is computed by."""
    by_name = {op.name: op for op in plan.ops}
    found: set[str] = set()
    pending = [value]
    while pending:
        op = by_name.get(pending.pop())
        if op is not None and op.name not in found:
            found.add(op.name)
            pending += [arg for arg in op.args if isinstance(arg, str)]
    return found


def _is_linear(op: PlanOp, known: frozenset[str]) -> bool:
    """Whether an op is linear, with a constant term, in the operands that depend on the state."""
    carries = [arg in known for arg in op.args]
    if op.dtype not in FLOAT_DTYPES:
        return False
    if op.op in ("add", "sub", "neg"):
        return True
    if op.op == "cast":
        return op.dtype not in _NARROW
    if op.op == "mul":
        return sum(carries) == 1
    if op.op == "div":
        return carries == [True, False]
    if op.op == "fma":
        return not (carries[0] and carries[1])
    return op.op == "where" and not carries[0]


# --- checks ---------------------------------------------------------------------------------------


def check_states(plan: FusionPlan) -> None:
    """Raise `InvalidRecordError` where a plan's states are none, before its ops are checked."""
    if (plan.family == "scan") != bool(plan.states):
        _fail(f"a {plan.family} with {len(plan.states)} states")
    if not plan.states:
        return
    if len(plan.states) > MAX_STATES or plan.row_axes < 2 or plan.column_axes != 1:
        _fail("too many states, no axis of steps, or several column axes")
    inputs = {item.name: item for item in plan.inputs}
    ops = {op.name: op for op in plan.ops}
    for number, state in enumerate(plan.states):
        made = ops.get(state.value)
        if state.name != f"s{number}" or made is None:
            _fail(f"state {number} is not named s{number}, or nothing makes it")
        elif (made.dtype, made.space) != (state.dtype, state.space):
            _fail(f"{state.name}: another dtype or space than {made.name}")
        if state.dtype not in FLOAT_DTYPES:
            _fail(f"{state.name}: a state of {state.dtype}")
        first = inputs.get(state.initial) if isinstance(state.initial, str) else None
        if first is None:
            literal_value(state.initial)
        elif first.spans[-2] or first.dtype not in FLOAT_DTYPES:
            _fail(f"{state.name}: its first value is not the same in all steps, or no float")


def check_steps(plan: FusionPlan) -> None:
    """Raise `InvalidRecordError` for what no step of a scan has, after its ops were checked."""
    if not plan.states:
        backwards = [item.reverse for item in plan.inputs]
        last = plan.product is None and any(output.last for output in plan.outputs)
        if last or any(backwards) or any(output.reverse for output in plan.outputs):
            _fail("only a scan has steps")
        return
    made = {state.value for state in plan.states}
    for op in plan.ops:
        if op.over_rows or op.op in (RANDOM, "var") or spec_of(op.op).kind == "view":
            _fail(f"{op.name}: {op.op} may not occur in a step")
    for output in plan.outputs:
        if output.last and output.value not in made:
            _fail(f"output {output.value}: only a state is written after the last step")
    if any(item.dense for item in plan.inputs) or not all(o.strided for o in plan.outputs):
        _fail("a tensor without strides: steps find their part of it by these")
    for site in plan.sites:
        offsets = site.input_offsets
        if len(offsets) != len(plan.inputs) or any(not 0 <= n < 2**31 for n in offsets):
            _fail(f"site in {site.graph}: offsets do not fit the plan")


def _fail(what: str) -> None:
    raise InvalidRecordError(what, where="scan")


def carried_ops(plan: FusionPlan) -> int:
    """The ops of a step that its next state takes: each rounds once more."""
    needed = set[str]().union(*(_needed(plan, state.value) for state in plan.states))
    return len(needed)
