"""Titles: a program is called what people of the field call it, by what it computes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.model.base import Phase
from advisor.model.graph import Graph
from analyzers.dataflow import dataflow
from analyzers.naming import describe, op_word
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from tests.builders.graph import Sketch


def title(graph: Graph, phase: Phase = "inference") -> str:
    (group,) = find_row_programs(graph).whole
    return describe(plan_of([canonical_program(dataflow(graph), group)], phase, ""))


def rms_norm() -> Graph:
    s = Sketch()
    return s.build(s.rms_norm(s.input(16, 32), s.input(32)))


def residual_norm(*, kept: bool) -> Graph:
    s = Sketch()
    total = s.op("add", s.input(16, 32), s.input(16, 32))
    out = s.rms_norm(total, s.input(32))
    return s.build(out, total) if kept else s.build(out)


def layer_norm() -> Graph:
    s = Sketch()
    x = s.input(16, 32)
    scale = s.op("rsqrt", s.op("add", s.reduce("var", x), 1e-5))
    return s.build(s.op("mul", s.op("sub", x, s.mean(x)), scale))


def unknown_epsilon(moment: str) -> Graph:
    """A norm whose epsilon is given: a trace holds no numbers."""
    s = Sketch()
    x, epsilon = s.input(16, 32), s.input()
    squares = s.reduce("mean", s.op("mul", x, x)) if moment == "mean" else s.reduce("var", x)
    centred = x if moment == "mean" else s.op("sub", x, s.reduce("mean", x))
    scale = s.op("rsqrt", s.op("add", squares, epsilon))
    return s.build(s.op("mul", s.op("mul", centred, scale), s.input(32)))


def group_norm(activation: str = "") -> Graph:
    """Of [rows, groups' channels, pixels], scaled channel by channel."""
    s = Sketch()
    x = s.input(16, 8, 32)
    mean = s.reduce("mean", x, (-2, -1))
    scale = s.op("rsqrt", s.op("add", s.reduce("var", x, (-2, -1)), 1e-5))
    out = s.op("mul", s.op("mul", s.op("sub", x, mean), scale), s.input(8, 1))
    if activation == "silu":
        out = s.op("div", out, s.op("add", s.op("exp", s.op("neg", out)), 1))
    elif activation == "gate":
        out = s.op("mul", out, s.op("sigmoid", out))
    elif activation:
        out = s.op(activation, out)
    return s.build(out)


def softmax() -> Graph:
    s = Sketch()
    return s.build(s.softmax(s.input(16, 32)))


def masked_by_addition() -> Graph:
    s = Sketch()
    return s.build(s.softmax(s.op("add", s.input(4, 16, 32), s.input(16, 32))))


def masked_by_choice() -> Graph:
    s = Sketch()
    return s.build(s.softmax(s.op("where", s.input(16, 32, dtype="bool"), s.input(16, 32), -1e9)))


def quantisation() -> Graph:
    s = Sketch()
    x = s.input(16, 32)
    return s.build(s.op("div", x, s.reduce("amax", s.op("abs", x))))


def quantised(dtype: str) -> Graph:
    s = Sketch()
    x = s.input(16, 32)
    return s.build(s.cast(s.op("div", x, s.reduce("amax", s.op("abs", x))), dtype))


def batch_norm() -> Graph:
    """Of [batch, channels, pixels]: a channel's values lie around those of the others."""
    s = Sketch()
    x = s.input(4, 8, 32)
    mean = s.reduce("mean", x, (0, 2))
    scale = s.op("rsqrt", s.op("add", s.reduce("var", x, (0, 2)), 1e-5))
    return s.build(s.op("relu", s.op("mul", s.op("sub", x, mean), scale)))


def of_nothing_known() -> Graph:
    s = Sketch()
    x = s.input(16, 32)
    return s.build(s.op("mul", s.op("sub", x, s.reduce("amin", x)), s.reduce("sum", x)))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (rms_norm(), "RMS norm"),
        (residual_norm(kept=False), "residual add + RMS norm"),
        (residual_norm(kept=True), "residual add + RMS norm with 2 outputs"),
        (layer_norm(), "layer norm"),
        (unknown_epsilon("mean"), "RMS norm"),
        (unknown_epsilon("var"), "layer norm"),
        (group_norm(), "group norm"),
        (group_norm("silu"), "group norm + SiLU"),
        (group_norm("gate"), "group norm + SiLU"),
        (group_norm("relu"), "group norm + ReLU"),
        (group_norm("exp"), "group norm"),
        (softmax(), "softmax"),
        (masked_by_addition(), "masked softmax"),
        (masked_by_choice(), "masked softmax"),
        (quantisation(), "amax of each row"),
        (quantised("int8"), "quantisation to int8"),
        (quantised("float8_e5m2"), "quantisation to float8_e5m2"),
        (batch_norm(), "batch norm + ReLU"),
        (of_nothing_known(), "amin and sum of each row"),
    ],
)
def test_a_program_is_named_after_what_it_computes(graph: Graph, expected: str) -> None:
    assert title(graph) == expected


def norm_gradient(*, centred: bool) -> Graph:
    """Of a norm of 32 columns with weights, as ATen writes it for bfloat16 out of float32."""
    s = Sketch()
    arrived, weight, x, scale = s.input(16, 32), s.input(32), s.input(16, 32), s.input(16, 1)
    g = s.op("mul", arrived, weight)
    second = s.reduce("sum", s.op("mul", g, x))
    if not centred:
        share = s.op("div", s.op("mul", second, scale), 32)
        return s.build(s.op("sub", s.op("mul", g, scale), s.op("mul", share, s.op("mul", x, 2))))
    left = s.op("sub", s.op("mul", g, 32), s.reduce("sum", g))
    return s.build(s.op("mul", scale, s.op("sub", left, s.op("mul", x, second))))


def softmax_gradient(*, fused: bool) -> Graph:
    s = Sketch()
    y = s.input(16, 32)
    product = s.op("mul", s.input(16, 32), y)
    total = s.reduce("sum", product)
    if fused:
        return s.build(s.op("fma", s.op("neg", y), total, product))
    return s.build(s.op("sub", product, s.op("mul", y, total)))


def log_softmax_gradient() -> Graph:
    s = Sketch()
    g = s.input(16, 32)
    total = s.reduce("sum", g)
    return s.build(s.op("sub", g, s.op("mul", s.op("exp", s.input(16, 32)), total)))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (norm_gradient(centred=True), "layer norm gradient"),
        (norm_gradient(centred=False), "RMS norm gradient"),
        (softmax_gradient(fused=False), "softmax gradient"),
        (softmax_gradient(fused=True), "softmax gradient"),
        (log_softmax_gradient(), "log-softmax gradient"),
    ],
)
def test_a_gradient_is_named_after_what_it_differentiates(graph: Graph, expected: str) -> None:
    assert title(graph, "backward") == expected


def test_a_gradient_that_was_not_placed_yet_has_a_name() -> None:
    graph = softmax_gradient(fused=False)
    (group,) = find_row_programs(graph).whole
    plan = plan_of([canonical_program(dataflow(graph), group)], "backward", "")
    assert describe(replace(plan, sites=())) == "softmax gradient"


def test_what_is_computed_again_is_no_gradient() -> None:
    assert title(rms_norm(), "backward") == "RMS norm in the backward pass"
    assert title(softmax(), "backward") == "softmax in the backward pass"


def test_gradients_say_so() -> None:
    assert title(quantisation(), "backward") == "row reduction gradient"


def test_sums_over_the_rows_are_named() -> None:
    s = Sketch()
    g, x = s.input(64, 32), s.input(64, 32)
    slope = s.op("mul", g, x)
    bias = s.build(slope, s.reduce("sum", slope, (0,)))
    expected = "pointwise chain gradient and sum over the rows with 2 outputs"
    assert title(bias, "backward") == expected
    s = Sketch()
    slope = s.op("mul", s.input(64, 32), s.input(64, 32))
    dx = s.op("sub", slope, s.mean(slope))
    both = title(s.build(dx, s.reduce("sum", slope, (0,))), "backward")
    assert both == "row reduction gradient and sum over the rows with 2 outputs"


@pytest.mark.parametrize(
    ("label", "word"),
    [
        ("aten.silu_backward.default", "SiLU gradient"),
        ("aten.gelu.default", "GELU"),
        ("aten._to_copy.default", "cast"),
        ("aten::add_", "sum"),
        ("aten::masked_fill_", "mask"),
        ("prims.convert_element_type.default", "cast"),
        ("exp", "exp"),
        ("aten::clamp_min_", "clamp min"),
        ("aten._native_batch_norm_legit_no_training.default", "batch norm"),
        ("aten.native_group_norm.default", "group norm"),
        ("aten.native_layer_norm_backward.default", "layer norm gradient"),
        ("aten::cudnn_batch_norm", "batch norm"),
        ("aten._fused_rms_norm.default", "RMS norm"),
    ],
)
def test_ops_have_words(label: str, word: str) -> None:
    assert op_word(label) == word
