"""Who reads which version of a tensor: a Dynamo graph still has writes in place and views.

`scores.masked_fill_(mask, -inf)` changes what later readers of `scores` see, whether they name the
tensor by the old node or by the new one. `Flow` gives each reader the version that it sees.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable

import torch
from torch import fx

from advisor.apply.graph.spelling import written

# Results may share memory with the first argument. Fresh copies in this list cost nothing: a write
# to them is then held against a site that it would not have hurt.
_VIEWS_NAMES = (
    "view reshape flatten unflatten unsqueeze squeeze view_as reshape_as transpose swapaxes "
    "swapdims permute t movedim moveaxis expand expand_as broadcast_to narrow select split chunk "
    "unbind tensor_split hsplit vsplit contiguous detach to type float half bfloat16 double "
    "type_as diagonal as_strided unfold adjoint getitem getattr real imag view_as_real "
    "view_as_complex rearrange squeeze_ unsqueeze_ transpose_ __getitem__"
)
_VIEWS = frozenset(_VIEWS_NAMES.split())


class Flow:
    """Positions, versions and memory of the values of one graph, as it is now."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position: dict[fx.Node, int] = {}
        self._root: dict[fx.Node, fx.Node] = {}
        self._identity: dict[fx.Node, fx.Node] = {}
        self._versions: dict[fx.Node, list[fx.Node]] = {}
        self.writes: list[tuple[fx.Node, fx.Node]] = []
        for place, node in enumerate(graph.nodes):
            self.position[node] = place
            self._place(node)

    def _place(self, node: fx.Node) -> None:
        changed = written(node)
        for target in changed:
            self.writes.append((node, target))
        if len(changed) == 1 and _returns_its_target(node):
            target = changed[0]
            self._identity[node] = self._identity[target]
            self._root[node] = self._root[target]
            self._versions[self._identity[target]].append(node)
            return
        self._identity[node] = node
        self._versions[node] = [node]
        source = node.all_input_nodes[0] if node.all_input_nodes and _is_view(node) else None
        self._root[node] = self._root[source] if source is not None else node

    def now(self, value: fx.Node, reader: fx.Node) -> fx.Node:
        """The node whose result `reader` sees in the tensor `value`."""
        versions = self._versions[self._identity[value]]
        places = [self.position[node] for node in versions]
        return versions[bisect.bisect_left(places, self.position[reader]) - 1]

    def readers(self, value: fx.Node) -> list[fx.Node]:
        """Every node that reads this version, a write over it included."""
        found = {
            user: None
            for version in self._versions[self._identity[value]]
            for user in version.users
            if self.now(version, user) is value
        }
        return sorted(found, key=self.position.__getitem__)

    def versions(self, value: fx.Node) -> list[fx.Node]:
        """All versions of one tensor, oldest first."""
        return self._versions[self._identity[value]]

    def root(self, value: fx.Node) -> fx.Node:
        """The value whose memory this one may share."""
        return self._root[value]

    def write_to(
        self, values: Iterable[fx.Node], first: int, last: int, known: frozenset[fx.Node]
    ) -> fx.Node | None:
        """A write to the memory of one of the values at a place in (first, last), none `known`."""
        roots = {self._root[value] for value in values}
        for writer, target in self.writes:
            inside = first < self.position[writer] < last
            if inside and writer not in known and self._root[target] in roots:
                return writer
        return None


def _returns_its_target(node: fx.Node) -> bool:
    if node.target is operator.setitem or "mutation" in getattr(node.target, "__name__", ""):
        return False
    return node.op in ("call_method", "call_function")


def _is_view(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target) in _VIEWS
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return any(a.alias_info is not None for a in node.target._schema.arguments)
    return getattr(node.target, "__name__", "") in _VIEWS
