"""Prices of graphs that run several times a step, each beside the others."""

from __future__ import annotations

import json

from msgspec.structs import replace

from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Member
from advisor.model.graph import Graph, SourceOp, node_of
from advisor.model.trace import Trace
from analyzers.dataflow import dataflow
from analyzers.exposure import Situation
from analyzers.opportunities import PricedGraph, advise
from analyzers.pricing import Price, Unit, compiled_prices, eager_prices, price_list
from analyzers.program_cost import modelled_before, residual_time
from tests.builders.graph import Sketch
from tests.builders.trace import US, Timeline

STEP_US = 1000
GPU = gpu_by_key("h200")
CALIBRATION = load_calibration(GPU)
# A graph, another one, both again.
IN_TURN = [(0, True), (1, True), (0, True), (1, True)]


def line(*kernels: tuple[str, float], shape: tuple[int, ...] = ()) -> Trace:
    """Two steps of kernels; each of an op of its name on `shape`, where there is one."""
    found = Timeline()
    for step in range(2):
        found.range(f"ProfilerStep#{step}", STEP_US * step, STEP_US - 1)
        for place, (name, length) in enumerate(kernels):
            at = STEP_US * step + 20 * (place + 1)
            if shape:
                shapes, dtypes = json.dumps([list(shape)]), json.dumps(["float"])
                found.op(name, at, 10, input_shapes=shapes, input_dtypes=dtypes)
            found.kernel(at + 5, length, name=name, correlation=found.launch(at + 1))
    return found.build()


def of_one(op: str, *, executions: int) -> tuple[Graph, str]:
    s = Sketch()
    value = s.op(op, s.input(64, 128), label=f"aten.{op}.default")
    return replace(s.build(value), executions=executions), node_of(value)[0]


def test_a_call_of_a_generated_kernel_takes_the_time_of_all_its_runs() -> None:
    """Both graphs name their kernel k0."""
    graphs = [of_one(op, executions=2) for op in ("exp", "neg")]
    calls = [(graph, [("k0", frozenset({name}))]) for graph, name in graphs]
    trace = line(("k0", 1), ("k0", 10), ("k0", 3), ("k0", 30))
    (one,), (other,) = (prices.units for prices in compiled_prices(calls, trace, IN_TURN))
    assert (one.time_ns, one.launches, one.kernels, one.again) == (4 * US, 2, (4,), ((6,),))
    assert (other.time_ns, other.kernels, other.again) == (40 * US, (5,), ((7,),))
    assert Price((one, other), (), frozenset()).rows() == [[4, 5], [6, 7]]
    assert Price((one,), (), frozenset()).members() == (Member(name="k0", count=2, time_ns=4 * US),)
    # Not told in what order they run: one after the other.
    (one,), _ = (prices.units for prices in compiled_prices(calls, trace))
    assert one.time_ns == 11 * US


def test_runs_on_other_sizes_are_passed_by() -> None:
    """Their kernels have the same name, and no part in what the graph was captured with."""
    graph, name = of_one("exp", executions=2)
    trace = line(("k0", 1), ("k0", 50), ("k0", 3))
    runs = [(0, True), (0, False), (0, True)]
    ((unit,),) = (
        p.units for p in compiled_prices([(graph, [("k0", frozenset({name}))])], trace, runs)
    )
    assert (unit.time_ns, unit.kernels, unit.again) == (4 * US, (3,), ((5,),))


def test_where_counts_differ_every_run_costs_the_median() -> None:
    graph, name = of_one("exp", executions=2)
    trace = line(("k0", 1), ("k0", 2), ("k0", 9))
    ((unit,),) = (p.units for p in compiled_prices([(graph, [("k0", frozenset({name}))])], trace))
    assert unit.time_ns == 4 * US


def test_an_eager_op_takes_the_time_of_all_its_runs() -> None:
    graphs = [of_one("exp", executions=2), of_one("exp", executions=1)]
    trace = line(("aten::exp", 4), ("aten::exp", 4), ("aten::exp", 4), shape=(64, 128))
    runs = [(0, True), (1, True), (0, True)]
    (one,), (other,) = (p.units for p in eager_prices([g for g, _ in graphs], trace, runs))
    assert (one.time_ns, one.launches, one.kernels, one.again) == (8 * US, 2, (3,), ((5,),))
    assert (other.time_ns, other.launches, other.kernels, other.again) == (4 * US, 1, (4,), ())


def test_equal_ops_that_the_step_did_not_run_cost_nothing_in_any_run() -> None:
    """Two of them in the graph, one in each of two runs."""
    graph, name = of_one("exp", executions=2)
    again = SourceOp(origin="exp_1", label="aten.exp.default")
    graph = replace(graph, nodes=tuple(
        replace(node, repeats=(again,)) if node.id == name else node for node in graph.nodes
    ))  # fmt: skip
    trace = line(("aten::exp", 4), ("aten::exp", 4), shape=(64, 128))
    assert [unit.time_ns for unit in eager_prices([graph], trace)[0].units] == [8 * US]
    trace = line(*[("aten::exp", 4)] * 4, shape=(64, 128))
    assert [unit.time_ns for unit in eager_prices([graph], trace)[0].units] == [8 * US] * 2


def test_modelled_times_and_bytes_are_those_of_all_runs() -> None:
    once, name = of_one("exp", executions=1)
    often = replace(once, executions=3)
    (time, moved), (times, bytes_moved) = (
        modelled_before(dataflow(graph), [name], GPU, CALIBRATION, only=frozenset({name}))
        for graph in (once, often)
    )
    assert (times.mid, bytes_moved) == (3 * time.mid, 3 * moved)
    unit = [Unit("k", frozenset({name}), 10, 1)]
    left, lefts = (
        residual_time(dataflow(graph), unit, frozenset(), GPU, CALIBRATION)
        for graph in (once, often)
    )
    assert left is not None
    assert lefts is not None
    assert lefts.mid == 3 * left.mid


def test_a_finding_is_worth_all_runs_and_leaves_a_kernel_of_each() -> None:
    s = Sketch()
    x = s.input(4096, 1024)
    wide = s.op("exp", x, label="aten.exp.default", origin="exp")
    row = s.reduce("sum", wide, label="aten.sum.dim_IntList", origin="sum")
    graph = s.build(s.op("div", wide, row, label="aten.div.Tensor", origin="div"))
    situation = Situation(GPU, CALIBRATION, eager=True)
    found = []
    for runs in (1, 3):
        priced = replace(graph, executions=runs)
        units = [
            Unit(
                node.id,
                frozenset({node.id}),
                runs * 50 * US,
                runs,
                (at,),
                tuple((at + 10 * run,) for run in range(1, runs)),
            )
            for at, node in enumerate(node for node in graph.nodes if node.args)
        ]
        advice = advise([PricedGraph(priced, price_list(units))], situation)
        (finding,), (plan,) = advice.findings, advice.plans
        found.append((finding, plan, advice.changes[finding.id]))
    (once, plan, change), (often, plans, changes) = found
    assert plan.prediction is not None
    assert plans.prediction is not None
    assert plans.prediction.saving_ns.mid == 3 * plan.prediction.saving_ns.mid
    assert plans.prediction.bytes_after == 3 * plan.prediction.bytes_after
    assert change.sites == ((0, 1, 2),)
    assert changes.sites == ((0, 1, 2), (10, 11, 12), (20, 21, 22))
    assert [member.count for member in often.members] == [3, 3, 3]
    told = ", a site up to 3 times a step"
    assert [told in item.text for item in often.evidence if item.kind == "traffic"] == [True]
    assert not any("times a step" in item.text for item in once.evidence)
