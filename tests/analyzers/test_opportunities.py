"""Advice: what shares a program is one finding; its price says what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Location, Range, check_deep
from advisor.model.findings import Finding
from advisor.model.graph import Graph
from advisor.model.report import Recommended
from analyzers.exposure import Situation, exposure_of
from analyzers.opportunities import Advice, PricedGraph, advise
from analyzers.pricing import Unit, eager_prices, price_list
from analyzers.recommendation import recommend
from tests.builders.eager import Eager
from tests.builders.graph import Sketch, tensor
from tests.builders.replayed import steady_exposure

GPU = gpu_by_key("h200")
NO_GPU = Situation(GPU, default_calibration(GPU), eager=True)
# 90 kernels of 10 µs, which the host launches faster than they run.
ON_GPU = Situation(
    GPU,
    default_calibration(GPU),
    eager=True,
    step_ns=1_010_000,
    busy_ns=900_000,
    exposure=steady_exposure([10.0] * 90, every_us=8, clean_us=1_010),
)
ROWS, COLUMNS = 4096, 2048


def norms(
    count: int = 2,
    residual: bool = True,
    identity: str = "g0",
    phase: str = "inference",
    rows: int = ROWS,
) -> Graph:
    """A first norm and then residual sums with norms, a matmul between them, as decoders have."""
    s = Sketch(phase=phase, identity=identity)  # type: ignore[arg-type]
    hidden, weight, square = s.input(rows, COLUMNS), s.input(COLUMNS), s.input(COLUMNS, COLUMNS)
    normed = s.rms_norm(hidden, weight)
    for _ in range(count - 1):
        mixed = s.opaque("aten.mm.default", normed, square, outputs=(tensor(rows, COLUMNS),))
        hidden = s.op("add", hidden, mixed) if residual else mixed
        normed = s.rms_norm(hidden, weight)
    return s.build(
        s.opaque("aten.mm.default", normed, square, outputs=(tensor(rows, COLUMNS),)), hidden
    )


def softmaxes() -> Graph:
    s = Sketch(identity="soft")
    return s.build(s.softmax(s.input(ROWS, COLUMNS)))


def advice_of(
    *graphs: Graph, situation: Situation = NO_GPU, priced: Sequence[Unit] | None = None
) -> Advice:
    prices = None if priced is None else price_list(priced)
    found = advise([PricedGraph(graph, prices) for graph in graphs], situation)
    for record in (*found.plans, *found.findings):
        check_deep(record)
    return found


def evidence(finding: Finding, kind: str) -> list[str]:
    return [item.text for item in finding.evidence if item.kind == kind]


def test_equal_programs_of_all_graphs_are_one_finding_with_all_sites() -> None:
    found = advice_of(norms(3, residual=False), norms(2, residual=False, identity="g1"))
    (finding,) = found.findings
    (plan,) = found.plans
    assert finding.plan_id == plan.id
    assert [site.graph for site in plan.sites] == ["g0"] * 3 + ["g1"] * 2
    assert "5 sites" in finding.title
    assert plan.title == "RMS norm"
    assert finding.provenance == "exact"


def test_forward_and_backward_are_told_apart() -> None:
    found = advice_of(norms(1, phase="forward"), norms(1, phase="backward", identity="g1"))
    assert {plan.phase for plan in found.plans} == {"forward", "backward"}
    assert len(found.findings) == len({plan.id for plan in found.plans}) == 2


def test_different_programs_are_findings_of_their_own_and_the_best_comes_first() -> None:
    found = advice_of(norms(1), softmaxes())
    assert {f.title.split(" in ")[0] for f in found.findings} == {"RMS norm", "softmax"}
    savings = [plan_saving(found, finding) for finding in found.findings]
    assert savings == sorted(savings, reverse=True)
    assert recommend(found.findings, None, {}).order == tuple(f.id for f in found.findings)


def plan_saving(found: Advice, finding: Finding) -> int:
    plan = next(p for p in found.plans if p.id == finding.plan_id)
    assert plan.prediction is not None
    return plan.prediction.saving_ns.mid


def test_a_norm_with_and_without_its_residual_is_one_finding_with_two_ways() -> None:
    """Three norms, two after a residual sum: one kernel for all, or a longer one for two."""
    found = advice_of(norms(3))
    (finding,) = found.findings
    titles = {plan.title: len(plan.sites) for plan in found.plans}
    assert titles == {"RMS norm": 3, "residual add + RMS norm with 2 outputs": 2}
    main = next(plan for plan in found.plans if plan.id == finding.plan_id)
    assert main.title == "RMS norm"
    ways = [a for a in finding.alternatives if a.route == "generated_kernel"]
    assert len(ways) == 2
    assert {plan_id for way in ways for plan_id in way.plan_ids} == {
        plan.id for plan in found.plans
    }
    savings = [way.saving_ns.mid for way in ways if way.saving_ns is not None]
    assert savings == sorted(savings, reverse=True)
    # A place that the longer kernel takes is none of the shorter one's.
    assert {way.text for way in ways} == {
        "residual add + RMS norm with 2 outputs at 2 sites; RMS norm at 1 site",
        "RMS norm at 3 sites",
    }


def test_node_names_that_repeat_in_another_graph_are_other_nodes() -> None:
    """Two graphs with the same ids but different neighbours: reasons and sites do not mix."""
    s = Sketch(identity="other")
    x = s.input(ROWS, COLUMNS)
    weight = s.input(COLUMNS)
    s.input(COLUMNS, COLUMNS)
    normed = s.rms_norm(x, weight)
    graph = s.build(s.opaque("custom.sink.default", normed, outputs=(tensor(ROWS, COLUMNS),)))
    found = advice_of(norms(1, phase="forward"), graph)
    assert len(found.findings) == 2
    for finding, name in (
        (f, p.sites[0].graph) for f in found.findings for p in found.plans if p.id == f.plan_id
    ):
        reasons = " ".join(evidence(finding, "legality"))
        assert ("custom.sink" in reasons) == (name == "other")
        assert ("aten.mm" in reasons) == (name == "g0")


def test_without_a_gpu_exposure_is_not_judged_and_says_what_it_needs() -> None:
    (finding,) = advice_of(norms(1)).findings
    assert finding.exposed_saving_ns is None
    assert "no step was timed on a GPU" in evidence(finding, "cannot_judge")[0]
    assert "modelled kernel times" in evidence(finding, "time")[0]
    assert [member.time_ns for member in finding.members] == [None] * len(finding.members)
    assert sum(member.count for member in finding.members) == 6


def test_measured_kernels_make_the_price_of_the_present_state() -> None:
    graph = norms(1)
    members = [node.id for node in graph.nodes if node.op not in ("opaque",)]
    units = [
        Unit(f"kernel_{name}", frozenset({name}), 10_000, 1, (row,))
        for row, name in enumerate(members)
    ]
    found = advice_of(graph, situation=ON_GPU, priced=units)
    (finding,) = found.findings
    (plan,) = found.plans
    assert plan.prediction is not None
    assert plan.prediction.before_ns == Range(low=60_000, mid=60_000, high=60_000)
    assert plan.prediction.basis == "measured kernel times"
    assert sum(member.time_ns or 0 for member in finding.members) == 60_000
    # The device is what is waited for: five kernels and the pauses before them go, and of the
    # sixth what the fused kernel does not take.
    saving = finding.exposed_saving_ns
    assert saving is not None
    saved = plan.prediction.saving_ns
    assert saving.mid == pytest.approx(saved.mid + 5 * 1_200, rel=0.1)
    assert saving.low < saving.mid < saving.high
    assert "5 launches fewer" in evidence(finding, "host")[0]
    half = advice_of(graph, situation=ON_GPU, priced=units[:3])
    assert half.plans[0].prediction is not None
    assert half.plans[0].prediction.basis == "measured and modelled kernel times"


def test_a_kernel_that_also_computes_something_else_leaves_work_behind() -> None:
    graph = norms(1)
    members = frozenset(node.id for node in graph.nodes if node.op not in ("opaque",))
    alone = advice_of(graph, situation=ON_GPU, priced=[Unit("k", members, 60_000, 1)])
    s = Sketch()
    # The same norm, whose kernel also computes the exponential of another tensor.
    weight, other = s.input(COLUMNS), s.input(ROWS, COLUMNS)
    normed = s.rms_norm(s.input(ROWS, COLUMNS), weight)
    inside = frozenset(n.id for n in s.nodes if n.op != "opaque")
    beside = s.op("exp", s.opaque("aten.sort.default", other))
    shared = advice_of(
        s.build(normed, beside),
        situation=ON_GPU,
        priced=[Unit("k", inside | {beside[1:]}, 60_000, 1)],
    )
    first, second = alone.plans[0].prediction, shared.plans[0].prediction
    assert first is not None
    assert second is not None
    assert second.before_ns == first.before_ns
    assert second.after_ns.mid > first.after_ns.mid


def test_a_finding_that_loses_is_not_recommended() -> None:
    graph = norms(1)
    members = [node.id for node in graph.nodes if node.op not in ("opaque",)]
    found = advice_of(graph, situation=ON_GPU, priced=[Unit("k", frozenset(members), 10, 1)])
    assert len(found.findings) == 1
    assert recommend(found.findings, ON_GPU.exposure, found.changes) == Recommended()


def test_places_are_listed_once_each() -> None:
    graph = norms(2, residual=False)
    nodes = tuple(
        msgspec.structs.replace(n, location=Location(module=f"layers.{i // 8}.norm"))
        for i, n in enumerate(graph.nodes)
    )
    (finding,) = advice_of(msgspec.structs.replace(graph, nodes=nodes)).findings
    assert len(finding.locations) == len(set(finding.locations)) == 2


def test_nothing_to_fuse_is_no_finding() -> None:
    s = Sketch()
    found = advice_of(s.build(s.op("exp", s.input(8, 8))))
    assert (found.plans, found.findings) == ((), ())
    assert advise([], NO_GPU).findings == ()


def test_the_summary_lists_every_plan_with_its_price() -> None:
    found = advice_of(norms(3))
    rows = {row.id: row for row in found.summaries()}
    for plan in found.plans:
        assert plan.prediction is not None
        assert (rows[plan.id].sites, rows[plan.id].saving_ns) == (
            len(plan.sites), plan.prediction.saving_ns,
        )  # fmt: skip


def test_kernels_that_the_recorded_step_does_not_hold_are_not_judged() -> None:
    graph = norms(1)
    members = [node.id for node in graph.nodes if node.op not in ("opaque",)]
    units = [Unit(f"kernel_{name}", frozenset({name}), 10_000, 1, (900,)) for name in members]
    (finding,) = advice_of(graph, situation=ON_GPU, priced=units).findings
    assert finding.exposed_saving_ns is None
    assert "none of its kernels" in evidence(finding, "cannot_judge")[0]


def test_a_captured_graph_is_replayed_with_the_kernels_of_its_own_trace() -> None:
    """From the op of the graph to its kernel in the trace to what the step loses."""
    s = Sketch()
    x = s.input(ROWS, COLUMNS)
    square = s.op("mul", x, x, label="aten.mul.Tensor")
    mean = s.reduce("mean", square, label="aten.mean.dim")
    scale = s.op("rsqrt", mean, label="aten.rsqrt.default")
    graph = s.build(s.op("mul", x, scale, label="aten.mul.Tensor"))
    eager = Eager()
    rows = eager.tensor(ROWS, COLUMNS)
    for _ in range(2):
        eager.matmul(rows, eager.tensor(COLUMNS, COLUMNS))
    small = eager.mean(eager.op("aten::mul", rows, rows))
    eager.op("aten::mul", rows, eager.op("aten::rsqrt", small, us=2))
    trace = eager.trace()
    (prices,) = eager_prices([graph], trace)
    assert [unit.kernels for unit in prices.units] == [(2,), (3,), (4,), (5,)]
    exposure = exposure_of(trace, trace.steps(), 420_000)
    assert exposure is not None
    assert not exposure.doubt
    situation = Situation(
        GPU, default_calibration(GPU), True, step_ns=420_000, busy_ns=402_000, exposure=exposure
    )
    found = advise([PricedGraph(graph, prices)], situation)
    (finding,) = found.findings
    saved, (plan, *_) = finding.exposed_saving_ns, found.plans
    assert saved is not None
    assert plan.prediction is not None
    assert saved.mid == pytest.approx(plan.prediction.saving_ns.mid, rel=0.05)
    assert found.changes[finding.id].sites == ((2, 3, 4, 5),)
