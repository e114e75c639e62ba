"""Prices: which of the user's kernels compute which nodes, and what each of them took."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from advisor.model.findings import Member
from advisor.model.graph import Graph, SourceOp, node_of
from advisor.model.trace import Trace
from analyzers.dataflow import dataflow
from analyzers.pricing import Price, Unit, compiled_prices, eager_prices, price_list
from analyzers.program_cost import source_ops
from analyzers.recorded_costs import step_kernels
from tests.builders.graph import Sketch
from tests.builders.trace import US, Timeline

STEP_US = 1000


def name_of(value: str) -> str:
    return node_of(value)[0]


class Eager:
    """Steps of eager ops, each with its kernels, on the smallest timeline that holds them."""

    def __init__(self, steps: int) -> None:
        self.line = Timeline()
        self.at = [STEP_US * step for step in range(steps)]
        for step in range(steps):
            self.line.range(f"ProfilerStep#{step}", STEP_US * step, STEP_US - 1)

    def op(
        self, step: int, name: str, shapes: list[list[int]], dtypes: list[str], *kernels: float
    ) -> None:
        start = self.at[step] = self.at[step] + 20
        self.line.op(
            name, start, 10, input_shapes=json.dumps(shapes), input_dtypes=json.dumps(dtypes)
        )
        for position, length in enumerate(kernels):
            correlation = self.line.launch(start + 1 + position)
            self.line.kernel(
                start + 5 + 3 * position, length, name=f"{name}_kernel", correlation=correlation
            )

    def build(self) -> Trace:
        return self.line.build()


def norm_graph() -> tuple[Graph, dict[str, str]]:
    """x in bfloat16: cast, x^2 (a power), mean, multiply; then two nodes of one softmax."""
    s = Sketch()
    x = s.input(64, 128, dtype="bfloat16")
    wide = s.op("cast", x, dtype="float32", label="prims.convert_element_type.default")
    square = s.op("mul", wide, wide, label="aten.pow.Tensor_Scalar", origin="pow_1")
    row = s.reduce("mean", square, label="aten.mean.dim", origin="mean_1")
    out = s.op("mul", wide, row, label="aten.mul.Tensor", origin="mul_1")
    top = s.reduce("amax", out, label="aten._softmax.default", origin="softmax_1")
    less = s.op("sub", out, top, label="aten._softmax.default", origin="softmax_1")
    names = {"wide": wide, "square": square, "row": row, "out": out, "top": top, "less": less}
    return s.build(less), {key: name_of(value) for key, value in names.items()}


def test_an_eager_op_costs_the_kernels_of_the_same_op_on_the_same_shapes() -> None:
    graph, name = norm_graph()
    eager = Eager(steps=3)
    for step, extra in enumerate((0, 2, 10)):
        eager.op(step, "aten::copy_", [[64, 128], [64, 128]], ["float", "c10::BFloat16"], 2 + extra)
        eager.op(step, "aten::pow", [[64, 128], []], ["float", "Scalar"], 1)
        eager.op(step, "aten::mean", [[64, 128], [], [], []], ["float", "", "", ""], 1, 2)
        eager.op(step, "aten::mul", [[64, 128], [64, 1]], ["float", "float"], 4)
        eager.op(step, "aten::mul", [[64, 128], [64, 128]], ["float", "float"], 99)
        eager.op(step, "aten::_softmax", [[64, 128], [], []], ["float", "", ""], 7)
    trace = eager.build()
    (prices,) = eager_prices([graph], trace)
    found = {unit.name: unit for unit in prices.units}
    assert found["aten::copy_"] == Unit("aten::copy_", frozenset({name["wide"]}), 4 * US, 1, (14,))
    assert found["aten::pow"] == Unit("aten::pow", frozenset({name["square"]}), 1 * US, 1, (15,))
    assert found["aten::mean"] == Unit("aten::mean", frozenset({name["row"]}), 3 * US, 2, (16, 17))
    assert found["aten::mul"] == Unit("aten::mul", frozenset({name["out"]}), 4 * US, 1, (18,))
    # Rows are those of the last step: what is replayed.
    assert trace.kernels["duration_ns"][14] == 12 * US
    assert found["aten::_softmax"].nodes == {name["top"], name["less"]}


def test_what_a_group_costs_and_which_kernels_also_do_other_work() -> None:
    graph, name = norm_graph()
    eager = Eager(steps=1)
    eager.op(0, "aten::mul", [[64, 128], [64, 1]], ["float", "float"], 4)
    eager.op(0, "aten::_softmax", [[64, 128], [], []], ["float", "", ""], 7)
    flow = dataflow(graph)
    (prices,) = eager_prices([graph], eager.build())
    price = prices.price(flow, [name["row"], name["out"], name["top"]])
    assert price.time_ns == 11 * US
    assert [unit.name for unit in price.shared] == ["aten::_softmax"]
    assert price.unpriced == {name["row"]}
    assert price.members() == (
        Member(name="aten::_softmax", count=1, time_ns=7 * US),
        Member(name="aten::mul", count=1, time_ns=4 * US),
    )


def test_equal_ops_that_are_one_node_are_each_an_op_of_eager() -> None:
    """Eager runs `tanh(x)` twice, and both norms whole, although one node computes each part."""
    s = Sketch()
    x, first, second = s.input(64, 128), s.input(128), s.input(128)
    same = s.op("tanh", x, label="aten.tanh.default", origin="tanh")
    norm = s.reduce("mean", x, label="aten.native_layer_norm.default", origin="norm")
    one = s.op("mul", norm, first, label="aten.native_layer_norm.default", origin="norm")
    other = s.op("mul", norm, second, label="aten.native_layer_norm.default", origin="norm_1")
    square = s.op("mul", x, x, label="aten.pow.Tensor_Scalar", origin="pow_1")
    graph = s.build(same, one, other, square)
    more = {
        name_of(same): SourceOp(origin="tanh_1", label="aten.tanh.default"),
        name_of(norm): SourceOp(origin="norm_1", label="aten.native_layer_norm.default"),
        name_of(square): SourceOp(origin="mul_9", label="aten.mul.Tensor"),
    }
    nodes = tuple(
        replace(node, repeats=(more[node.id],)) if node.id in more else node for node in graph.nodes
    )
    graph = replace(graph, nodes=nodes)
    once = Eager(steps=1)
    once.op(0, "aten::tanh", [[64, 128]], ["float"], 4)
    (prices,) = eager_prices([graph], once.build())
    assert prices.price(dataflow(graph), {name_of(same)}).time_ns == 4 * US, "it ran but once"
    eager = Eager(steps=1)
    eager.op(0, "aten::tanh", [[64, 128]], ["float"], 4)
    eager.op(0, "aten::native_layer_norm", [[64, 128], [128]], ["float", "float"], 5)
    eager.op(0, "aten::tanh", [[64, 128]], ["float"], 4)
    eager.op(0, "aten::native_layer_norm", [[64, 128], [128]], ["float", "float"], 5)
    eager.op(0, "aten::pow", [[64, 128], []], ["float", ""], 2)
    eager.op(0, "aten::mul", [[64, 128], [64, 128]], ["float", "float"], 3)
    (prices,) = eager_prices([graph], eager.build())
    flow = dataflow(graph)
    assert prices.price(flow, {name_of(same)}).time_ns == 8 * US
    assert prices.price(flow, {name_of(norm), name_of(one), name_of(other)}).time_ns == 10 * US
    assert prices.price(flow, {name_of(square)}).time_ns == 5 * US
    rows = [row for unit in prices.units for row in unit.kernels]
    assert len(rows) == len(set(rows)) == 6
    assert len(source_ops(flow, flow.index, again=True)) == len(source_ops(flow, flow.index)) + 2


def test_a_tensor_given_twice_counts_twice() -> None:
    s = Sketch()
    x = s.input(8, 4)
    y = s.op("mul", x, x, label="aten.mul.Tensor")
    eager = Eager(steps=1)
    eager.op(0, "aten::mul", [[8, 4], [8, 4]], ["float", "float"], 3)
    eager.op(0, "aten::mul", [[8, 4], []], ["float", "double"], 5)
    (unit,) = eager_prices([s.build(y)], eager.build())[0].units
    assert unit.time_ns == 3 * US


def test_equal_ops_of_two_graphs_are_different_kernels_of_the_last_step() -> None:
    graphs = []
    for count in (2, 1):
        s = Sketch()
        value = s.input(8, 4)
        for _ in range(count):
            value = s.op("neg", value, label="aten.neg.default")
        graphs.append(s.build(value))
    eager = Eager(steps=2)
    for step in (0, 1):
        for _ in range(3):
            eager.op(step, "aten::neg", [[8, 4]], ["float"], 3)
    first, second = eager_prices([*graphs], eager.build())
    assert [unit.kernels for unit in (*first.units, *second.units)] == [(3,), (4,), (5,)]


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        ([[8, 5], [8, 4]], ["float", "float"]),
        ([[8, 4], [8, 4]], ["c10::Half", "float"]),
        ([[8, 4]], ["float"]),
        ("nonsense", "nonsense"),
    ],
)
def test_other_shapes_or_dtypes_price_nothing(shapes: object, dtypes: object) -> None:
    s = Sketch()
    y = s.op("mul", s.input(8, 4), s.input(8, 4), label="aten.mul.Tensor")
    graph = s.build(y)
    eager = Eager(steps=1)
    eager.op(0, "aten::mul", shapes, dtypes, 3)  # type: ignore[arg-type]
    (prices,) = eager_prices([graph], eager.build())
    assert prices.units == ()
    assert prices.price(dataflow(graph), [name_of(y)]).unpriced == {name_of(y)}


def test_views_and_inputs_belong_to_no_op() -> None:
    s = Sketch()
    x = s.input(8, 4)
    y = s.op("neg", s.reshape(x, 32), label="aten.neg.default")
    eager = Eager(steps=1)
    eager.op(0, "aten::neg", [[32]], ["float"], 3)
    eager.op(0, "aten::reshape", [[8, 4]], ["float"], 50)
    (unit,) = eager_prices([s.build(y)], eager.build())[0].units
    assert unit.nodes == {name_of(y)}


def compiled_line(*steps: tuple[tuple[str, float], ...]) -> Trace:
    line = Timeline()
    for step, kernels in enumerate(steps):
        line.range(f"ProfilerStep#{step}", STEP_US * step, STEP_US - 1)
        for position, (kernel, length) in enumerate(kernels):
            at = STEP_US * step + 20 * position
            line.kernel(at + 5, length, name=kernel, correlation=line.launch(at + 1))
    return line.build()


def three_nodes() -> tuple[Graph, list[str]]:
    s = Sketch()
    values = [s.op("exp", s.input(8, 4))]
    values += [s.op("neg", values[-1])]
    values += [s.op("abs", values[-1])]
    return s.build(values[-1]), [name_of(v) for v in values]


def test_the_kth_call_of_a_kernel_is_its_kth_execution_in_every_step() -> None:
    graph, (a, b, c) = three_nodes()
    calls = [("k0", frozenset({a})), ("k1", frozenset({b})), ("k0", frozenset({c}))]
    trace = compiled_line(
        (("k0", 1), ("k1", 5), ("k0", 10)),
        (("k0", 2), ("k1", 5), ("k0", 11)),
        (("k0", 3), ("k1", 6), ("k0", 18)),
    )
    (prices,) = compiled_prices([(graph, calls)], trace)
    assert [(u.name, u.nodes, u.time_ns) for u in prices.units] == [
        ("k0", {a}, 2 * US), ("k1", {b}, 5 * US), ("k0", {c}, 11 * US),
    ]  # fmt: skip
    assert [u.kernels for u in prices.units] == [(6,), (7,), (8,)]


def test_where_the_counts_differ_every_call_costs_the_median() -> None:
    graph, (a, _, c) = three_nodes()
    calls = [("k0", frozenset({a})), ("k0", frozenset({c}))]
    trace = compiled_line((("k0", 1), ("k0", 2), ("k0", 9)), (("k0", 3), ("k0", 4), ("k0", 9)))
    (prices,) = compiled_prices([(graph, calls)], trace)
    assert [unit.time_ns for unit in prices.units] == [3500, 3500]


def test_a_kernel_that_never_ran_prices_nothing_and_other_graphs_nodes_are_left_out() -> None:
    graph, (a, b, _) = three_nodes()
    calls = [("k0", frozenset({a, "of_another_graph"})), ("never", frozenset({b}))]
    (prices,) = compiled_prices([(graph, calls)], compiled_line((("k0", 1),)))
    assert [(unit.name, unit.nodes) for unit in prices.units] == [("k0", {a})]
    flow = dataflow(graph)
    # Not in a kernel that ran: that it costs what the ops would cost one by one is never said.
    assert prices.price(flow, [b]) == Price((), (), frozenset())
    assert prices.price(flow, [a, b]).unpriced == frozenset()


def test_kernels_of_one_name_in_two_graphs_are_told_apart_by_their_order() -> None:
    first, (a, _, _) = three_nodes()
    second, (b, _, _) = three_nodes()
    calls = [(first, [("k0", frozenset({a}))]), (second, [("k0", frozenset({b}))])]
    prices = compiled_prices(calls, compiled_line((("k0", 2), ("k0", 90)), (("k0", 4), ("k0", 92))))
    assert [[unit.time_ns for unit in item.units] for item in prices] == [[3 * US], [91 * US]]


def test_a_kernel_shared_by_two_groups_is_priced_once_for_both() -> None:
    graph, (a, b, c) = three_nodes()
    flow = dataflow(graph)
    prices = price_list([Unit("k", frozenset({a, b}), 6, 1), Unit("l", frozenset({c}), 5, 2)])
    assert prices.price(flow, [a]).shared == (prices.units[0],)
    both = prices.price(flow, [a, b, c])
    assert (both.time_ns, both.shared, both.unpriced) == (11, (), frozenset())


def test_views_in_a_kernel_do_not_make_it_shared() -> None:
    s = Sketch()
    x = s.input(8, 4)
    y = s.op("neg", s.reshape(x, 32))
    graph = s.build(y)
    prices = price_list([Unit("k", frozenset({n.id for n in graph.nodes}), 6, 1)])
    assert prices.price(dataflow(graph), [name_of(y)]).shared == ()


def test_only_kernels_launched_in_a_step_count() -> None:
    line = Timeline()
    line.range("ProfilerStep#0", 100, 100)
    for at in (10, 110, 190, 210):
        line.kernel(at + 50, 1, name=f"k{at}", correlation=line.launch(at))
    line.kernel(150, 1, name="unlaunched")
    found = step_kernels(line.build())
    assert list(found["name"]) == ["k110", "k190"]
    assert list(found["step"]) == [0, 0]


def test_without_steps_every_kernel_counts() -> None:
    line = Timeline()
    line.kernel(5, 1, correlation=line.launch(1))
    line.kernel(9, 1)
    assert list(step_kernels(line.build())["step"]) == [0, 0]
