"""A graph in which everything that is only a name is another."""

from __future__ import annotations

import msgspec

from advisor.model.base import Location
from advisor.model.graph import Arg, Graph, is_value, node_of, value_id


def renamed(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Every id, label, target of a known op, module and place replaced; and the new ids."""
    names = {node.id: f"renamed.{len(graph.nodes) - i}" for i, node in enumerate(graph.nodes)}

    def value(text: Arg) -> Arg:
        if not is_value(text):
            return text
        name, output = node_of(str(text))
        return value_id(names[name], output)

    nodes = tuple(
        msgspec.structs.replace(
            node,
            id=names[node.id],
            args=tuple(map(value, node.args)),
            mutates=tuple(str(value(v)) for v in node.mutates),
            alias_of=None if node.alias_of is None else str(value(node.alias_of)),
            target=node.target if node.op == "opaque" else "aten.sabotage.default",
            label="rms_norm",
            origin=None,
            location=Location(module=f"softmax.{i}", file="attention.py", line=i),
        )
        for i, node in enumerate(graph.nodes)
    )
    made = msgspec.structs.replace(
        graph,
        id="renamed",
        nodes=nodes,
        inputs=tuple(names[name] for name in graph.inputs),
        outputs=tuple(str(value(v)) for v in graph.outputs),
    )
    made.check()
    return made, names
