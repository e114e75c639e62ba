"""Iteration spaces: the axes of a group, where values live on them, how inputs are addressed."""

from __future__ import annotations

import pytest

from advisor.errors import IllegalFusionError
from advisor.model.graph import node_of
from advisor.model.sizes import Size
from analyzers.dataflow import dataflow
from analyzers.iteration_space import IterationSpace, iteration_space
from analyzers.strides import has_no_gaps
from tests.builders.graph import Sketch, tensor


def space_of(sketch: Sketch, seed: str, *outputs: str) -> IterationSpace:
    """The space of everything computed in the sketch."""
    graph = sketch.build(*outputs)
    members = frozenset(n.id for n in graph.nodes if n.op not in ("opaque", "reshape", "expand"))
    return iteration_space(dataflow(graph), members, node_of(seed)[0])


def sizes(space: IterationSpace) -> list[int]:
    return [axis.coefficient for axis in space.axes]


def strides(space: IterationSpace, value: str) -> list[int | None]:
    (bound,) = {b for b in space.operands.values() if b.value == value}
    return [None if s is None else s.coefficient for s in bound.strides]


def test_shapes_of_as_many_elements_share_their_finest_axes() -> None:
    s = Sketch()
    x = s.input(4, 8, 32)
    y = s.op("exp", s.reshape(s.op("exp", x), 2, 16, 32))
    row = s.mean(s.reshape(y, 32, 32))
    space = space_of(s, row, row)
    assert sizes(space) == [2, 2, 8, 32]
    assert space.row_axes == 3
    assert space.rows == {0, 1, 2}
    assert space.columns == {3}
    assert strides(space, x) == [512, 256, 32, 1]


def test_axes_of_size_one_are_no_axes() -> None:
    s = Sketch()
    row = s.mean(s.op("exp", s.input(1, 8, 1, 32)))
    assert sizes(space_of(s, row, row)) == [8, 32]


def test_a_span_is_where_a_value_varies() -> None:
    s = Sketch()
    x, weight, mask = s.input(4, 8, 32), s.input(32), s.input(4, 1, 1)
    column = s.op("exp", weight)
    row = s.mean(x)
    part = s.op("neg", mask)
    out = s.op("add", s.op("mul", s.op("mul", x, row), column), part)
    space = space_of(s, row, out)
    everything = frozenset(range(3))
    assert space.spans[column] == {2}
    assert space.spans[row] == {0, 1}
    assert space.spans[part] == {0}
    assert space.spans[out] == everything
    assert space.outputs == (out,)


def test_inputs_are_addressed_by_their_own_strides() -> None:
    s = Sketch()
    turned = s.input(4, 8, 32, strides=(1, 4, 32))
    repeated = s.input(4, 8, 32, strides=(0, 32, 1))
    column, row, scalar = s.input(32), s.input(8, 1), s.input()
    value = s.op("add", s.op("add", turned, repeated), column)
    total = s.reduce("sum", s.op("mul", s.op("add", value, row), scalar))
    space = space_of(s, total, total)
    assert strides(space, turned) == [1, 4, 32]
    assert strides(space, repeated) == [None, 32, 1]
    assert strides(space, column) == [None, None, 1]
    assert strides(space, row) == [None, 1, None]
    assert strides(space, scalar) == [None, None, None]


@pytest.mark.parametrize(
    ("layout", "walked"),
    [
        ((32, 8, 1), ((1, 2),)),
        ((64, 16, 2), ((1, 2),)),
        ((32, 1, 4), ((2, 1),)),  # in the order of memory
        ((64, 16, 1), ((1,), (2,))),
    ],
)
def test_columns_of_several_axes_are_one_where_memory_is(
    layout: tuple[int, ...], walked: tuple[tuple[int, ...], ...]
) -> None:
    s = Sketch()
    row = s.reduce("sum", s.input(4, 4, 8, strides=layout), (1, 2))
    space = space_of(s, row, row)
    assert space.walked_rows == ((0,),)
    assert space.walked_columns == walked


def test_a_kernel_walks_its_columns_along_few_axes() -> None:
    s = Sketch()
    shape, steps = (4, 2, 3, 2, 3, 2), (5000, 1000, 300, 130, 40, 17)
    row = s.reduce("sum", s.input(*shape, strides=steps), (1, 2, 3, 4, 5))
    with pytest.raises(IllegalFusionError, match="walk the columns along 5 axes, a kernel along 4"):
        space_of(s, row, row)


@pytest.mark.parametrize(
    ("order", "rows", "columns"),
    [
        ((0, 1, 2, 3), (1,), (0, 2, 3)),  # channels in the middle: a row each
        ((0, 2, 3, 1), (0, 2, 3), (1,)),  # channels innermost: sums over the rows
    ],
)
def test_memory_decides_which_side_of_a_reduction_in_the_middle_is_columns(
    order: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]
) -> None:
    s = Sketch()
    shape, steps, step = (4, 8, 5, 6), [0] * 4, 1
    for axis in reversed(order):
        steps[axis], step = step, step * shape[axis]
    total = s.reduce("sum", s.input(*shape, strides=tuple(steps)), (0, 2, 3))
    space = space_of(s, total, total)
    assert (space.row_run, space.column_run) == (rows, columns)
    assert (total in space.late) is (columns == (1,))


def test_a_value_of_a_part_of_a_row_varies_along_some_of_its_axes() -> None:
    s = Sketch()
    x, weight = s.input(4, 8, 32), s.input(8, 1)
    row = s.reduce("mean", x, (1, 2))
    scale = s.op("add", s.reshape(row, 4, 1, 1), weight)
    out = s.op("mul", x, scale)
    space = space_of(s, row, out)
    assert space.spans[scale] == {0, 1}
    assert space.walked_columns == ((1,), (2,))
    assert strides(space, weight) == [None, 1, None]


def test_symbolic_sizes_divide_where_that_is_certain() -> None:
    s = Sketch(s0=6)
    x = s.input("s0", 4, 32)
    row = s.mean(s.reshape(s.op("exp", x), "4*s0", 32))
    space = space_of(s, row, row)
    assert space.axes == (
        Size(coefficient=1, symbols=("s0",)),
        Size(coefficient=4),
        Size(coefficient=32),
    )
    other = Sketch(s0=6)
    seed = other.mean(other.reshape(other.op("exp", other.input("s0", 4, 32)), 3, "8*s1", 32))
    with pytest.raises(IllegalFusionError, match="size s1 is unknown"):
        space_of(other, seed, seed)


def test_sizes_with_the_same_value_are_not_the_same_size() -> None:
    s = Sketch(s0=32)
    x = s.input(8, "s0")
    row = s.mean(x)
    out = s.op("exp", s.reshape(s.op("sub", x, row), 8, 32))
    with pytest.raises(IllegalFusionError, match="does not follow the axes"):
        space_of(s, row, out)


def test_a_group_nobody_reads_is_refused() -> None:
    s = Sketch()
    row = s.mean(s.op("exp", s.input(4, 8)))
    with pytest.raises(IllegalFusionError, match="nothing of the group is used"):
        space_of(s, row)


def test_members_beside_the_space_are_refused() -> None:
    s = Sketch()
    row = s.mean(s.op("exp", s.input(4, 8)))
    other = s.op("neg", s.input(5))
    with pytest.raises(IllegalFusionError, match="none of the group's axes"):
        space_of(s, row, row, other)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 8), (8, 1), True),
        ((4, 1, 8), (8, 77, 1), True),
        ((1, 8), (0, 1), True),
        ((4, 8), (16, 1), False),
        ((4, 8), (1, 4), True),
        ((2, 3, 4), (1, 8, 2), True),
        ((4, 8), (0, 1), False),
        (("s0", 8), (8, 1), True),
        ((4, "s0"), ("s0", 1), True),
        ((), (), True),
    ],
)
def test_a_layout_without_gaps_may_have_any_order_of_dimensions(
    shape: tuple[int | str, ...], strides: tuple[int | str, ...], expected: bool
) -> None:
    assert has_no_gaps(tensor(*shape, strides=strides)) is expected
