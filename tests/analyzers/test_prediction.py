"""One kernel behind two sites of a graph is gone once, whatever kind of plan takes its place."""

from __future__ import annotations

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from analyzers.dataflow import dataflow
from analyzers.exposure import Situation
from analyzers.prediction import PricedFlow, claimed_nodes, predicted, present_members
from analyzers.pricing import Unit, price_list
from analyzers.row_plans import canonical_program
from analyzers.row_programs import find_row_programs
from tests.builders.graph import Sketch

GPU = gpu_by_key("h200")
SITUATION = Situation(GPU, default_calibration(GPU), eager=False)


def test_a_kernel_that_serves_two_sites_counts_once() -> None:
    s = Sketch()
    graph = s.build(*(s.rms_norm(s.input(64, 256), s.input(256)) for _ in range(2)))
    flow = dataflow(graph)
    programs = [canonical_program(flow, group) for group in find_row_programs(graph).whole]
    assert len(programs) == 2
    nodes = frozenset(name for program in programs for name in program.site.nodes)
    facts = PricedFlow(flow, price_list([Unit("both", nodes, 9_000, 1)]), "inference")
    claimed = claimed_nodes((facts, program.site) for program in programs)
    kernels = [(p.as_plan("0" * 16, "", "inference"), p.site) for p in programs]
    found = predicted(claimed, kernels, SITUATION)
    assert (found.before_ns.low, found.before_ns.mid, found.before_ns.high) == (9_000,) * 3
    assert found.basis == "measured kernel times"
    assert found.saving_ns.mid == found.before_ns.mid - found.after_ns.mid
    assert [(m.name, m.count, m.time_ns) for m in present_members(claimed, kernels)] == [
        ("both", 1, 9_000)
    ]
