"""Graphs with ops that no group goes through: writes, other devices, streams, types, libraries."""

from __future__ import annotations

from collections.abc import Callable

from tests.analyzers.planted import Planted, made, planted
from tests.builders.graph import Sketch, tensor


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


def an_op_on_another_stream() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.mean(x)
    kept = s.op("sub", x, row)
    aside = s.op("mul", kept, 2.0, stream=1)
    return planted(s.build(aside), (row, kept), **{aside: "on another stream"})


def a_group_on_a_stream_of_its_own() -> Planted:
    s = Sketch()
    x = s.input(16, 32)
    row = s.reduce("mean", x, stream=1)
    kept = s.op("sub", x, row, stream=1)
    return planted(s.build(kept), (row, kept))


def streams_wait_for_each_other_in_between() -> Planted:
    s = Sketch()
    x, other = s.input(16, 32), s.input(16, 32)
    row = s.mean(x)
    before = s.op("sub", x, row)
    s.opaque("streams.wait_event.default", outputs=(), boundary="stream")
    after = s.op("mul", before, other)
    return planted(
        s.build(after), (row, before), **{after: "a path through streams.wait_event.default"}
    )


def a_sum_over_ranks_that_a_reduction_need_not_wait_for() -> Planted:
    s = Sketch()
    x, y = s.input(16, 32), s.input(16, 32)
    total = s.opaque("_c10d_functional.all_reduce.default", x, boundary="communication")
    arrived = s.opaque("_c10d_functional.wait_tensor.default", total, boundary="communication")
    row = s.mean(y)
    centred = s.op("sub", y, row)
    out = s.op("add", centred, arrived)
    return planted(
        s.build(out),
        (row, centred),
        **{out: "would wait for communication"},
    )


BOUNDARIES: tuple[Callable[[], Planted], ...] = (
    a_write_between_two_readers,
    a_write_to_a_view_between_two_readers,
    a_path_through_a_matmul,
    a_random_op_is_a_boundary,
    an_opaque_op_in_the_middle,
    double_precision,
    a_cast_to_double_stays_out,
    complex_numbers,
    a_copy_to_the_cpu,
    an_operand_on_the_cpu,
    an_op_on_another_stream,
    a_group_on_a_stream_of_its_own,
    streams_wait_for_each_other_in_between,
    a_sum_over_ranks_that_a_reduction_need_not_wait_for,
)
