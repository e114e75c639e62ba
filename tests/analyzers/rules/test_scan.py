"""Recurrences written as a loop: what is one, what it is called and priced, and what is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch import nn

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Finding
from advisor.model.graph import Graph
from advisor.samples import mamba_block
from analyzers.metrics import trace_metrics
from analyzers.recurrence import recurrences
from analyzers.rules import find_all, scan, without_overlaps
from analyzers.rules.walk import is_gemm
from analyzers.scan_form import form_of
from analyzers.trace_subject import trace_subject
from collectors import read_trace
from tests.analyzers.planted.loops import LOOPS, NONE, STEPS, Loop, graph_of
from tests.analyzers.rules.test_captured import graphs_of, matches, renamed, subject_of
from tests.builders.captured import captured_training

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", "../shared"))
RECORDED = SHARED / "traces" / "h200" / "mamba.eager.json.gz"


def found_in(graph: Graph) -> list[Finding]:
    return [match.finding for match in scan.find(subject_of([graph]))]


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_a_recurrence_is_told_with_its_form(loop: Loop) -> None:
    (finding,) = found_in(graph_of(loop))
    size = f"{loop.steps} steps of {loop.ops} op{'s' * (loop.ops > 1)}, 1 site"
    assert finding.title.startswith(f"A {loop.what} written as a loop, {size}")
    assert loop.action in finding.action
    finding.check()


@pytest.mark.parametrize("loop", NONE, ids=str)
def test_what_is_no_recurrence_over_an_axis(loop: Loop) -> None:
    assert found_in(graph_of(loop)) == []


@pytest.mark.parametrize("loop", [*LOOPS, *NONE], ids=str)
def test_names_decide_nothing(loop: Loop) -> None:
    graph = graph_of(loop)
    mine, theirs = scan.find(subject_of([graph])), scan.find(subject_of([renamed(graph)]))
    assert [m.finding.title for m in mine] == [m.finding.title for m in theirs]
    names = {node.id: f"x{place}" for place, node in enumerate(graph.nodes)}
    for first, second in zip(mine, theirs, strict=True):
        assert {names[name] for _, name in first.nodes} == {name for _, name in second.nodes}


def test_the_loop_is_claimed_before_the_chains_in_it() -> None:
    graph = graph_of(next(loop for loop in LOOPS if loop.name == "a decayed sum"))
    rules = [match.finding.rule for match in matches([graph])]
    assert "scan-written-out" in rules
    assert "pointwise-chain" not in rules


def test_each_step_of_a_loop_is_the_same_op_on_the_next_part() -> None:
    loop = next(loop for loop in LOOPS if loop.name == "a selective scan read out by products")
    (subject,) = subject_of([graph_of(loop)]).graphs
    (found,) = recurrences(subject.flow, lambda node: node.op != "opaque", is_gemm)
    assert form_of(subject.flow, found) is not None
    assert found.steps == STEPS
    for column in found.columns:
        ops = {
            (subject.flow.nodes[name].op, subject.flow.nodes[name].target)
            for name in column.values()
        }
        assert len(ops) == 1
    assert len(found.states) == 1


def test_a_network_is_a_note_that_claims_nothing() -> None:
    graph = graph_of(next(loop for loop in LOOPS if loop.name == "PyTorch's LSTM cell"))
    (match,) = scan.find(subject_of([graph]))
    assert match.finding.kind == "note"
    assert match.finding.title.endswith("no scan")
    assert not match.nodes


def test_products_by_one_matrix_stay_outside() -> None:
    graph = graph_of(next(loop for loop in LOOPS if loop.name == "products beside the state"))
    (match,) = scan.find(subject_of([graph]))
    by_id = graph.by_id()
    assert {by_id[name].op for _, name in match.nodes} == {"mul", "add", "tanh"}


def test_mamba_forward_and_its_gradient() -> None:
    block, inputs = mamba_block.inference()
    (finding,) = scan_findings(graphs_of(block, *inputs))
    assert finding.title == "A scan written as a loop, 32 steps of 5 ops, 1 site"
    assert finding.locations[0].module == "mixer"
    graphs = [item.lowered.graph for item in captured_training(block, *inputs).graphs]
    steps = {f.evidence[0].values["steps"] for f in scan_findings(graphs)}
    assert steps == {31, 32}  # the gradient of the last state has nothing to add to


def scan_findings(graphs: list[Graph]) -> list[Finding]:
    return [m.finding for m in matches(graphs) if m.finding.rule == scan.RULE.id]


def test_less_is_moved_at_once_and_all_ways_are_priced() -> None:
    block, inputs = mamba_block.inference()
    (finding,) = scan_findings(graphs_of(block, *inputs))
    traffic = next(e.values for e in finding.evidence if e.kind == "traffic")
    # Neither decay nor drive is written: steps, values and what is stacked, and what they share.
    batch, tokens, inner = mamba_block.BATCH, mamba_block.TOKENS, mamba_block.INNER
    tokenwise, states = batch * tokens * inner, mamba_block.STATES
    shared = inner + inner * states + 2 * batch * tokens * states
    assert traffic["bytes_after"] == 2 * (2 * tokenwise + shared) + 4 * tokenwise
    assert traffic["bytes_before"] > 50 * traffic["bytes_after"]
    ways = {a.route: a.saving_ns for a in finding.alternatives}
    assert {"library", "graph_rewrite", "compile_region", "cuda_graph", "do_not_fuse"} <= set(ways)
    assert finding.plan_id is not None
    assert finding.alternatives[0].plan_ids == (finding.plan_id,)
    assert ways["library"] is not None
    assert ways["compile_region"] is not None
    assert ways["library"].mid > ways["compile_region"].mid > 0
    assert ways["cuda_graph"] is None  # no step was recorded


@pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not here")
def test_the_recorded_mamba() -> None:
    trace = read_trace(RECORDED)
    gpu = gpu_by_key("h200")
    metrics = trace_metrics(trace, "ProfilerStep#")
    subject, _ = trace_subject(
        trace, metrics, "ProfilerStep#", gpu=gpu, calibration=default_calibration(gpu)
    )
    findings = without_overlaps(find_all(subject))
    (finding,) = [f for f in findings if f.rule == scan.RULE.id]
    assert finding.title == "A scan written as a loop, 64 steps of 4 ops, 2 sites"
    assert finding.provenance == "inferred"
    assert {m.name: m.count for m in finding.members} == {
        "aten::bmm": 128, "aten::mul": 128, "aten::add": 128, "aten::copy_": 128,
    }  # fmt: skip
    assert not [
        f for f in findings if f.rule == "pointwise-chain" and "product + sum + cast" in f.title
    ]
    graphed = next(a.saving_ns for a in finding.alternatives if a.route == "cuda_graph")
    assert graphed is not None
    assert graphed.mid > 0


def test_recorded_models_without_a_loop_have_no_scan() -> None:
    folder = Path(__file__).parents[3] / "sample_traces"
    for path in sorted(folder.glob("*.json.gz")):
        trace = read_trace(path)
        metrics = trace_metrics(trace, "ProfilerStep#")
        subject, _ = trace_subject(trace, metrics, "ProfilerStep#")
        assert scan.find(subject) == (), path.name


def test_modules_without_a_loop() -> None:
    stack = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.Tanh())])
    (loop, *_) = LOOPS
    assert scan_findings(graphs_of(stack, *loop.inputs()[:1])) == []
