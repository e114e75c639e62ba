"""Who feeds whom: a graph's computing nodes with views collapsed, and reachability as bit sets.

Views cost nothing on a GPU, so they are edges here, not nodes: a chain of `reshape` and `expand`
between two computing nodes is remembered as the path by which one reads the other. A write to a
storage is ordered after every earlier read of that storage and before every later one, and a
synchronisation of streams after everything before it and before everything after it, so convexity
alone keeps them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from advisor.errors import IllegalFusionError
from advisor.model.graph import Graph, Node, TensorMeta, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import Dim, Size, product


@dataclass(frozen=True)
class Use:
    """`consumer` reads the value through `views` (view node ids, nearest to the consumer last)."""

    consumer: str
    views: tuple[str, ...]


class Closed(Mapping[str, int]):
    """What nodes reach once groups are single steps; worked out for the nodes that are asked for.

    The latest group is `own`; whoever is in `touched` reaches it, and with it all of `beyond`. A
    group that another one reaches whole is reached with it, and need not be looked at.
    """

    def __init__(
        self,
        before: Mapping[str, int],
        index: Mapping[str, int],
        touched: int,
        own: int,
        beyond: int,
    ) -> None:
        self._index, self._touched, self._own, self._reached = index, touched, own, own | beyond
        earlier = before if isinstance(before, Closed) else None
        self._before = earlier
        self._base: Mapping[str, int] = before if earlier is None else earlier._base
        self._ever: int = touched if earlier is None else touched | earlier._ever
        while earlier is not None and not earlier._own & ~self._reached:
            earlier = earlier._apart
        self._apart: Closed | None = earlier
        self._known: dict[str, int] = {}
        if self._before is not None:
            self._before._known.clear()  # large, and seldom asked again

    def __getitem__(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = self._closed(name)
        return self._known[name]

    def _closed(self, name: str) -> int:
        bit = 1 << self._index[name]
        found = self._base[name]
        step: Closed | None = self if self._ever & bit else None
        while step is not None:
            if step._touched & bit:
                found |= step._reached
                step = step._apart
            else:
                step = step._before
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


@dataclass(frozen=True)
class Dataflow:
    """Reachability and uses over the non-view nodes; masks have a bit per node in graph order.

    `written` are the values, behind all aliases, whose storage some node writes to; `communication`
    is the mask of the nodes that wait for other GPUs.
    """

    graph: Graph
    nodes: dict[str, Node]
    index: dict[str, int]
    ancestors: Mapping[str, int]
    descendants: Mapping[str, int]
    uses: dict[str, tuple[Use, ...]]
    escapes_graph: frozenset[str]
    written: frozenset[str] = frozenset()
    communication: int = 0

    def meta(self, value: str) -> TensorMeta | None:
        """Shape, strides and dtype of a value, or None if it is not a tensor."""
        name, output = node_of(value)
        outputs = self.nodes[name].outputs
        return outputs[output] if output < len(outputs) else None

    def need_meta(self, value: str) -> TensorMeta:
        """`meta` of a tensor; raises `IllegalFusionError` for any other value."""
        meta = self.meta(value)
        if meta is None:
            raise IllegalFusionError("an operand is not a tensor")
        return meta

    def base(self, value: str) -> str:
        """The value behind a chain of views."""
        while True:
            node = self.nodes[node_of(value)[0]]
            if spec_of(node.op).kind != "view":
                return value
            value = str(node.args[0])

    def storage(self, value: str) -> str:
        """The value that owns the memory behind a value, through views and aliases."""
        while True:
            node = self.nodes[node_of(value)[0]]
            if spec_of(node.op).kind == "view":
                value = str(node.args[0])
            elif node.alias_of is not None:
                value = node.alias_of
            else:
                return value

    def hint(self, size: Size, *, unknown: int | None = None) -> int:
        """What a size was when the graph was captured; `unknown` stands for a symbol without hint.

        Raises `IllegalFusionError` for such a symbol if nothing stands for it.
        """
        total = size.coefficient
        for symbol in size.symbols:
            value = self.graph.size_hints.get(symbol, unknown)
            if value is None:
                raise IllegalFusionError(f"size {symbol} is unknown")
            total *= value
        return total

    def elements(self, shape: tuple[Dim, ...]) -> int:
        """How many elements a tensor had; a size that nobody knows counts as 1."""
        return self.hint(product(shape), unknown=1)

    def mask(self, members: frozenset[str]) -> int:
        """The bit set of some nodes."""
        total = 0
        for name in members:
            total |= 1 << self.index[name]
        return total

    def between(self, members: frozenset[str]) -> frozenset[str]:
        """Nodes outside `members` on a path between two of them: none if the group is convex."""
        above, below = self._around(members)
        inside = below & above & ~self.mask(members)
        if not inside:
            return frozenset()
        return frozenset(self.named(inside))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The nodes by their bits."""
        return tuple(self.index)

    def named(self, mask: int) -> Iterator[str]:
        """The nodes of a bit set, in graph order."""
        while mask:
            lowest = mask & -mask
            yield self.order[lowest.bit_length() - 1]
            mask ^= lowest

    def contracted(self, members: frozenset[str]) -> Dataflow:
        """The same with a convex group as one step: it waits for, and is waited for, as a whole.

        Groups that are convex alone may still wait for each other, each for a value of the other.
        """
        above, below = self._around(members)
        own = self.mask(members)
        return replace(
            self,
            ancestors=Closed(self.ancestors, self.index, below | own, own, above),
            descendants=Closed(self.descendants, self.index, above | own, own, below),
        )

    def _around(self, members: frozenset[str]) -> tuple[int, int]:
        """What any member waits for, and what waits for any member."""
        above = below = 0
        for name in members:
            above |= self.ancestors[name]
            below |= self.descendants[name]
        return above, below


def dataflow(graph: Graph) -> Dataflow:
    """Analyse a checked graph once; everything later is a lookup."""
    nodes = graph.by_id()
    compute = [n for n in graph.nodes if spec_of(n.op).kind != "view"]
    index = {node.id: bit for bit, node in enumerate(compute)}
    view_path: dict[str, tuple[str, tuple[str, ...]]] = {}
    uses: dict[str, list[Use]] = {}
    parents: dict[str, set[str]] = {node.id: set() for node in compute}

    def resolve(value: str) -> tuple[str, tuple[str, ...]]:
        return view_path.get(value, (value, ()))

    for node in graph.nodes:
        if spec_of(node.op).kind == "view":
            base, path = resolve(str(node.args[0]))
            view_path[node.value()] = (base, (*path, node.id))
            continue
        for value in dict.fromkeys(node.value_args):
            base, path = resolve(value)
            uses.setdefault(base, []).append(Use(node.id, path))
            parents[node.id].add(node_of(base)[0])
    _order_writes(graph, nodes, parents, resolve_base=lambda v: resolve(v)[0])
    _order_streams(compute, parents)
    ancestors, descendants = _reach(compute, index, parents)
    found = Dataflow(
        graph=graph,
        nodes=nodes,
        index=index,
        ancestors=ancestors,
        descendants=descendants,
        uses={value: tuple(found) for value, found in uses.items()},
        escapes_graph=frozenset(resolve(value)[0] for value in graph.outputs),
    )
    waits = frozenset(node.id for node in compute if node.boundary == "communication")
    written = frozenset(found.storage(value) for node in graph.nodes for value in node.mutates)
    return replace(found, written=written, communication=found.mask(waits))


def _order_writes(
    graph: Graph,
    nodes: dict[str, Node],
    parents: dict[str, set[str]],
    resolve_base: Callable[[str], str],
) -> None:
    """Add read-before-write and write-before-read edges between nodes that touch one storage."""

    def storage(value: str) -> str:
        while True:
            value = resolve_base(value)
            alias = nodes[node_of(value)[0]].alias_of
            if alias is None:
                return value
            value = alias

    last_write: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.id not in parents:
            continue
        touched = {storage(value) for value in node.value_args}
        written = {storage(value) for value in node.mutates}
        for root in touched | written:
            if root in last_write:
                parents[node.id].add(last_write[root])
        for root in written:
            parents[node.id].update(readers.pop(root, []))
            last_write[root] = node.id
        for root in touched - written:
            readers.setdefault(root, []).append(node.id)
        parents[node.id].discard(node.id)


def _order_streams(compute: list[Node], parents: dict[str, set[str]]) -> None:
    """Nothing passes a synchronisation of streams: what it orders is in no tensor."""
    barrier: str | None = None
    since: set[str] = set()
    for node in compute:
        if barrier is not None:
            parents[node.id].add(barrier)
        if node.boundary == "stream":
            parents[node.id] |= since
            barrier, since = node.id, set()
        else:
            since.add(node.id)


def _reach(
    compute: list[Node], index: dict[str, int], parents: dict[str, set[str]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Transitive ancestors and descendants of every node (nodes are in topological order)."""
    ancestors: dict[str, int] = {}
    descendants = {node.id: 0 for node in compute}
    for node in compute:
        mask = 0
        for parent in parents[node.id]:
            mask |= ancestors[parent] | 1 << index[parent]
        ancestors[node.id] = mask
    for node in reversed(compute):
        below = descendants[node.id] | 1 << index[node.id]
        for parent in parents[node.id]:
            descendants[parent] |= below
    return ancestors, descendants
