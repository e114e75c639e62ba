"""The work of eager ops of a graph, against kernels of the same shapes that ran on an H200."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.graph import node_of
from analyzers.cost_model import Work
from analyzers.dataflow import dataflow
from analyzers.node_work import source_op_work
from analyzers.program_cost import modelled_before, nodes_bytes, source_ops
from tests.builders.graph import Sketch

H200 = gpu_by_key("h200")
CALIBRATION = default_calibration(H200)
SCORES = (4, 16, 1024, 1024)


def last_work(s: Sketch, value: str) -> Work:
    """The work of the source op that made a value, of one kernel."""
    flow = dataflow(s.build(value))
    name = node_of(value)[0]
    nodes = next(n for n in source_ops(flow, flow.nodes) if name in n)
    (work,) = source_op_work(flow, nodes, nodes_bytes(flow, nodes), H200)
    return work


def microseconds(work: Work) -> float:
    return work.time(H200, CALIBRATION).mid / 1e3


# Medians of eager kernels in llama_prefill.eager: shapes and dtypes as there.
def test_a_product_with_a_number_is_vectorised() -> None:
    s = Sketch()
    work = last_work(s, s.op("mul", s.input(*SCORES, dtype="bfloat16"), 0.125))
    assert work.pattern == "vector"
    assert microseconds(work) == pytest.approx(64.4, rel=0.05)


def test_a_mask_that_is_repeated_computes_every_offset() -> None:
    s = Sketch()
    scores, mask = s.input(*SCORES, dtype="bfloat16"), s.input(4, 1, 1024, 1024, dtype="bfloat16")
    work = last_work(s, s.op("add", scores, mask))
    assert work.pattern == "index"
    assert microseconds(work) == pytest.approx(188.5, rel=0.1)


def test_widening_looks_dtypes_up_and_narrowing_does_not() -> None:
    s = Sketch()
    wide = last_work(s, s.cast(s.input(*SCORES, dtype="bfloat16"), "float32"))
    narrow = last_work(s, s.cast(s.input(*SCORES), "bfloat16"))
    assert (wide.pattern, narrow.pattern) == ("cast", "vector")
    assert microseconds(wide) == pytest.approx(196.1, rel=0.12)
    assert microseconds(narrow) == pytest.approx(94.8, rel=0.05)


def test_a_transposed_operand_is_read_as_it_lies() -> None:
    s = Sketch()
    x = s.input(4096, 27, 128)
    work = last_work(s, s.op("add", x, s.input(4096, 27, 128, strides=(3456, 1, 27))))
    assert work.pattern == "index"
    assert work.instructions > 2 * last_work(s, s.op("add", x, s.input(128))).instructions


def test_a_reduction_of_rows_is_none_of_columns() -> None:
    s = Sketch()
    x = s.input(4096, 1024)
    rows, columns = last_work(s, s.reduce("sum", x)), last_work(s, s.reduce("sum", x, (0,)))
    assert (rows.pattern, columns.pattern) == ("row_reduction", "column_reduction")
    assert microseconds(columns) == pytest.approx(13.8, rel=0.1)  # dlrm_train.eager


def test_the_whole_written_out_softmax_costs_what_its_kernels_took() -> None:
    s = Sketch()
    scores, mask = s.input(*SCORES, dtype="bfloat16"), s.input(4, 1, 1024, 1024, dtype="bfloat16")
    masked = s.op("add", s.op("mul", scores, 0.125), mask)
    flow = dataflow(s.build(s.cast(s.cast(masked, "float32"), "bfloat16")))
    members = [n.id for n in flow.graph.nodes if n.args]
    price, moved = modelled_before(flow, members, H200, CALIBRATION, only=frozenset(members))
    assert price.mid / 1e3 == pytest.approx(64.4 + 188.5 + 196.1 + 94.8, rel=0.06)
    assert moved == nodes_bytes(flow, {members[0]}) + sum(
        nodes_bytes(flow, {name}) for name in members[1:]
    )
    assert price.low < price.mid < price.high


def test_sizes_known_at_run_time_count_as_they_were() -> None:
    fixed, open_ = Sketch(), Sketch(s0=1024)
    one = last_work(fixed, fixed.op("add", fixed.input(1024, 64), fixed.input(64)))
    other = last_work(open_, open_.op("add", open_.input("s0", 64), open_.input(64)))
    assert one == other


# The five largest batch norms of resnet18_train.eager (cuDNN, channels last), normalising
# included, took 333.4 µs.
def test_statistics_of_channels_are_no_rows_of_a_layer_norm() -> None:
    spent = 0.0
    for side, times in ((112, 1), (56, 4)):
        s = Sketch()
        x = s.input(64, 64, side, side, strides=(64 * side * side, 1, 64 * side, 64))
        batch_norm: dict[str, Any] = {
            "label": "aten._native_batch_norm_legit_functional.default",
            "origin": "bn",
        }
        statistics = last_work(s, s.reduce("var", x, (0, 2, 3), **batch_norm))
        assert statistics.pattern == "column_reduction"
        spent += times * microseconds(statistics)
    assert 333.4 / 4 < spent < 333.4


def test_rows_of_a_norm_are_all_the_axes_that_it_reduces() -> None:
    s = Sketch()
    norm: dict[str, Any] = {"label": "aten.native_layer_norm.default", "origin": "norm"}
    image = last_work(s, s.reduce("mean", s.input(64, 32, 56, 8), (1, 2, 3), **norm))
    flat = last_work(s, s.reduce("mean", s.input(64, 32 * 56 * 8), (1,), **norm))
    assert (image.pattern, image.instructions) == ("norm", flat.instructions)


def test_few_elements_of_a_column_need_no_second_stage() -> None:
    s = Sketch()
    few, many = (last_work(s, s.reduce("sum", s.input(n, 640), (0,))) for n in (4, 4096))
    assert few.tail_trips == 1 < many.tail_trips


def test_channels_last_sums_read_columns_as_they_lie() -> None:
    s = Sketch()
    rows = s.input(4, 64, 56, 56)
    columns = s.input(4, 64, 56, 56, strides=(200_704, 1, 3_584, 64))
    patterns = [last_work(s, s.reduce("sum", x, (0, 2, 3))).pattern for x in (rows, columns)]
    assert patterns == ["row_reduction", "column_reduction"]


def biased(label: str = "aten.addmm.default") -> Sketch:
    """A product with a bias, as the compiler takes it apart, and a ReLU."""
    s = Sketch()
    op = {"label": label, "origin": "linear"}
    x, w = s.input(512, 256), s.input(256, 128)
    product = s.op("opaque", x, w, shape=(512, 128), target="aten.mm.default", **op)
    added = s.op("add", product, s.input(128), **op)
    s.op("relu", added, origin="relu")
    return s


@pytest.mark.parametrize(("label", "ops"), [("aten.addmm.default", 1), ("aten.add.Tensor", 2)])
def test_the_bias_of_a_product_is_added_by_the_kernel_of_the_product(label: str, ops: int) -> None:
    s = biased()
    if ops == 2:  # an addition of the user's own
        s.nodes[-2] = replace(s.nodes[-2], label=label, origin="added")
    flow = dataflow(s.build(s.nodes[-1].value()))
    after = [node.id for node in flow.graph.nodes if node.op in ("add", "relu")]
    price, moved = modelled_before(flow, after, H200, CALIBRATION, only=frozenset(after))
    assert len(source_ops(flow, after)) == ops
    result = 4 * 512 * 128
    assert moved == 2 * ops * result + (ops - 1) * 4 * 128
    whole = source_ops(flow, [node.id for node in flow.graph.nodes if node.args])
    assert len(whole) == ops + 1, "the product itself is an op"
    assert price.mid > 0
