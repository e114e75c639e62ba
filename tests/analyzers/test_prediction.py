"""One kernel behind two sites of a graph is gone once, whatever kind of plan takes its place."""

from __future__ import annotations

from dataclasses import replace

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.learned import recalibrated
from advisor.model.base import Range
from advisor.model.plan import FusionPlan, Site
from advisor.model.scores import ResidualQuantiles
from analyzers.dataflow import dataflow
from analyzers.exposure import Situation
from analyzers.prediction import Claimed, PricedFlow, claimed_nodes, predicted, present_members
from analyzers.pricing import Unit, price_list
from analyzers.row_plans import canonical_program
from analyzers.row_programs import find_row_programs
from tests.builders.graph import Sketch

GPU = gpu_by_key("h200")
SITUATION = Situation(GPU, default_calibration(GPU), eager=False)


def two_norms() -> tuple[list[Claimed], list[tuple[FusionPlan, Site]]]:
    """Two norms that one kernel of 9 µs computes today."""
    s = Sketch()
    graph = s.build(*(s.rms_norm(s.input(64, 256), s.input(256)) for _ in range(2)))
    flow = dataflow(graph)
    programs = [canonical_program(flow, group) for group in find_row_programs(graph).whole]
    assert len(programs) == 2
    nodes = frozenset(name for program in programs for name in program.site.nodes)
    facts = PricedFlow(flow, price_list([Unit("both", nodes, 9_000, 1)]), "inference")
    claimed = claimed_nodes((facts, program.site) for program in programs)
    return claimed, [(p.as_plan("0" * 16, "", "inference"), p.site) for p in programs]


def test_a_kernel_that_serves_two_sites_counts_once() -> None:
    claimed, kernels = two_norms()
    found = predicted(claimed, kernels, SITUATION)
    assert (found.before_ns.low, found.before_ns.mid, found.before_ns.high) == (9_000,) * 3
    assert found.basis == "measured kernel times"
    assert found.saving_ns.mid == found.before_ns.mid - found.after_ns.mid
    assert found.modelled_saving_ns is None
    assert [(m.name, m.count, m.time_ns) for m in present_members(claimed, kernels)] == [
        ("both", 1, 9_000)
    ]


def test_what_earlier_plans_taught_moves_the_new_kernels_time_and_so_the_saving() -> None:
    claimed, kernels = two_norms()
    modelled = predicted(claimed, kernels, SITUATION)
    learned = ResidualQuantiles(low=-0.5, mid=0.25, high=2.0)
    found = predicted(claimed, kernels, replace(SITUATION, residuals=learned))
    assert found.before_ns == modelled.before_ns
    assert found.after_ns == recalibrated(modelled.after_ns, learned)
    assert found.after_ns.mid > modelled.after_ns.mid
    after = found.after_ns
    assert found.saving_ns == Range(
        low=9_000 - after.high, mid=9_000 - after.mid, high=9_000 - after.low
    )
    assert found.modelled_saving_ns == modelled.saving_ns
