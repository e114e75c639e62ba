"""A case of the captured corpus: a torch function, the groups it must give, what stays out and why.

Nodes are named by what they are: `sum#2` is the second `sum` of the graph, `mm` its only matrix
product. Ids and labels do not enter, so that a graph with other names has the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from advisor.model.base import Phase
from advisor.model.graph import Graph, Node
from advisor.model.optable import spec_of
from analyzers.row_programs import RowPrograms
from collectors.live.fx_graph import Lowered
from tests.builders.captured import captured, captured_training

Inputs = Callable[[], tuple[Any, ...]]
SOFTMAX = "amax sub exp sum div"


@dataclass(frozen=True, eq=False)
class Case:
    """`groups` are the ops of every group, in graph order; `outside` the reason by node.

    `phase` says which graph is meant: the only one of an inference step, or one of a training step,
    whose function is then a module.
    """

    name: str
    function: Callable[..., Any]
    inputs: Inputs
    groups: tuple[str, ...] = ()
    outside: dict[str, str] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    phase: Phase = "inference"

    def __str__(self) -> str:
        return self.name


def case(
    name: str, function: Callable[..., Any], inputs: Inputs, *groups: str, **rest: Any
) -> Case:
    """A case of an inference step unless `phase` says otherwise."""
    return Case(name, function, inputs, groups, **rest)


def tensors(*shapes: tuple[int, ...]) -> Inputs:
    """Random float32 tensors, the same in every run."""

    def made() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)

    return made


ROWS = (16, 32)
X = tensors(ROWS)
XY = tensors(ROWS, ROWS)
XYZ = tensors(ROWS, ROWS, ROWS)


class Model(torch.nn.Module):
    """A function of parameters and inputs, to be trained."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        made = tensors(*shapes)()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(value) for value in made])
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*self.weights, *inputs)


@cache
def lowered(case: Case) -> Lowered:
    """The case's graph, captured once."""
    torch.manual_seed(0)
    record = captured if case.phase == "inference" else captured_training
    graphs = [item.lowered for item in record(case.function, *case.inputs()).graphs]
    return [item for item in graphs if item.graph.phase == case.phase][-1]


def described(graph: Graph) -> dict[str, str]:
    """Node ids by name: `mul`, or `mul#1` and `mul#2` where there are several."""
    words = [(node.id, _word(node)) for node in graph.nodes]
    totals, seen = Counter(word for _, word in words), Counter[str]()
    found: dict[str, str] = {}
    for name, word in words:
        seen[word] += 1
        found[f"{word}#{seen[word]}" if totals[word] > 1 else word] = name
    return found


def _word(node: Node) -> str:
    if spec_of(node.op).kind != "opaque":
        return node.op
    parts = node.target.split(".")
    return parts[1] if len(parts) > 1 else node.target


def answer(found: RowPrograms) -> list[str]:
    """The ops of every group, in graph order."""
    nodes = found.flow.nodes
    return [" ".join(nodes[name].op for name in group.members) for group in found.whole]


def computed_again(found: RowPrograms) -> list[str]:
    """The ops that a group computes although another kernel does, or something else reads them."""
    nodes = found.flow.nodes
    return [nodes[n].op for g in found.whole for n in g.members if n in g.shares.again]
