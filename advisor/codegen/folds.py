"""Reductions carried along a loop: the text of their states, their steps and their ends.

A lane is as many columns of a block as a thread loads at once; one where they are not side by side
in memory. Every lane keeps a state of its own, so that the loop needs no exchange between threads;
lanes, or the parts of a split row, are combined once. A state starts with what changes nothing.

Moments are summed beside a pivot, a value of the lane itself (shifted data: Chan, Golub, LeVeque,
1983): of n values the sum of squares rounds to within n times the last place of the squared
deviations, however far from 0 they lie, since these are never less than an n-th of that sum. An
infinite value is no pivot: x - pivot would be NaN, and with it a mean that is infinite.
"""

from __future__ import annotations

from typing import NamedTuple

from advisor.codegen.expressions import IDENTITY, LOG2_E
from advisor.codegen.values import Values, divisor, masked
from advisor.model.passes import Fold, Pass

NOTHING = 'float("-inf")'
# What larger and smaller mean among values of which some are no numbers.
REDUCERS = {"amax": "max_nan", "amin": "min_nan", "exponentials": "max_nan"}

HELPERS: dict[str, str] = {
    "in_lanes": '''
@triton.jit
def in_lanes(x, SIZE: tl.constexpr):
    """[rows, columns] as [rows, lanes, SIZE]: columns that a thread holds side by side."""
    return tl.reshape(x, (x.shape[0], x.shape[1] // SIZE, SIZE))
''',
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
    "add_exponentials": '''
@triton.jit
def add_exponentials(peak, total, x, FACTOR: tl.constexpr):
    """(peak, total) with the last axis of x more; total = sum of 2^(FACTOR (x - peak))."""
    highest = tl.maximum(peak, tl.reduce(x, 2, max_nan), propagate_nan=tl.PropagateNan.ALL)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    more = tl.sum(tl.exp2(FACTOR * (x - base[:, :, None])), axis=2)
    return highest, total * tl.exp2(FACTOR * (peak - base)) + more
''',
    "add_moments": '''
@triton.jit
def add_moments(pivot, total, squares, x, ok, fresh):
    """Sum and sum of squares of x - pivot with the last axis of x more, where it is `ok`.

    The pivot of a lane is the first value of its `fresh` block: beside what lies around it no
    digits are lost to a mean that is far from 0. One that is infinite is none.
    """
    first = (tl.arange(0, x.shape[2])[None, None, :] == 0) & ok & (tl.abs(x) < float("inf"))
    pivot = tl.where(fresh, tl.sum(tl.where(first, x, 0.0), axis=2), pivot)
    apart = tl.where(ok, x - pivot[:, :, None], 0.0)
    return pivot, total + tl.sum(apart, axis=2), squares + tl.sum(apart * apart, axis=2)
''',
    "add_moment": '''
@triton.jit
def add_moment(pivot, total, squares, x, ok, fresh):
    """Sum and sum of squares of x - pivot with one x more in every lane that is `ok`.

    The pivot of a lane is its first x, that of the `fresh` block: beside what lies around it no
    digits are lost to a mean that is far from 0. One that is infinite is none.
    """
    pivot = tl.where(fresh, tl.where(ok & (tl.abs(x) < float("inf")), x, 0.0), pivot)
    apart = tl.where(ok, x - pivot, 0.0)
    return pivot, total + apart, squares + apart * apart
''',
    "moments": '''
@triton.jit
def moments(pivot, total, squares, count):
    """Mean, and sum of squared deviations from it, of `count` values by their sums of x - pivot.

    Squares that are too large are infinite, and so are the deviations; beside infinite x, NaN.
    """
    moved = total / tl.maximum(count, 1)
    is_finite = squares < float("inf")
    return pivot + moved, squares - tl.where(is_finite, total * moved, moved - moved)
''',
}


class State(NamedTuple):
    """One number a lane: its name, and what it starts with."""

    name: str
    identity: str


def states(fold: Fold) -> tuple[State, ...]:
    """What is known of a fold over part of a row."""
    first = NOTHING if fold.kind == "exponentials" else IDENTITY.get(fold.kind, "0.0")
    identities = (first, "0.0")
    return tuple(State(*pair) for pair in zip(fold.states, identities, strict=False))


def kept(fold: Fold) -> tuple[State, ...]:
    """What a fold keeps in every lane along the loop."""
    if fold.kind != "moments":
        return states(fold)
    names = (f"{fold.result}_pivot", f"{fold.result}_total", fold.result)
    return tuple(State(name, "0.0") for name in names)


def helpers(fold: Fold, side: int) -> tuple[str, ...]:
    """The device functions of a fold into lanes of `side` columns, of here and of the op table."""
    found = ["in_lanes" if side > 1 else "", _adder(fold, side), REDUCERS.get(fold.kind, "")]
    found += ["moments"] if fold.kind == "moments" else []
    return tuple(filter(None, found))


def walked(one: Pass, side: int, total: str) -> list[str]:
    """After the last of `total` columns: what lanes kept as what is known of their values."""
    found = [fold for fold in one.folds if fold.kind == "moments"]
    if not found:
        return []
    lines = []
    if side > 1:
        lines.append(f"left = {total} % BLOCK_COLUMNS - SIDE * tl.arange(0, LANES)[None, :]")
        rest = "tl.minimum(tl.maximum(left, 0), SIDE)"
        lines.append(f"seen_lanes = {total} // BLOCK_COLUMNS * SIDE + {rest}")
    else:
        lanes = "tl.arange(0, BLOCK_COLUMNS)[None, :]"
        lines.append(f"seen_lanes = ({total} + BLOCK_COLUMNS - 1 - {lanes}) // BLOCK_COLUMNS")
    for fold in found:
        known = ", ".join(f"{state.name}_lanes" for state in states(fold))
        lines.append(f"{known} = moments({_kept_names(fold)}, seen_lanes)")
    return lines


def starts(fold: Fold, values: Values, side: int) -> list[str]:
    """The states before the first block."""
    rows = "BLOCK_ROWS" if values.spaces[fold.operand] == "tile" else "1"
    lanes = "LANES" if side > 1 else "BLOCK_COLUMNS"
    shape = f"({rows}, {lanes})"
    return [f"{s.name}_lanes = tl.full({shape}, {s.identity}, tl.float32)" for s in kept(fold)]


def step(fold: Fold, values: Values, side: int, first: str) -> str:
    """One block more, into lanes of `side` columns; the first block starts at `first`."""
    x, lanes = values.operand(fold.operand, "float32"), f"{fold.result}_lanes"
    if fold.kind == "exponentials":
        pair = f"{fold.result}_peak_lanes, {lanes}"
        block = _grouped(masked(x, NOTHING), side)
        return f"{pair} = {_adder(fold, side)}({pair}, {block}, {_factor(fold)!r})"
    if fold.kind == "moments":
        names = _kept_names(fold)
        given = f"{_grouped(x, side)}, {_grouped('column_ok', side)}"
        return f"{names} = {_adder(fold, side)}({names}, {given}, start == {first})"
    if fold.kind in ("amax", "amin"):
        larger = REDUCERS[fold.kind]
        block = _grouped(masked(x, IDENTITY[fold.kind]), side)
        if side > 1:
            block = f"tl.reduce({block}, 2, {larger})"
        return f"{lanes} = {larger}({lanes}, {block})"
    if fold.kind == "deviations":
        x = f"({x} - {fold.partner}) * ({x} - {fold.partner})"
    block = _grouped(masked(x, "0.0"), side)
    return f"{lanes} += " + (f"tl.sum({block}, axis=2)" if side > 1 else block)


def _kept_names(fold: Fold) -> str:
    return ", ".join(f"{state.name}_lanes" for state in kept(fold))


def _adder(fold: Fold, side: int) -> str:
    """The device function that adds one column to a state of several numbers, or several."""
    one = {"exponentials": "add_exponential", "moments": "add_moment"}.get(fold.kind, "")
    return f"{one}s" if one and side > 1 else one


def _grouped(text: str, side: int) -> str:
    return f"in_lanes({text}, SIDE)" if side > 1 else text


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
        means, apart = f"{fold.result}_mean_{parts}", f"{fold.result}_apart"
        mean = (fold.partner if whole else "") or f"{fold.result}_mean"
        return [
            f"{mean} = {_sum(f'{counts} * {means}')} / {total}",
            f"{apart} = {means} - {mean}",
            f"{fold.result} = {_sum(f'{own} + {counts} * {apart} * {apart}')}{scale}",
        ]
    if fold.kind in ("amax", "amin"):
        return [f"{fold.result} = tl.reduce({own}, 1, {REDUCERS[fold.kind]})[:, None]"]
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
