"""Where a graph computes a softmax: as a leaf of the trace, or as exp(x − max) / sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from advisor.model.graph import Node
from analyzers.library_ops import SOFTMAXES
from analyzers.rules.walk import calls, operands, producer
from analyzers.subject import GraphFacts


@dataclass(frozen=True)
class Softmax:
    """The nodes that compute it, the last of them, and the computing node behind its operand."""

    nodes: tuple[str, ...]
    last: str
    source: Node


def softmaxes(facts: GraphFacts) -> Iterator[Softmax]:
    """All softmaxes of a graph, in order."""
    for node in facts.graph.nodes:
        if calls(node, SOFTMAXES) and node.value_args:
            yield Softmax((node.id,), node.id, producer(facts, node.value_args[0]))
        elif node.op == "div":
            found = _decomposed(facts, node)
            if found is not None:
                yield found


def _decomposed(facts: GraphFacts, node: Node) -> Softmax | None:
    """exp(x − amax(x)) / sum(exp(x − amax(x))), ending in this division."""
    parts = list(operands(facts, node))
    if len(parts) != 2 or parts[0].op != "exp" or parts[1].op != "sum":
        return None
    exponent, total = parts
    if producer(facts, total.value_args[0]).id != exponent.id:
        return None
    shifted = producer(facts, exponent.value_args[0])
    if shifted.op != "sub" or len(shifted.value_args) != 2:
        return None
    source, maximum = operands(facts, shifted)
    if maximum.op != "amax":
        return None
    chain = (maximum.id, shifted.id, exponent.id, total.id, node.id)
    return Softmax(chain, node.id, source)
