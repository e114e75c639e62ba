"""The steps of a written-out loop, made sure of one by one, and where each value lies on its axes.

`recurrence` finds what is alike in the regular steps. A kernel replaces all of them, so here every
operand of every step must be the one that a kernel would take: the same number, the next part of
the same memory, what this step or the one before made. In the first step a state of zeros may have
been folded away: `x + 0` is `x`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from advisor.errors import IllegalFusionError
from advisor.model.graph import Arg, Node, is_value, literal_value, node_of
from advisor.model.optable import spec_of
from analyzers.dataflow import Dataflow
from analyzers.library_ops import is_product
from analyzers.reads import read_of
from analyzers.recurrence import Recurrence
from analyzers.scan_first import is_zero
from analyzers.scan_form import scanned_nodes
from analyzers.scan_views import (
    STEP,
    Run,
    above,
    below,
    is_view,
    layout_of,
    numbers,
    offset_of,
    windows_of,
)

Place = tuple[int, int]  # (column, position of the operand)


@dataclass(frozen=True)
class Bound:
    """An operand from outside: what owns its memory, where it begins in the first step, and how
    many elements further it begins in each next one (0 where it is the same in all)."""

    base: str
    offset: int
    stride: int


@dataclass
class Steps:
    """The checked steps of a loop: `columns` are those that the scan computes.

    `runs` are the axes of each column's result, `operands` those of each operand, as its reader
    sees it; `bound` are the operands from outside, `initial` what each state is before the first
    step: a number, or the operand that shows how it is read. `sizes` are those of the axes.
    """

    flow: Dataflow
    loop: Recurrence
    columns: tuple[int, ...]
    first: int
    count: int
    sizes: dict[int, int]
    runs: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    operands: dict[Place, tuple[Run, ...]] = field(default_factory=dict)
    bound: dict[Place, Bound] = field(default_factory=dict)
    initial: dict[int, float | Place] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The numbers of the steps."""
        return range(self.first, self.first + self.count)

    def node(self, column: int) -> Node:
        """The node of a regular step."""
        return self.flow.nodes[self.loop.sample(column)]

    def source(self, place: Place) -> tuple[int, int] | None:
        """The column that an operand reads and how many steps before; None from outside."""
        return self.loop.sources.get(place)


def steps_of(flow: Dataflow, loop: Recurrence) -> Steps:
    """The steps of a loop that one kernel may replace; `IllegalFusionError` says why not."""
    scanned = scanned_nodes(flow, loop)
    kept = tuple(at for at, column in enumerate(loop.columns) if set(column.values()) <= scanned)
    if not loop.carried <= set(kept):
        raise IllegalFusionError("a matrix product carries the state")
    numbers_ = sorted({k for at in kept for k in loop.columns[at]})
    first, count = numbers_[0], len(numbers_)
    if numbers_ != list(range(first, first + count)):
        raise IllegalFusionError("steps are missing in the middle of the loop")
    for at in kept:
        held = set(loop.columns[at])
        missing = set(numbers_) - held
        if held - set(numbers_) or missing - {first}:
            raise IllegalFusionError("an op of the loop is not in every step")
    steps = Steps(flow, loop, kept, first, count, _axes(flow, loop, kept) | {STEP: count})
    _place(steps)
    for at in kept:
        for position in range(len(steps.node(at).args)):
            _check_operand(steps, (at, position))
    return steps


def _axes(flow: Dataflow, loop: Recurrence, kept: tuple[int, ...]) -> dict[int, int]:
    """The axes of a step: the dimensions of its largest value, those of size 1 left out."""
    shapes = [
        found[0]
        for at in kept
        if not is_product(flow.nodes[loop.sample(at)])
        and (found := numbers(flow.nodes[loop.sample(at)].outputs[0])) is not None
    ]
    full = max(shapes, key=lambda shape: (math.prod(shape), len(shape)), default=())
    if not full or math.prod(full) == 0:
        raise IllegalFusionError("its sizes are only known at run time")
    return dict(enumerate(size for size in full if size != 1))


# --- where values lie -----------------------------------------------------------------------------


def _place(steps: Steps) -> None:
    """The axes of every result and operand, carried along until nothing changes."""
    lanes = [axis for axis in steps.sizes if axis != STEP]
    total = math.prod(steps.sizes[axis] for axis in lanes)
    for at in steps.columns:
        shape = _shape(steps.node(at))
        if math.prod(shape) == total and not is_product(steps.node(at)):
            runs = _spread(shape, lanes, steps.sizes)
            if runs is not None:
                _put(steps, at, runs)
    changed = True
    while changed:
        known = len(steps.runs) + len(steps.operands)
        for at in (*steps.columns, *reversed(steps.columns)):
            _through(steps, at)
            for place in _places(steps, at):
                _across(steps, place)
        changed = len(steps.runs) + len(steps.operands) != known
    read = [place for at in steps.columns for place in _places(steps, at)]
    if not (steps.runs.keys() >= set(steps.columns) and steps.operands.keys() >= set(read)):
        raise IllegalFusionError("it is not clear along which axes a value of a step varies")


def _spread(
    shape: tuple[int, ...], lanes: list[int], sizes: Mapping[int, int]
) -> tuple[Run, ...] | None:
    """The axes of a value of full size; None where its dimensions are others."""
    left = list(lanes)
    found: list[Run] = []
    for size in shape:
        if size != 1 and (not left or sizes[left[0]] != size):
            return None
        found.append((left.pop(0),) if size != 1 else ())
    return tuple(found)


def _shape(node: Node, output: int = 0) -> tuple[int, ...]:
    found = numbers(node.outputs[output])
    if found is None:
        raise IllegalFusionError("its sizes are only known at run time")
    return found[0]


def _places(steps: Steps, at: int) -> Iterator[Place]:
    for position, arg in enumerate(steps.node(at).args):
        if isinstance(arg, str) and is_value(arg):
            yield at, position


def _put(steps: Steps, at: int, runs: tuple[Run, ...]) -> None:
    if steps.runs.setdefault(at, runs) != runs:
        raise IllegalFusionError("a value of a step is read along other axes than it was made")


def _put_operand(steps: Steps, place: Place, runs: tuple[Run, ...]) -> None:
    if steps.operands.setdefault(place, runs) != runs:
        raise IllegalFusionError("a value is read along other axes than it was made")


def _operand_shape(steps: Steps, place: Place) -> tuple[int, ...]:
    meta = steps.flow.need_meta(str(steps.node(place[0]).args[place[1]]))
    found = numbers(meta)
    if found is None:
        raise IllegalFusionError("its sizes are only known at run time")
    return found[0]


def _through(steps: Steps, at: int) -> None:
    """Carry axes through an op, both ways."""
    node = steps.node(at)
    if is_product(node):
        _through_product(steps, at)
    elif spec_of(node.op).kind == "reduction":
        given = steps.operands.get((at, 0))
        if given is not None:
            kept = len(_shape(node)) == len(given)
            runs = tuple(
                () if dim in node.axes else run
                for dim, run in enumerate(given)
                if kept or dim not in node.axes
            )
            _put(steps, at, runs)
    else:
        _through_pointwise(steps, at, _shape(node))


def _through_pointwise(steps: Steps, at: int, shape: tuple[int, ...]) -> None:
    if at not in steps.runs:
        found: list[Run | None] = [() if size == 1 else None for size in shape]
        for place in _places(steps, at):
            own = _operand_shape(steps, place)
            for dim, run in enumerate(steps.operands.get(place, ())):
                if own[dim] != 1:
                    found[len(shape) - len(own) + dim] = run
        decided = tuple(run for run in found if run is not None)
        if len(decided) < len(shape):
            return
        _put(steps, at, decided)
    for place in _places(steps, at):
        own = _operand_shape(steps, place)
        rest = steps.runs[at][len(shape) - len(own) :]
        runs = tuple(run if size != 1 else () for size, run in zip(own, rest, strict=True))
        _put_operand(steps, place, runs)


def _through_product(steps: Steps, at: int) -> None:
    """A product with one column, or one row: a sum of products over an axis of the other side."""
    node = steps.node(at)
    if len(node.args) != 2 or len(_shape(node)) < 2:
        raise IllegalFusionError("a matrix product of a kind that is no sum of products")
    left, right = (at, 0), (at, 1)
    column = _operand_shape(steps, right)[-1] == 1
    if not column and _operand_shape(steps, left)[-2] != 1:
        raise IllegalFusionError("a matrix product in a step")
    matrix, vector = (left, right) if column else (right, left)
    runs = steps.operands.get(matrix)
    if runs is None:
        return
    batch = runs[:-2]
    if column:
        _put_operand(steps, vector, (*batch, runs[-1], ()))
        _put(steps, at, (*batch, runs[-2], ()))
    else:
        _put_operand(steps, vector, (*batch, (), runs[-2]))
        _put(steps, at, (*batch, (), runs[-1]))


def _across(steps: Steps, place: Place) -> None:
    """Carry axes between an operand and the column that it reads, through views."""
    source = steps.source(place)
    if source is None or source[0] not in steps.columns:
        return
    value = str(steps.node(place[0]).args[place[1]])
    if place in steps.operands:
        runs: tuple[Run, ...] | None = through_views(
            steps.flow, value, steps.operands[place], steps.sizes
        )
        if runs is not None:
            _put(steps, source[0], runs)
    elif source[0] in steps.runs:
        found = reached(steps.flow, value, steps.runs[source[0]], steps.sizes)
        if found is not None:
            _put_operand(steps, place, found)


def through_views(
    flow: Dataflow, value: str, runs: tuple[Run, ...], sizes: Mapping[int, int]
) -> tuple[Run, ...] | None:
    """The axes of the computed value behind the views that make `value`."""
    windows = windows_of(runs)
    while is_view(flow.nodes[node_of(value)[0]]):
        found = above(flow, value, windows, sizes)
        if found is None:
            return None
        value, windows = found
    return tuple(window.run for window in windows)


def reached(
    flow: Dataflow, value: str, runs: tuple[Run, ...], sizes: Mapping[int, int]
) -> tuple[Run, ...] | None:
    """The axes of `value` from those of the computed value behind its views."""
    chain = []
    while is_view(flow.nodes[node_of(value)[0]]):
        chain.append(value)
        value = flow.nodes[node_of(value)[0]].value_args[0]
    found: tuple[Run, ...] | None = runs
    for view in reversed(chain):
        found = below(flow, view, found, sizes) if found is not None else None
    return found


# --- every operand of every step ------------------------------------------------------------------


def _check_operand(steps: Steps, place: Place) -> None:
    at, position = place
    column = steps.loop.columns[at]
    given = {k: steps.flow.nodes[column[k]].args[position] for k in steps.numbers if k in column}
    model = given[max(given)]
    source = steps.source(place)
    if not (isinstance(model, str) and is_value(model)):
        if len({repr(arg) for arg in given.values()}) > 1:
            raise IllegalFusionError("steps differ in a number")
    elif source is not None and source[0] in steps.columns:
        if source[1] > 1:
            raise IllegalFusionError("a step reads what was made two steps before")
        for k, arg in given.items():
            _check_read(steps, place, k, arg)
    else:
        steps.bound[place] = _bound(steps, given)


def _check_read(steps: Steps, place: Place, k: int, arg: Arg, seen: Place | None = None) -> None:
    """Whether an operand of step `k` is what the loop's source says.

    `seen` is the operand that reads it in fact, where an op between was folded away.
    """
    column, lag = steps.loop.sources[place]
    if k - lag < steps.first:
        _first_value(steps, place, column, arg)
        return
    made = steps.loop.columns[column].get(k - lag)
    if made is None:
        _check_folded(steps, column, k - lag, arg, seen or place)
        return
    read = read_of(steps.flow, arg) if isinstance(arg, str) and is_value(arg) else None
    model = read_of(steps.flow, str(steps.node(place[0]).args[place[1]]))
    alike = read is not None and (read.way, read.cuts) == (model.way, model.cuts)
    if not alike and read is not None and seen is not None and not read.cuts:
        runs = through_views(steps.flow, str(arg), steps.operands[seen], steps.sizes)
        alike = runs == steps.runs[column]
    if read is None or read.producer != made or not alike:
        raise IllegalFusionError("a step reads something else than the others")


def _first_value(steps: Steps, place: Place, column: int, arg: Arg) -> None:
    """What a state is before the first step; all who read it there must see the same."""
    found: float | Place = place
    if not (isinstance(arg, str) and is_value(arg)):
        found = float(literal_value(arg))
    known = steps.initial.setdefault(column, found)
    if isinstance(known, float) or isinstance(found, float):
        if known != found:
            raise IllegalFusionError("the first step reads two states")
        return
    first, _ = _in_first_step(steps, known)
    if first != arg:
        raise IllegalFusionError("the first step reads its state in two ways")


def _in_first_step(steps: Steps, place: Place) -> tuple[Arg, Node]:
    node = steps.flow.nodes[steps.loop.columns[place[0]][steps.first]]
    return node.args[place[1]], node


def initial_value(steps: Steps, place: Place) -> str:
    """The value that a state is read from in the first step."""
    return str(_in_first_step(steps, place)[0])


def initial_runs(steps: Steps, place: Place) -> tuple[Run, ...]:
    """The axes that a first state varies along: it may be spread over those of its readers."""
    found = numbers(steps.flow.need_meta(initial_value(steps, place)))
    shape, runs = found[0] if found else (), steps.operands[place]
    own = runs[max(len(runs) - len(shape), 0) :]
    whole = [math.prod(steps.sizes[axis] for axis in run) for run in own]
    fits = len(own) == len(shape) and all(
        n in (1, size) for n, size in zip(shape, whole, strict=True)
    )
    if not (found and fits):
        raise IllegalFusionError("the first state has other axes than the later ones")
    return tuple(run if n != 1 else () for n, run in zip(shape, own, strict=True))


def _check_folded(steps: Steps, column: int, k: int, arg: Arg, seen: Place) -> None:
    """Whether `arg` is what is left of a column's op where the state is 0: `x` of `x + 0`."""
    node = steps.node(column)
    if node.op not in ("add", "sub") or k != steps.first:
        raise IllegalFusionError("the first step differs from the others")
    for position in (1, 0) if node.op == "add" else (1,):
        source = steps.source((column, position))
        if not is_zero(steps.flow, steps.loop, source):
            continue
        states = steps.loop.states
        if any(steps.initial.setdefault(state, 0.0) != 0.0 for state in states):
            break
        _check_left_over(steps, (column, 1 - position), k, arg, seen)
        return
    raise IllegalFusionError("the first step differs from the others")


def _check_left_over(steps: Steps, place: Place, k: int, arg: Arg, seen: Place) -> None:
    """Whether `arg` is the operand that a column's op would have had in step `k`."""
    if steps.source(place) is not None:
        _check_read(steps, place, k, arg, seen)
        return
    column = steps.loop.columns[place[0]]
    others = {
        number: steps.flow.nodes[column[number]].args[place[1]]
        for number in steps.numbers
        if number in column
    }
    meta = steps.flow.meta(str(arg)) if isinstance(arg, str) and is_value(arg) else None
    if meta is None or meta.shape != steps.node(place[0]).outputs[0].shape:
        raise IllegalFusionError("the first step differs from the others")
    _bound(steps, {k: arg, **others})


def _bound(steps: Steps, given: Mapping[int, Arg]) -> Bound:
    """One operand from outside of all steps: the same, or one part of a memory after the other."""
    found: dict[int, tuple[str, int]] = {}
    metas = set()
    for k, arg in given.items():
        place = offset_of(steps.flow, str(arg)) if is_value(arg) else None
        if place is None:
            raise IllegalFusionError("a part of a tensor at an unknown place")
        found[k] = place
        metas.add((steps.flow.need_meta(str(arg)).dtype, layout_of(steps.flow, str(arg))))
    if len({base for base, _ in found.values()}) > 1 or len(metas) > 1:
        raise IllegalFusionError("every step reads a value of its own")
    numbers_ = sorted(found)
    base, offset = found[numbers_[0]]
    strides = {(found[b][1] - found[a][1], b - a) for a, b in pairwise(numbers_)}
    if len(strides) > 1:
        raise IllegalFusionError("the parts that steps read are not evenly apart")
    stride = strides.pop()[0] if strides else 0
    # A column without a first step: where its operand would have begun.
    return Bound(base, offset - stride * (numbers_[0] - steps.first), stride)
