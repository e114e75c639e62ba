"""Graphs that are one group, whatever their views, broadcasts, layouts and reductions."""

from __future__ import annotations

from collections.abc import Callable

from tests.analyzers.planted import Planted, made, planted
from tests.builders.graph import Sketch, tensor


def softmax_with_a_mask_broadcast_over_heads() -> Planted:
    s = Sketch()
    scores, mask = s.input(2, 4, 8, 8), s.input(2, 1, 8, 8)
    out = s.softmax(s.op("add", s.op("mul", scores, 0.125), mask))
    return planted(s.build(out), made(s))


def rms_norm_with_a_weight() -> Planted:
    s = Sketch()
    out = s.rms_norm(s.input(2, 16, 32), s.input(32))
    return planted(s.build(out), made(s))


def layer_norm_from_variance_and_mean() -> Planted:
    s = Sketch()
    x, weight, bias = s.input(16, 32), s.input(32), s.input(32)
    scale = s.op("rsqrt", s.op("add", s.reduce("var", x), 1e-5))
    centred = s.op("mul", s.op("sub", x, s.mean(x)), scale)
    out = s.op("add", s.op("mul", centred, weight), bias)
    return planted(s.build(out), made(s))


def a_norm_of_a_norm() -> Planted:
    s = Sketch()
    weight = s.input(32)
    out = s.rms_norm(s.rms_norm(s.input(16, 32), weight), weight)
    return planted(s.build(out), made(s))


def a_residual_that_is_needed_outside_is_a_second_output() -> Planted:
    s = Sketch()
    total = s.op("add", s.input(16, 32), s.input(16, 32))
    out = s.rms_norm(total, s.input(32))
    return planted(s.build(total, out), made(s))


def a_second_consumer_beyond_a_matmul_makes_an_output() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    scale = s.op("rsqrt", s.mean(s.op("mul", x, x)))
    out = s.op("mul", x, scale)
    product = s.opaque("aten.mm.default", out, s.input(32, 8), outputs=(tensor(16, 8),))
    return planted(s.build(product), made(s))


def views_that_merge_and_split_rows() -> Planted:
    s = Sketch()
    x = s.input(4, 8, 32)
    flat = s.reshape(s.op("mul", x, 2.0), 32, 32)
    row = s.reshape(s.mean(flat), 4, 8, 1)
    out = s.op("sub", x, row)
    again = s.op("exp", s.reshape(s.reshape(out, 32, 32), 2, 16, 32))
    return planted(s.build(again), made(s))


def columns_split_into_two_axes_reduced_together() -> Planted:
    s = Sketch()
    x = s.input(8, 4, 16)
    flat = s.reshape(x, 8, 64)
    row = s.mean(x, (-2, -1))
    out = s.op("mul", s.op("sub", flat, s.reshape(row, 8, 1)), s.input(64))
    return planted(s.build(out), made(s))


def a_row_value_without_the_reduced_axis() -> Planted:
    s = Sketch()
    x = s.input(4, 8, 32)
    row = s.mean(x, keepdim=False)
    out = s.op("sub", x, s.reshape(s.op("sqrt", row), 4, 8, 1))
    return planted(s.build(out, row), made(s))


def row_values_and_scalars_from_outside() -> Planted:
    s = Sketch()
    x, row, scalar = s.input(16, 32), s.input(16, 1), s.input()
    out = s.softmax(s.op("mul", s.op("sub", x, row), scalar))
    return planted(s.build(out), made(s))


def two_equal_nodes() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(s.op("exp", x))
    out = s.op("div", s.op("exp", x), row)
    return planted(s.build(out), made(s))


def a_number_in_place_of_a_tensor() -> Planted:
    s = Sketch()
    x, flags = s.input(16, 32), s.input(16, 32, dtype="bool")
    out = s.softmax(s.op("where", flags, x, "-inf"))
    return planted(s.build(out), made(s))


def an_expanded_row_value() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    out = s.op("sub", x, s.expand(s.mean(x), 16, 32))
    return planted(s.build(out), made(s))


def symbolic_rows() -> Planted:
    s = Sketch(s0=7)
    x = s.input("s0", 8, 32)
    flat = s.reshape(x, "8*s0", 32)
    out = s.op("mul", s.rms_norm(flat, s.input(32)), s.reshape(s.op("neg", x), "8*s0", 32))
    return planted(s.build(out), made(s))


def symbolic_columns() -> Planted:
    s = Sketch(s0=48)
    out = s.softmax(s.input(16, "s0"))
    return planted(s.build(out), made(s))


def two_reductions_of_one_tensor_over_the_same_axis() -> Planted:
    s = Sketch()
    x, gradient = s.input(16, 32), s.input(16, 32)
    first = s.reduce("sum", s.op("mul", x, gradient))
    out = s.op("sub", s.op("mul", gradient, x), s.op("mul", x, first))
    return planted(s.build(out), made(s))


def column_values_computed_inside() -> Planted:
    s = Sketch()
    x, weight = s.input(16, 32), s.input(32)
    out = s.rms_norm(x, s.op("add", weight, 1.0))
    return planted(s.build(out), made(s))


def a_padded_input() -> Planted:
    s = Sketch()
    out = s.softmax(s.input(16, 30, strides=(32, 1)))
    return planted(s.build(out), made(s))


def a_transposed_input_is_read_where_it_is_stored() -> Planted:
    s = Sketch()
    out = s.softmax(s.input(16, 32, strides=(1, 16)))
    return planted(s.build(out), made(s))


def a_group_norm_with_a_weight_per_channel() -> Planted:
    s = Sketch()
    x, weight = s.input(4, 6, 5, 5), s.input(6)
    groups = s.reshape(x, 4, 2, 3, 25)
    row = s.op("rsqrt", s.reduce("mean", groups, (2, 3)))
    scale = s.op("mul", row, s.reshape(weight, 1, 2, 3, 1))
    channels = s.reshape(scale, 4, 6, 1, 1)
    bias = s.op("neg", channels)  # another value of a part of each row, read by whole rows only
    out = s.op("add", s.op("mul", x, channels), bias)
    return planted(s.build(out), made(s))


def a_group_norm_whose_channels_are_innermost() -> Planted:
    s = Sketch()
    layout = (150, 1, 30, 6)
    x, weight = s.input(4, 6, 5, 5, strides=layout), s.input(6)
    groups = s.reshape(x, 4, 2, 3, 25, strides=(150, 3, 1, 6))
    row = s.op("rsqrt", s.reduce("mean", groups, (2, 3)))
    scale = s.op("mul", row, s.reshape(weight, 1, 2, 3, 1))
    out = s.op("mul", x, s.reshape(scale, 4, 6, 1, 1), strides=layout)
    return planted(s.build(out), made(s))


def a_batch_norm_with_a_row_for_every_channel() -> Planted:
    s = Sketch()
    x, weight = s.input(4, 6, 5, 5), s.input(6, 1, 1)
    row = s.op("rsqrt", s.reduce("var", x, (0, 2, 3)))
    out = s.op("relu", s.op("mul", s.op("mul", x, row), weight))
    return planted(s.build(row, out), made(s))


def a_sum_over_an_axis_in_the_middle() -> Planted:
    s = Sketch()
    total = s.reduce("sum", s.op("exp", s.input(8, 16, 32)), (1,))
    return planted(s.build(total), made(s))


def a_result_stored_column_by_column() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(x)
    out = s.op("sub", x, row, strides=(1, 16))
    return planted(s.build(out, s.op("exp", row)), made(s))


def a_matrix_read_across() -> Planted:
    s = Sketch()
    turned, y = s.input(16, 32, strides=(1, 16)), s.input(16, 32)
    out = s.op("tanh", s.op("add", turned, y))
    return planted(s.build(out), made(s))


def channels_first_beside_channels_last() -> Planted:
    s = Sketch()
    first, last = s.input(2, 8, 5, 6), s.input(2, 8, 5, 6, strides=(240, 1, 48, 8))
    total = s.op("add", first, s.op("mul", last, s.input(8, 1, 1), strides=(240, 1, 48, 8)))
    return planted(s.build(s.op("relu", total), s.op("exp", total)), made(s))


ONE_GROUP: tuple[Callable[[], Planted], ...] = (
    softmax_with_a_mask_broadcast_over_heads,
    rms_norm_with_a_weight,
    layer_norm_from_variance_and_mean,
    a_norm_of_a_norm,
    a_residual_that_is_needed_outside_is_a_second_output,
    a_second_consumer_beyond_a_matmul_makes_an_output,
    views_that_merge_and_split_rows,
    columns_split_into_two_axes_reduced_together,
    a_row_value_without_the_reduced_axis,
    row_values_and_scalars_from_outside,
    two_equal_nodes,
    a_number_in_place_of_a_tensor,
    an_expanded_row_value,
    symbolic_rows,
    symbolic_columns,
    two_reductions_of_one_tensor_over_the_same_axis,
    column_values_computed_inside,
    a_padded_input,
    a_transposed_input_is_read_where_it_is_stored,
    a_group_norm_with_a_weight_per_channel,
    a_group_norm_whose_channels_are_innermost,
    a_batch_norm_with_a_row_for_every_channel,
    a_sum_over_an_axis_in_the_middle,
    a_result_stored_column_by_column,
    a_matrix_read_across,
    channels_first_beside_channels_last,
)
