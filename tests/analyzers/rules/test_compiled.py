"""Compiled steps: what one generated kernel computes is not in pieces, and saves nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.graph import Graph
from analyzers.exposure import Situation
from analyzers.opportunities import PricedGraph, advise
from analyzers.pricing import Unit, price_list
from analyzers.rules import Match, find_all
from analyzers.rules.scan import RULE
from analyzers.subject import captured_subject
from tests.analyzers.planted.loops import LOOPS, STEPS, graph_of
from tests.builders.graph import Sketch, tensor

KERNEL_NS = 40_000


def found_in(graph: Graph, kernels: Sequence[Sequence[str]]) -> list[Match]:
    """What is found where these nodes are one generated kernel each, of one length."""
    gpu = gpu_by_key("h200")
    busy = KERNEL_NS * len(kernels)
    situation = Situation(gpu, default_calibration(gpu), False, step_ns=2 * busy, busy_ns=busy)
    units = [Unit(f"triton_{i}", frozenset(own), KERNEL_NS, 1) for i, own in enumerate(kernels)]
    priced = [PricedGraph(graph, price_list(units, fused=True))]
    return list(find_all(captured_subject(priced, advise(priced, situation), situation, {}, None)))


def chain(length: int) -> tuple[Graph, list[str]]:
    s = Sketch()
    value = s.input(4096, 4096)
    names = []
    for _ in range(length):
        value = s.op("exp", value)
        names.append(value.removeprefix("%"))
    return s.build(value), names


def norm() -> tuple[Graph, list[str]]:
    s = Sketch()
    out = s.rms_norm(s.input(8192, 4096), s.input(4096))
    graph = s.build(out)
    return graph, [node.id for node in graph.nodes if node.args]


def test_a_chain_in_one_kernel_is_no_finding() -> None:
    graph, names = chain(4)
    assert [m for m in found_in(graph, [names]) if m.finding.rule == "pointwise-chain"] == []


def test_a_chain_in_two_kernels_saves_what_moves_between_them() -> None:
    graph, names = chain(4)
    (match,) = found_in(graph, [names[:1], names[1:]])
    assert match.finding.title == "Pointwise chain exp in 2 generated kernels, 1 site"
    traffic = next(e.values for e in match.finding.evidence if e.kind == "traffic")
    one = 4096 * 4096 * 4
    assert (traffic["bytes_before"], traffic["bytes_after"]) == (4 * one, 2 * one)
    assert match.saved_ns is not None
    assert match.saved_ns.mid == KERNEL_NS


def test_a_gate_in_one_kernel_is_no_finding() -> None:
    s = Sketch()
    x, up = s.input(2048, 512), s.input(512, 1024)
    first = s.opaque("aten.mm.default", x, up, outputs=(tensor(2048, 1024),))
    second = s.opaque("aten.mm.default", x, s.input(512, 1024), outputs=(tensor(2048, 1024),))
    graph = s.build(s.op("mul", s.op("sigmoid", first), second))
    pointwise = [node.id for node in graph.nodes if node.op in ("mul", "sigmoid")]
    rules = {m.finding.rule for m in found_in(graph, [pointwise])}
    assert not rules & {"gated-mlp", "pointwise-chain"}
    found = found_in(graph, [pointwise[:1], pointwise[1:]])
    (match,) = [m for m in found if m.finding.rule == "gated-mlp"]
    assert match.finding.title == "GLU gate in several generated kernels, 1 site"


@pytest.mark.parametrize("cut", [0, 3])
def test_a_row_program_says_what_it_is_today(cut: int) -> None:
    graph, names = norm()
    kernels = [names[:cut], names[cut:]] if cut else [names]
    (match,) = found_in(graph, kernels)
    words = "in 2 generated kernels" if cut else "a generated kernel that could be faster|one"
    assert re.search(words, match.finding.title), match.finding.title
    assert "separate" not in match.finding.title


def test_a_norm_folded_out_of_a_kernel_leaves_the_rest_of_it() -> None:
    s = Sketch()
    meta = tensor(8, 64, 32, 32, dtype="float16")
    image = s.input(8, 64, 32, 32, dtype="float16")
    weight = s.input(64, 64, 1, 1, dtype="float16")
    made = s.opaque("aten.convolution.default", image, weight, outputs=(meta,))
    scale, shift = s.input(1, 64, 1, 1, dtype="float16"), s.input(1, 64, 1, 1, dtype="float16")
    label = {"label": "aten._native_batch_norm_legit_no_training.default", "origin": "bn"}
    scaled = s.op("mul", made, scale, **label)
    moved = s.op("add", scaled, shift, **label)
    graph = s.build(s.op("relu", moved, origin="relu"))
    own = [node.id for node in graph.nodes if node.op in ("mul", "add", "relu")]
    (match,) = [m for m in found_in(graph, [own]) if m.finding.rule == "batch-norm"]
    assert match.saved_ns is not None
    # Folded, the kernel still reads and writes for the ReLU, unless the convolution applies it.
    assert (match.saved_ns.low, match.saved_ns.mid, match.saved_ns.high) == (0, 0, KERNEL_NS)
    assert "applies them too" in match.finding.action


def test_a_loop_in_one_kernel_is_none_and_one_in_many_is_told_in_kernels() -> None:
    graph = graph_of(next(loop for loop in LOOPS if loop.name == "a decayed sum"))
    own = [node.id for node in graph.nodes if node.op in ("mul", "add")]
    assert [m for m in found_in(graph, [own]) if m.finding.rule == RULE.id] == []
    steps = [own[at : at + 2] for at in range(0, len(own), 2)]
    (match,) = [m for m in found_in(graph, steps) if m.finding.rule == RULE.id]
    size = f"{STEPS} steps of 1 generated kernel, 1 site"
    assert match.finding.title == f"A scan written as a loop, {size}"
    assert not [a for a in match.finding.alternatives if a.route == "compile_region"]
