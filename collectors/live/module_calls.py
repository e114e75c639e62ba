"""Which ops each call of a module made, what it read and what it gave, by the graph Dynamo took.

Dynamo notes on every op the modules whose `forward` it stands in. A call's tensors are what its ops
read of others, parameters and buffers of its own module among them; its results what others read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from collectors.live.fx_builder import clean_module_path

_HELD = re.compile(r"^(?P<owner>.*)\._(?:parameters|buffers)\['(?P<name>[^']+)'\]$")


@dataclass(frozen=True)
class CallTensor:
    """A tensor that crosses the border of a call; `attribute` names one that the module holds."""

    shape: tuple[int, ...]
    dtype: str
    attribute: str | None = None


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: the names of its ops in Dynamo's graph, what goes in and comes out.

    `inner` is a module that it calls in turn; `foreign` a parameter that another module holds.
    """

    path: str
    nodes: frozenset[str]
    reads: tuple[CallTensor, ...]
    results: tuple[CallTensor, ...]
    inner: str | None = None
    foreign: str | None = None

    @property
    def values(self) -> tuple[CallTensor, ...]:
        """What it reads that its module does not hold: its arguments, if nothing else."""
        return tuple(item for item in self.reads if item.attribute is None)


@dataclass
class ModuleCalls:
    """The calls in Dynamo's graphs; `of_node` leads from an op to the innermost call it is in."""

    graphs: int = 0
    of_node: dict[str, ModuleCall] = field(default_factory=dict)

    def look(self, gm: fx.GraphModule) -> None:
        """Take up the calls of a graph; of several graphs none is told, since names repeat."""
        self.graphs += 1
        self.of_node = _calls_of(gm.graph) if self.graphs == 1 else {}


def _calls_of(graph: fx.Graph) -> dict[str, ModuleCall]:
    stacks = {
        node: _stack(node) for node in graph.nodes if node.op not in ("placeholder", "output")
    }
    inside: dict[str, list[fx.Node]] = {}
    for node, stack in stacks.items():
        for key in stack:
            inside.setdefault(key, []).append(node)
    innermost = dict.fromkeys(list(stack)[-1] for stack in stacks.values())
    calls = {key: _call(key, inside[key], stacks) for key in innermost}
    return {node.name: calls[list(stack)[-1]] for node, stack in stacks.items()}


def _stack(node: fx.Node) -> dict[str, Any]:
    """The modules that an op stands in, the model itself first: of that not all graphs tell."""
    told = dict(node.meta.get("nn_module_stack") or {})
    inner = {key: held for key, held in told.items() if clean_module_path(str(held[0]))}
    return {"": ("",), **inner}


def _call(key: str, nodes: list[fx.Node], stacks: dict[fx.Node, dict[str, Any]]) -> ModuleCall:
    members = set(nodes)
    path = clean_module_path(str(stacks[nodes[0]][key][0]))
    outside = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in members)
    foreign: str | None = None
    reads: list[CallTensor] = []
    for node in outside:
        owner, name = _holder(node)
        if owner is not None and owner != path:
            foreign = f"{owner}.{name}"
        found = _tensor(node, name if owner == path else None)
        reads += [found] if found is not None else []
    inner = next((k for node in nodes for k in list(stacks[node])[-1:] if k != key), None)
    told = None if inner is None else _path_of(inner, nodes, stacks)
    given = [node for node in nodes if any(user not in members for user in node.users)]
    results = [found for node in given if (found := _tensor(node, None)) is not None]
    return ModuleCall(
        path, frozenset(node.name for node in nodes), tuple(reads), tuple(results), told, foreign
    )


def _path_of(key: str, nodes: list[fx.Node], stacks: dict[fx.Node, dict[str, Any]]) -> str:
    stack = next(stacks[node] for node in nodes if key in stacks[node])
    return clean_module_path(str(stack[key][0]))


def _holder(node: fx.Node) -> tuple[str | None, str | None]:
    """The module and the name of a parameter or buffer that a placeholder stands for."""
    if node.op != "placeholder":
        return None, None
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", None)  # a method in some releases
    match = _HELD.match(str(name() if callable(name) else name))
    return (None, None) if match is None else (clean_module_path(match["owner"]), match["name"])


def _tensor(node: fx.Node, attribute: str | None) -> CallTensor | None:
    """What a node holds, if that is a tensor of known sizes."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return None
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return CallTensor(shape, str(value.dtype).removeprefix("torch."), attribute)
