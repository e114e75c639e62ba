"""Small graphs with the right answer written down: what is one group, what stays out and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.model.graph import Graph, node_of
from tests.builders.graph import Sketch


@dataclass(frozen=True)
class Planted:
    """A graph, the groups it must give, and why others stay out."""

    graph: Graph
    groups: tuple[frozenset[str], ...]
    outside: dict[str, str] = field(default_factory=dict)


def planted(graph: Graph, *groups: tuple[str, ...], **outside: str) -> Planted:
    return Planted(
        graph, tuple(frozenset(node_of(v)[0] for v in group) for group in groups), outside
    )


def made(sketch: Sketch, *exclude: str) -> tuple[str, ...]:
    """Every value that is neither input nor view nor excluded."""
    kept = [n.value() for n in sketch.nodes if n.op not in ("opaque", "reshape", "expand")]
    return tuple(value for value in kept if value not in exclude)
