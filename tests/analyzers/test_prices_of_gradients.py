"""Prices of gradient ops beside values that the compiler computes again: eager has saved these."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.graph import GRADIENT, Graph, node_of
from advisor.model.trace import Trace
from analyzers.dataflow import dataflow
from analyzers.pricing import eager_prices
from analyzers.program_cost import modelled_before, nodes_bytes
from tests.builders.graph import Sketch
from tests.builders.trace import US, Timeline

GPU = gpu_by_key("h200")
CALIBRATION = load_calibration(GPU)
FULL, ROW = [64, 128], [64, 1]


def trace_of(*ops: tuple[str, list[list[int]], float]) -> Trace:
    """One step of ops on float32, a kernel each."""
    line = Timeline()
    line.range("ProfilerStep#0", 0, 900)
    for place, (name, shapes, length) in enumerate(ops):
        at = 20 * (place + 1)
        dtypes = json.dumps(["float"] * len(shapes))
        line.op(name, at, 10, input_shapes=json.dumps(shapes), input_dtypes=dtypes)
        line.kernel(at + 5, length, name=f"{name}_kernel", correlation=line.launch(at + 1))
    return line.build()


def backward(s: Sketch, out: str, *again: str) -> Graph:
    """A backward graph in which the nodes of `again` are computed a second time."""
    names = {node_of(value)[0] for value in again}
    graph = s.build(out)
    return replace(
        graph,
        phase="backward",
        nodes=tuple(replace(n, recomputed=n.id in names) for n in graph.nodes),
    )


def scaled_gradient() -> tuple[Graph, str, str]:
    """grad · rsqrt(mean(x)), the root as the forward pass computed it."""
    s = Sketch()
    x, grad = s.input(*FULL), s.input(*FULL)
    own: dict[str, Any] = {"label": "aten.mul.Tensor", "origin": f"{GRADIENT}mul"}
    row = s.reduce("mean", x, **own)
    root = s.op("rsqrt", row, **own)
    out = s.op("mul", grad, root, **own)
    return backward(s, out, row, root), node_of(root)[0], node_of(out)[0]


def test_a_gradient_op_is_known_by_what_eager_gives_it() -> None:
    graph, root, out = scaled_gradient()
    trace = trace_of(("aten::mul", [FULL, FULL], 9), ("aten::mul", [FULL, ROW], 4))
    (unit,) = eager_prices([graph], trace)[0].units
    assert (unit.time_ns, unit.kernels) == (4 * US, (1,))
    assert {root, out} <= unit.nodes
    assert eager_prices([graph], trace)[0].price(dataflow(graph), unit.nodes).unpriced == set()


def test_a_gradient_op_that_shares_a_node_with_the_forward_is_known_by_all() -> None:
    """`silu_backward` of (grad, x) computes sigmoid(x), which the forward pass has as well."""
    s = Sketch()
    grad, x = s.input(*FULL), s.input(*FULL)
    own: dict[str, Any] = {"label": "aten.silu_backward.default", "origin": f"{GRADIENT}7"}
    gate = s.op("sigmoid", x, **own)
    out = s.op("mul", s.op("mul", grad, x, **own), gate, **own)
    trace = trace_of(("aten::silu_backward", [FULL, FULL], 5))
    ((unit,),) = (p.units for p in eager_prices([backward(s, out, gate)], trace))
    assert unit.time_ns == 5 * US


def test_gradients_of_several_uses_are_added_in_place_where_the_trace_has_it_so() -> None:
    def added(origin: str) -> Graph:
        s = Sketch()
        out = s.op("add", s.input(*FULL), s.input(*FULL), label="aten.add.Tensor", origin=origin)
        return backward(s, out)

    both = trace_of(("aten::add", [FULL, FULL], 9), ("aten::add_", [FULL, FULL], 4))
    plain = trace_of(("aten::add", [FULL, FULL], 9))
    for origin, trace, time in (
        (f"{GRADIENT}add", both, 4),
        (f"{GRADIENT}add", plain, 9),
        ("add", both, 9),
    ):
        ((unit,),) = (p.units for p in eager_prices([added(origin)], trace))
        assert unit.time_ns == time * US


def test_what_eager_has_saved_costs_nothing_again() -> None:
    graph, _, out = scaled_gradient()
    flow = dataflow(graph)
    members = [node.id for node in graph.nodes if node.args]
    wanted = frozenset(members)
    time, moved = modelled_before(flow, members, GPU, CALIBRATION, only=wanted)
    alone, size = modelled_before(flow, [out], GPU, CALIBRATION, only=wanted)
    assert (time, moved) == (alone, size)
    # The gradient, the root of each row, and the result; x is not read again.
    assert moved == nodes_bytes(flow, {out}) == 4 * (64 * 128 + 64 + 64 * 128)


def test_what_only_the_compiler_computes_again_is_no_op_of_eager() -> None:
    s = Sketch()
    wide = s.op("exp", s.input(*FULL), label="aten.exp.default", origin="exp")
    graph = backward(s, wide, wide)
    trace = trace_of(("aten::exp", [FULL], 9))
    assert eager_prices([graph], trace)[0].units == ()
    name = node_of(wide)[0]
    found, _ = modelled_before(dataflow(graph), [name], GPU, CALIBRATION, only=frozenset({name}))
    assert found.mid == 0
