"""A planted corpus: small graphs with the right answer written down, and what must stay out and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from advisor.model.graph import Graph, node_of
from analyzers.row_programs import MAX_GROUP_OPS, MAX_GROUP_TENSORS, find_row_programs
from tests.builders.graph import Sketch, assert_legal, tensor


@dataclass(frozen=True)
class Planted:
    """A graph, the groups it must give (values, their order does not matter), and why others stay out."""

    graph: Graph
    groups: tuple[frozenset[str], ...]
    outside: dict[str, str] = field(default_factory=dict)


def planted(graph: Graph, *groups: tuple[str, ...], **outside: str) -> Planted:
    return Planted(
        graph, tuple(frozenset(node_of(v)[0] for v in group) for group in groups), outside
    )


def made(sketch: Sketch, *exclude: str) -> tuple[str, ...]:
    """Every value that is neither input nor view nor excluded."""
    kept = [n.value() for n in sketch.nodes if n.op not in ("opaque", "reshape", "expand")]
    return tuple(value for value in kept if value not in exclude)


# --- one group ------------------------------------------------------------------------------------------


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


# --- what stays out -------------------------------------------------------------------------------------


def a_write_between_two_readers() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(x)
    before = s.op("exp", row)
    s.opaque("aten.copy_.default", x, s.input(16, 32), mutates=(x,), alias_of=x)
    after = s.op("sub", x, row)
    return planted(
        s.build(before, after), (row, before), **{after: "leaves the group and comes back"}
    )


def a_write_to_a_view_between_two_readers() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(s.reshape(x, 16, 32))
    before = s.op("exp", row)
    view = s.opaque("aten.slice.Tensor", x, alias_of=x)
    s.opaque("aten.add_.Tensor", view, s.input(16, 32), mutates=(view,), alias_of=view)
    after = s.op("sub", x, row)
    return planted(
        s.build(before, after), (row, before), **{after: "leaves the group and comes back"}
    )


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


def a_reduction_over_the_leading_axis() -> Planted:
    s = Sketch()
    x = s.op("exp", s.input(64, 32))
    total = s.reduce("sum", x, (0,))
    return planted(s.build(total), **{total: "not over the innermost axes"})


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


def a_path_through_a_matmul() -> Planted:
    s = Sketch()
    x = s.input(32, 32)
    scale = s.mean(x)
    scaled = s.op("mul", x, scale)
    product = s.opaque("aten.mm.default", scaled, s.input(32, 32))
    out = s.op("add", product, scale)
    return planted(
        s.build(out),
        (scale, scaled),
        **{out: "leaves the group and comes back", product: "aten.mm"},
    )


def a_random_op_is_a_boundary() -> Planted:
    s = Sketch()
    weights = s.softmax(s.input(16, 32))
    inside = made(s)
    kept = s.opaque("inductor_random", s.input(), outputs=(tensor(16, 32),))
    out = s.op("mul", weights, s.op("gt", kept, 0.1))
    return planted(s.build(out), (*inside, *made(s, *inside)), **{kept: "not a row operation"})


def an_opaque_op_in_the_middle() -> Planted:
    s = Sketch()
    x = s.op("exp", s.opaque("aten.cumsum.default", s.op("exp", s.input(16, 32))))
    out = s.op("div", x, s.reduce("sum", x))
    return planted(s.build(out), made(s)[1:], **{"%opaque2": "aten.cumsum"})


def double_precision() -> Planted:
    s = Sketch()
    x = s.input(16, 32, dtype="float64")
    out = s.softmax(x)
    return planted(s.build(out), **{"%amax1": "float64"})


def a_cast_to_double_stays_out() -> Planted:
    s = Sketch()
    out = s.softmax(s.input(16, 32))
    inside = made(s)
    wide = s.cast(out, "float64")
    return planted(s.build(wide), inside, **{wide: "float64"})


def complex_numbers() -> Planted:
    s = Sketch()
    row = s.reduce("sum", s.op("mul", s.input(16, 32, dtype="complex64"), 2.0))
    return planted(s.build(row), **{row: "complex64"})


def a_result_not_in_row_major_order() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(x)
    out = s.op("sub", x, row, strides=(1, 16))
    last = s.op("exp", row)
    return planted(s.build(out, last), (row, last), **{out: "row-major"})


def a_copy_to_the_cpu() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    out = s.op("exp", s.mean(x))
    inside = made(s)
    copied = s.op("cast", out, dtype="bfloat16", device="cpu")
    return planted(s.build(copied), inside, **{copied: "on cpu"})


def an_operand_on_the_cpu() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(x)
    out = s.op("mul", x, row)
    scaled = s.op("mul", out, s.input(device="cpu"))
    return planted(s.build(scaled), (row, out), **{scaled: "on cpu"})


def a_single_row() -> Planted:
    s = Sketch()
    x = s.input(4096)
    out = s.softmax(x)
    return planted(s.build(out), **{"%amax1": "single row"})


def a_row_that_does_not_fit_in_registers() -> Planted:
    s = Sketch()
    out = s.softmax(s.input(64, 131_072))
    return planted(s.build(out), **{"%amax1": "131,072 columns does not fit in registers"})


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


# --- several groups -------------------------------------------------------------------------------------


def unrelated_groups_that_share_a_scalar() -> Planted:
    s = Sketch()
    scalar = s.op("exp", s.input())
    first = s.softmax(s.op("mul", s.input(16, 32), scalar))
    inside = made(s, scalar)
    second = s.softmax(s.op("mul", s.input(8, 64), scalar))
    return planted(
        s.build(first, second), inside, made(s, scalar, *inside), **{scalar: "broadcast value"}
    )


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
    an_expanded_row_value,
    symbolic_rows,
    symbolic_columns,
    two_reductions_of_one_tensor_over_the_same_axis,
    column_values_computed_inside,
    a_padded_input,
    a_transposed_input_is_read_where_it_is_stored,
)
STAYS_OUT: tuple[Callable[[], Planted], ...] = (
    a_write_between_two_readers,
    a_write_to_a_view_between_two_readers,
    a_value_read_transposed,
    a_member_read_transposed,
    a_member_read_shifted,
    a_row_value_used_as_a_column,
    a_row_value_expanded_into_a_column,
    a_value_combined_with_other_rows_of_itself,
    a_reduction_over_another_axis,
    a_reduction_over_the_leading_axis,
    a_reshape_that_mixes_rows_and_columns,
    a_reduction_over_part_of_the_columns,
    a_path_through_a_matmul,
    a_random_op_is_a_boundary,
    an_opaque_op_in_the_middle,
    double_precision,
    a_cast_to_double_stays_out,
    complex_numbers,
    a_result_not_in_row_major_order,
    a_copy_to_the_cpu,
    an_operand_on_the_cpu,
    a_single_row,
    a_row_that_does_not_fit_in_registers,
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
)


@pytest.mark.parametrize("plant", (*ONE_GROUP, *STAYS_OUT), ids=lambda plant: plant.__name__)
def test_planted_groups_are_found_and_nothing_else(plant: Callable[[], Planted]) -> None:
    case = plant()
    found = find_row_programs(case.graph)
    assert {frozenset(group.members) for group in found.whole} == set(case.groups)
    for value, reason in case.outside.items():
        given = [miss.reason for miss in found.near_misses if f"%{miss.node}" == value]
        assert any(reason in text for text in given), f"{value}: {given}"


def test_two_groups_never_wait_for_each_other() -> None:
    """Each is convex alone; as two kernels, each would need a value that the other computes."""
    s = Sketch()
    x, z = s.input(8, 32), s.input(8, 4, 8)
    first = s.op("exp", x)
    whole = s.mean(first)
    of_heads = s.mean(z)
    of_first = s.mean(s.reshape(first, 8, 4, 8))
    both = s.op("add", of_heads, of_first)
    spread = s.reshape(s.op("sub", z, of_heads), 8, 32)
    out = s.op("add", s.op("mul", first, whole), spread)
    graph = s.build(both, out)
    found = find_row_programs(graph)
    assert len(found.whole) == 3
    assert_legal(graph, found.whole)
