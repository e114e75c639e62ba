"""Reductions carried along a loop: the text of their states, their steps and their ends.

Every lane of a block keeps a state of its own, so that the loop needs no exchange between threads;
lanes, or the parts of a split row, are combined once. A state starts with what changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from advisor.codegen.expressions import IDENTITY, LOG2_E
from advisor.codegen.values import Values, divisor, masked
from advisor.model.passes import Fold

NOTHING = 'float("-inf")'

HELPERS: dict[str, str] = {
    "add_exponential": '''
@triton.jit
def add_exponential(peak, total, x, FACTOR: tl.constexpr):
    """(peak, total) with one more x in every lane; total = sum of 2^(FACTOR (x - peak)).

    Whichever is larger, one exponential corrects the other side.
    """
    less = tl.where(x == peak, 1.0, tl.exp2(-FACTOR * tl.abs(x - peak)))
    total = tl.where(x > peak, total * less + 1.0, total + less)
    return tl.maximum(peak, x, propagate_nan=tl.PropagateNan.ALL), total
''',
    "add_moment": '''
@triton.jit
def add_moment(mean, squares, x, ok, share):
    """Mean and sum of squared deviations with one more x in every lane (Welford).

    `share` is 1 / the number of values so far; lanes that are not `ok` keep theirs.
    """
    apart = x - mean
    moved = mean + apart * share
    return tl.where(ok, moved, mean), tl.where(ok, squares + apart * (x - moved), squares)
''',
}


class State(NamedTuple):
    """One number a lane: its name, and what it starts with."""

    name: str
    identity: str


def states(fold: Fold) -> tuple[State, ...]:
    """What a fold keeps in every lane."""
    first = NOTHING if fold.kind == "exponentials" else IDENTITY.get(fold.kind, "0.0")
    identities = (first, "0.0")
    return tuple(State(*pair) for pair in zip(fold.states, identities, strict=False))


def helpers(fold: Fold) -> tuple[str, ...]:
    """The device functions that a fold calls, of this module and of the op table."""
    if fold.kind == "exponentials":
        return ("add_exponential", "max_nan")
    named = {"moments": "add_moment", "amax": "max_nan", "amin": "min_nan"}
    return (named[fold.kind],) if fold.kind in named else ()


def starts(fold: Fold, values: Values) -> list[str]:
    """The states before the first block."""
    rows = "BLOCK_ROWS" if values.spaces[fold.operand] == "tile" else "1"
    shape = f"({rows}, BLOCK_COLUMNS)"
    return [f"{s.name}_lanes = tl.full({shape}, {s.identity}, tl.float32)" for s in states(fold)]


def step(fold: Fold, values: Values) -> str:
    """One block more; `share` is 1 / the number of blocks so far."""
    x, lanes = values.operand(fold.operand, "float32"), f"{fold.result}_lanes"
    if fold.kind == "exponentials":
        call = f"{helpers(fold)[0]}({fold.result}_peak_lanes, {lanes}, {masked(x, NOTHING)}"
        return f"{fold.result}_peak_lanes, {lanes} = {call}, {_factor(fold)!r})"
    if fold.kind == "moments":
        means = f"{fold.result}_mean_lanes"
        return f"{means}, {lanes} = add_moment({means}, {lanes}, {x}, column_ok, share)"
    if fold.kind in ("amax", "amin"):
        return f"{lanes} = {helpers(fold)[0]}({lanes}, {masked(x, IDENTITY[fold.kind])})"
    if fold.kind == "deviations":
        x = f"({x} - {fold.partner}) * ({x} - {fold.partner})"
    return f"{lanes} += {masked(x, '0.0')}"


def ends(fold: Fold, parts: str, counts: str, total: str, *, whole: bool) -> list[str]:
    """Lanes or parts (named by `parts`) combined along the columns.

    `counts` is how many columns each stands for, `total` their sum. A `whole` row's result is
    divided as its op says and has the names of the plan; that of a part keeps those of its states.
    """
    own = f"{fold.result}_{parts}"
    scale = _scale(fold) if whole else ""
    if fold.kind == "exponentials":
        peak = fold.partner if whole else f"{fold.result}_peak"
        apart = f"{fold.result}_peak_{parts} - {peak}"
        factor = _factor(fold)
        exponent = apart if factor == 1 else f"{factor!r} * ({apart})"
        weight = f"tl.exp2({exponent})"
        if not whole:  # a part may be -inf throughout, and the row not
            weight = f"tl.where({fold.result}_peak_{parts} == {peak}, 1.0, {weight})"
        lines = [
            f"{peak} = tl.reduce({fold.result}_peak_{parts}, 1, max_nan)[:, None]",
            f"{fold.result} = {_sum(f'{own} * {weight}')}{scale}",
        ]
        if whole and fold.guarded:  # relative to 0, the sum is that of e^-inf or holds e^inf
            infinite = f'tl.where({peak} > 0, float("inf"), 0.0)'
            test = f'tl.abs({peak}) == float("inf")'
            lines.append(f"{fold.result} = tl.where({test}, {infinite}, {fold.result})")
        return lines
    if fold.kind == "moments":
        mean, apart = f"{fold.result}_mean", f"{fold.result}_apart"
        return [
            f"{mean} = {_sum(f'{counts} * {mean}_{parts}')} / {total}",
            f"{apart} = {mean}_{parts} - {mean}",
            f"{fold.result} = {_sum(f'{own} + {counts} * {apart} * {apart}')}{scale}",
        ]
    if fold.kind in ("amax", "amin"):
        return [f"{fold.result} = tl.reduce({own}, 1, {helpers(fold)[0]})[:, None]"]
    return [f"{fold.result} = {_sum(own)}{scale}"]


def _sum(text: str) -> str:
    return f"tl.sum({text}, axis=1)[:, None]"


def _factor(fold: Fold) -> float:
    """What multiplies x - peak in the exponent of 2."""
    return fold.factor if fold.binary else fold.factor * LOG2_E


def _scale(fold: Fold) -> str:
    """The division that makes a mean or a variance of a sum."""
    if fold.op.op == "mean" or (fold.op.op == "var" and fold.kind == "sum"):
        return " / n_columns"
    return f" / ({divisor(fold.op)})" if fold.op.op == "var" else ""
