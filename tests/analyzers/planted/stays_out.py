"""Graphs of which something must stay out for its shape or size, and the reason to be given."""

from __future__ import annotations

from collections.abc import Callable

from analyzers.row_programs import MAX_GROUP_OPS, MAX_GROUP_TENSORS, find_row_programs
from tests.analyzers.planted import Planted, made, planted
from tests.builders.graph import Sketch, tensor


def a_value_read_transposed() -> Planted:
    s = Sketch()
    x = s.input(16, 16)
    row = s.mean(x)
    kept = s.op("sub", x, row)
    turned = s.opaque(
        "aten.permute.default", x, outputs=(tensor(16, 16, strides=(1, 16)),), alias_of=x
    )
    out = s.op("add", kept, turned)
    return planted(s.build(out), (row, kept, out), **{turned: "not a row operation"})


def a_member_read_transposed() -> Planted:
    s = Sketch()
    x = s.input(16, 16)
    square = s.op("mul", x, x)
    row = s.mean(square)
    turned = s.opaque(
        "aten.permute.default", square, outputs=(tensor(16, 16, strides=(1, 16)),), alias_of=square
    )
    out = s.op("mul", row, turned)
    return planted(s.build(out), (square, row), **{out: "leaves the group and comes back"})


def a_member_read_shifted() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    square = s.op("mul", x, x)
    row = s.mean(square)
    shifted = s.opaque("aten.roll.default", square)
    out = s.op("sub", shifted, row)
    return planted(s.build(out), (square, row), **{out: "leaves the group and comes back"})


def a_row_value_used_as_a_column() -> Planted:
    s = Sketch()
    x = s.input(16, 16)
    square = s.op("mul", x, x)
    row = s.mean(square, keepdim=False)
    out = s.op("add", square, row)
    return planted(s.build(out), (square, row), **{out: "another position"})


def a_row_value_expanded_into_a_column() -> Planted:
    s = Sketch()
    x = s.input(16, 16)
    square = s.op("mul", x, x)
    row = s.mean(square, keepdim=False)
    out = s.op("add", square, s.expand(row, 16, 16))
    return planted(s.build(out), (square, row), **{out: "another position"})


def a_value_combined_with_other_rows_of_itself() -> Planted:
    s = Sketch()
    square = s.op("exp", s.input(8, 32))
    row = s.mean(square)
    out = s.op("add", square, s.reshape(square, 8, 1, 32))
    return planted(s.build(row, out), (square, row), **{out: "combined with itself"})


def a_reduction_over_another_axis() -> Planted:
    s = Sketch()
    x = s.op("exp", s.input(8, 16, 32))
    inner, outer = s.mean(x), s.mean(x, (1,))
    return planted(s.build(inner, outer), (x, inner), **{outer: "over other axes"})


def rows_that_need_the_sum_of_all_rows() -> Planted:
    s = Sketch()
    x = s.input(64, 32)
    weight = s.op("exp", x)
    total = s.reduce("sum", weight, (0,))
    share = s.op("div", weight, total)
    return planted(s.build(share), (weight, total), **{share: "a second pass"})


def a_reduction_of_sums_over_the_rows() -> Planted:
    s = Sketch()
    square = s.op("exp", s.input(64, 32))
    total = s.reduce("sum", square, (0,), keepdim=False)
    row = s.reduce("sum", s.reshape(total, 1, 32))
    return planted(s.build(row), (square, total), **{row: "single row"})


def long_rows_summed_along_both_axes() -> Planted:
    s = Sketch()
    x = s.op("exp", s.input(64, 16_384))
    row, column = s.reduce("sum", x), s.reduce("sum", x, (0,))
    return planted(s.build(row, column), (x, row), **{column: "do not fit in registers"})


def a_reshape_that_mixes_rows_and_columns() -> Planted:
    s = Sketch()
    x = s.op("exp", s.input(8, 6, 10))
    row = s.mean(x)
    mixed = s.op("neg", s.reshape(x, 8, 4, 15))
    return planted(s.build(row, mixed), (x, row), **{mixed: "incompatible ways"})


def a_reduction_over_part_of_the_columns() -> Planted:
    s = Sketch()
    x = s.op("exp", s.input(8, 64))
    row = s.mean(x)
    part = s.mean(s.reshape(x, 8, 4, 16))
    return planted(s.build(row, part), (x, row), **{part: "over other axes"})


def a_result_with_gaps() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(x)
    out = s.op("sub", x, row, strides=(64, 2))
    last = s.op("exp", row)
    return planted(s.build(out, last), (row, last), **{out: "stored with gaps"})


def channels_last_need_their_sums_before_they_are_normed() -> Planted:
    s = Sketch()
    x = s.input(4, 8, 5, 6, strides=(240, 1, 48, 8))
    total = s.reduce("sum", s.op("exp", x, strides=(240, 1, 48, 8)), (0, 2, 3))
    out = s.op("sub", x, total)
    return planted(s.build(out), made(s)[:2], **{out: "a second pass"})


def a_part_of_a_row_that_is_needed_outside() -> Planted:
    s = Sketch()
    x, weight = s.input(4, 8, 32), s.input(8, 1)
    row = s.reduce("mean", x, (1, 2))
    scale = s.op("mul", s.reshape(row, 4, 1, 1), weight)
    out = s.op("mul", x, scale)
    other = s.op("exp", row)
    return planted(
        s.build(out, scale, other), (row, other), **{scale: "broadcast value is needed outside"}
    )


def a_reduction_over_a_part_of_each_row() -> Planted:
    s = Sketch()
    x = s.op("exp", s.input(4, 8, 32))
    row = s.reduce("mean", x, (1, 2))
    part = s.reduce("amax", x, (2,))
    return planted(s.build(row, part), (made(s)[0], row), **{part: "other axes"})


def a_single_row() -> Planted:
    s = Sketch()
    x = s.input(4096)
    out = s.softmax(x)
    return planted(s.build(out), **{"%amax1": "single row"})


def a_row_of_more_columns_than_a_kernel_can_number() -> Planted:
    s = Sketch()
    out = s.softmax(s.input(64, 2**31))
    return planted(s.build(out), **{"%amax1": "2,147,483,648 columns are more than a kernel"})


def an_unknown_stride() -> Planted:
    s = Sketch(s0=4)
    x = s.input("s0", 32)
    row = s.mean(x)
    out = s.op("exp", row)
    padded = s.op("mul", s.input("s0", 32, strides=("u0", 1)), out)
    return planted(s.build(padded), (row, out), **{padded: "size u0 is unknown"})


def a_total_over_everything() -> Planted:
    s = Sketch()
    x = s.input(64, 32)
    total = s.mean(s.op("mul", x, x), (0, 1))
    return planted(s.build(total), **{total: "single row"})


def rows_of_one_element() -> Planted:
    s = Sketch()
    out = s.softmax(s.input(64, 1))
    return planted(s.build(out), **{"%amax1": "single element"})


def a_row_value_written_at_full_size() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.op("exp", s.mean(x))
    inside = made(s)
    wide = s.op("neg", s.expand(row, 16, 32))
    return planted(s.build(wide), inside, **{wide: "broadcast value"})


def a_row_value_summed_again() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.op("exp", s.mean(x))
    inside = made(s)
    total = s.reduce("sum", s.expand(row, 16, 32))
    return planted(s.build(total), inside, **{total: "repeated along the columns"})


def a_mask_smaller_than_the_rows_is_not_recomputed() -> Planted:
    s = Sketch()
    scores, mask = s.input(2, 4, 8, 8), s.input(2, 1, 8, 8)
    scaled = s.op("mul", mask, -1e4)
    out = s.softmax(s.op("add", scores, scaled))
    return planted(s.build(out), made(s, scaled), **{scaled: "recomputed"})


def an_unknown_size() -> Planted:
    s = Sketch(s0=4)
    out = s.softmax(s.input("s0", "u0"))
    return planted(s.build(out), **{"%amax1": "size u0 is unknown"})


def too_many_tensors() -> Planted:
    s = Sketch()
    total = s.op("exp", s.mean(s.input(16, 32)))
    kept = [s.op("mul", s.input(16, 32), total) for _ in range(MAX_GROUP_TENSORS)]
    found = find_row_programs(s.build(*kept)).whole
    assert len(found) == 1
    # mean's input, and for every member an input and an output.
    assert len(found[0].members) == 2 + (MAX_GROUP_TENSORS - 1) // 2
    return planted(
        s.build(*kept), tuple(f"%{name}" for name in found[0].members), **{kept[-1]: "would touch"}
    )


def too_many_ops() -> Planted:
    s = Sketch()
    value = s.softmax(s.input(16, 32))
    for _ in range(MAX_GROUP_OPS):
        value = s.op("neg", value)
    return planted(s.build(value), made(s)[:MAX_GROUP_OPS])


def unrelated_groups_that_share_a_scalar() -> Planted:
    s = Sketch()
    scalar = s.op("exp", s.input())
    first = s.softmax(s.op("mul", s.input(16, 32), scalar))
    inside = made(s, scalar)
    second = s.softmax(s.op("mul", s.input(8, 64), scalar))
    return planted(
        s.build(first, second),
        inside,
        made(s, scalar, *inside),
        **{scalar: "smaller than the group's rows"},
    )


def a_value_inside_an_op() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    inner = s.op("mul", x, x, hidden=True)
    down = s.reduce("sum", inner, (0,))
    row = s.mean(x)
    out = s.op("sub", x, row)
    return planted(s.build(down, out), (inner, down, row, out))


def ops_that_walk_all_tensors_alike() -> Planted:
    s = Sketch()
    steps = (1, 16)
    x, y = (s.input(16, 32, strides=steps) for _ in range(2))
    out = s.op("tanh", s.op("add", x, y, strides=steps), strides=steps)
    return planted(s.build(out))


def a_row_repeated_is_read_across_nothing() -> Planted:
    s = Sketch()
    out = s.op("tanh", s.op("add", s.input(16, 32), s.input(16, 1)))
    return planted(s.build(out))


def a_single_op_that_reads_across() -> Planted:
    s = Sketch()
    out = s.op("add", s.input(16, 32, strides=(1, 16)), s.input(16, 32))
    return planted(s.build(out))


STAYS_OUT: tuple[Callable[[], Planted], ...] = (
    a_value_read_transposed,
    a_member_read_transposed,
    a_member_read_shifted,
    a_row_value_used_as_a_column,
    a_row_value_expanded_into_a_column,
    a_value_combined_with_other_rows_of_itself,
    a_reduction_over_another_axis,
    rows_that_need_the_sum_of_all_rows,
    a_reduction_of_sums_over_the_rows,
    long_rows_summed_along_both_axes,
    a_reshape_that_mixes_rows_and_columns,
    a_reduction_over_part_of_the_columns,
    a_result_with_gaps,
    channels_last_need_their_sums_before_they_are_normed,
    a_part_of_a_row_that_is_needed_outside,
    a_reduction_over_a_part_of_each_row,
    a_single_row,
    a_row_of_more_columns_than_a_kernel_can_number,
    an_unknown_stride,
    a_total_over_everything,
    rows_of_one_element,
    a_row_value_written_at_full_size,
    a_row_value_summed_again,
    a_mask_smaller_than_the_rows_is_not_recomputed,
    an_unknown_size,
    too_many_tensors,
    too_many_ops,
    unrelated_groups_that_share_a_scalar,
    a_value_inside_an_op,
    ops_that_walk_all_tensors_alike,
    a_row_repeated_is_read_across_nothing,
    a_single_op_that_reads_across,
)
