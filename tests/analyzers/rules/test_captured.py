"""The same rules on graphs captured exactly: found by dataflow, whatever things are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Location
from advisor.model.graph import Graph, Node
from advisor.samples.transformer_block import inference
from analyzers.exposure import Situation
from analyzers.opportunities import PricedGraph, advise
from analyzers.rules import Match, find_all
from analyzers.subject import captured_subject
from tests.builders.captured import captured


def subject_of(graphs: Sequence[Graph]) -> Any:
    gpu = gpu_by_key("h200")
    situation = Situation(gpu, default_calibration(gpu), True, step_ns=200_000, busy_ns=200_000)
    priced = [PricedGraph(graph) for graph in graphs]
    return captured_subject(priced, advise(priced, situation), situation, {}, None)


def matches(graphs: Sequence[Graph]) -> list[Match]:
    return list(find_all(subject_of(graphs)))


def graphs_of(module: Callable[..., Any], *inputs: torch.Tensor) -> list[Graph]:
    return [item.lowered.graph for item in captured(module, *inputs).graphs]


@pytest.fixture(scope="module")
def block() -> list[Graph]:
    module, inputs = inference()
    return graphs_of(module, *inputs)


def renamed(graph: Graph) -> Graph:
    """The graph with other ids, labels and places."""
    names = {node.id: f"x{place}" for place, node in enumerate(graph.nodes)}

    def value(arg: Any) -> Any:
        if not (isinstance(arg, str) and arg.startswith("%")):
            return arg
        name, _, output = arg[1:].partition("#")
        return f"%{names[name]}" + (f"#{output}" if output else "")

    def node(old: Node) -> Node:
        return msgspec.structs.replace(
            old, id=names[old.id], label="", location=Location(),
            args=tuple(value(a) for a in old.args), mutates=tuple(value(m) for m in old.mutates),
            alias_of=None if old.alias_of is None else value(old.alias_of),
            origin=None if old.origin is None else f"o-{old.origin}",
        )  # fmt: skip

    return msgspec.structs.replace(
        graph,
        nodes=tuple(node(n) for n in graph.nodes),
        inputs=tuple(names[name] for name in graph.inputs),
        outputs=tuple(value(v) for v in graph.outputs),
    )


def test_a_transformer_block(block: list[Graph]) -> None:
    found = {m.finding.rule: m.finding for m in matches(block)}
    sites = {rule: finding.evidence[0].values.get("sites") for rule, finding in found.items()}
    assert sites["attention-written-out"] == 1
    assert sites["rotary-written-out"] == 2
    assert sites["gated-mlp"] == 1
    assert {f.provenance for f in found.values()} == {"exact"}


def test_row_programs_stay_what_they_are(block: list[Graph]) -> None:
    subject = subject_of(block)
    through = [m.finding for m in find_all(subject) if m.finding.rule == "row_program"]
    own = [f for f in subject.advice.findings if f.rule == "row_program"]
    assert through == own
    assert own


def test_renaming_changes_no_candidate(block: list[Graph]) -> None:
    other = [renamed(graph) for graph in block]
    places = [
        {node.id: place for place, node in enumerate(graph.nodes)} for graph in (block[0], other[0])
    ]
    results = []
    for graphs, where in zip((block, other), places, strict=True):
        results.append(
            [(m.finding.rule, sorted(where[name] for _, name in m.nodes)) for m in matches(graphs)]
        )
    assert results[0] == results[1]


def test_library_attention_is_not_attention_written_out() -> None:
    q = torch.randn(1, 4, 64, 32)
    graphs = graphs_of(functional.scaled_dot_product_attention, q, q, q)
    assert "attention-written-out" not in {m.finding.rule for m in matches(graphs)}


def called_with_bias(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    mask = bias.permute(2, 0, 1).unsqueeze(0)
    return functional.scaled_dot_product_attention(q, q + 1, q * 2, attn_mask=mask)


@pytest.mark.parametrize("permuted", [True, False])
def test_library_attention_that_falls_back_to_math_is_named(permuted: bool) -> None:
    q, bias = torch.randn(4, 8, 256, 64), torch.randn(256, 256, 8)
    if not permuted:
        bias = bias.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    with sdpa_kernel(SDPBackend.MATH):
        graphs = graphs_of(called_with_bias, q, bias)
    (match,) = [m for m in matches(graphs) if m.finding.rule == "attention-written-out"]
    assert match.finding.title == "SDPA falls back to math, 1 site"
    assert (".contiguous()" in (match.finding.action or "")) is permuted
    text = match.finding.evidence[0].text
    assert text.endswith("last axis has stride 1, here 8") is permuted
    again = matches([renamed(graph) for graph in graphs])
    assert match.finding.title in {m.finding.title for m in again}


def test_a_gelu_gate_and_a_plain_activation() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(64, 512, bias=False), nn.Linear(64, 512, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(self.gate(x)) * self.up(x)

    graphs = graphs_of(Gate(), torch.randn(2048, 64))
    titles = [m.finding.title for m in matches(graphs) if m.finding.rule == "gated-mlp"]
    assert titles == ["GEGLU gate in separate ops, 1 site"]
    plain = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    graphs = graphs_of(plain, torch.randn(2048, 64))
    assert "gated-mlp" not in {m.finding.rule for m in matches(graphs)}


class Gated(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.gate, self.up = nn.Linear(64, 512, bias=False), nn.Linear(64, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.gate(x)) * self.up(x)


@pytest.mark.parametrize("own", [True, False])
def test_a_rotation_is_of_the_halves_of_its_own_tensor(own: bool) -> None:
    def turn(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *parts: torch.Tensor) -> Any:
        first, second = q.chunk(2, -1) if own else parts
        return q * cos + torch.cat((-second, first), -1) * sin

    angles, half = torch.randn(1024, 64), torch.randn(8, 16, 1024, 32)
    graphs = graphs_of(turn, torch.randn(8, 16, 1024, 64), angles, angles + 1, half, half + 1)
    assert ("rotary-written-out" in {m.finding.rule for m in matches(graphs)}) is own


@pytest.mark.parametrize("bias", [True, False])
def test_an_activation_that_multiplies_its_operand_is_no_gate(bias: bool) -> None:
    class Swish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(64, 512, bias=bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.gate(x)
            return hidden * torch.sigmoid(1.702 * hidden)

    graphs = graphs_of(Swish(), torch.randn(2048, 64))
    assert "gated-mlp" not in {m.finding.rule for m in matches(graphs)}


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (functional.silu, "SwiGLU"),
        (partial(functional.gelu, approximate="tanh"), "GEGLU"),
        (torch.sigmoid, "GLU"),
        (functional.mish, "Activation"),
        (lambda x: 0.5 * torch.tanh(x), "Activation"),
        (lambda x: x * torch.sigmoid(1.702 * x), "Activation"),
        (lambda x: torch.erf(x) * x, "Activation"),
        (lambda x: x / (2 + torch.exp(-x)), "Activation"),
    ],
)
def test_a_gate_is_called_by_its_whole_activation(
    activation: Callable[[torch.Tensor], torch.Tensor], name: str
) -> None:
    graphs = graphs_of(Gated(activation), torch.randn(2048, 64))
    (title,) = [m.finding.title for m in matches(graphs) if m.finding.rule == "gated-mlp"]
    assert title == f"{name} gate in separate ops, 1 site"
