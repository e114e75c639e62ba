"""Nodes that are alike in every step of a written-out loop, found by comparing all steps at once.

A column holds a node for each step. What its nodes read must be, in all steps: the same number, the
same value, the next part of one tensor, or a column again, of this step or of the one before. A
node belongs to the step whose state needs it first. The first steps may differ from the rest:
zeros are folded into them, or a state is not there yet.

In a graph that was inferred from a trace, who reads the state of the step before is not known
across library calls (`linked` is false then): an operand of unknown origin that looks like the
state stands for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from advisor.model.graph import Node, TensorMeta, is_value
from analyzers.dataflow import Dataflow
from analyzers.reads import Read, passes, read_of, values_of, walked

# The step from which all must be alike; the most columns of one loop; how far back a step may read
# before it is known whether these are two states that read each other.
REGULAR = 3
_MOST_COLUMNS = 64
_FURTHEST = 2

Allowed = Callable[[Node], bool]


def look(node: Node) -> object:
    """What makes nodes of two steps the same op, whatever they read."""
    return (
        node.op,
        node.target if node.op == "opaque" else "",
        len(node.args),
        tuple(sorted(node.attributes.items(), key=lambda item: item[0])),
        tuple((m.dtype, m.shape, m.strides) for m in node.outputs),
    )


@dataclass
class Columns:
    """The columns of one loop under construction; `clock` is the one that numbers the steps.

    `at` says where a node is, `sources` by column and operand which column is read and how many
    steps before, `parts` which tensor is read part by part, `fixed` the operands that are the same
    value in every step, `unknown` those that come from outside one by one.
    """

    flow: Dataflow
    wanted: Allowed
    product: Allowed
    clock: dict[int, str]
    linked: bool = True
    held: list[dict[int, str]] = field(default_factory=list)
    at: dict[str, tuple[int, int]] = field(default_factory=dict)
    sources: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    unknown: dict[tuple[int, int], TensorMeta] = field(default_factory=dict)
    parts: dict[tuple[int, int], str] = field(default_factory=dict)
    fixed: set[tuple[int, int]] = field(default_factory=set)

    def grow(self, *, readers: bool) -> bool:
        """All that the clock needs and, if `readers`, what every step does with its state."""
        if not self._admit(dict(self.clock)):
            return False
        if readers:
            self._follow_readers()
        self._extend()
        return True

    # --- what a column is -------------------------------------------------------------------------

    def repeats(self, column: Mapping[int, str]) -> bool:
        """Whether every node of a column depends on the one of the step before."""
        pairs = [(column[k - 1], column[k]) for k in column if k > REGULAR and k - 1 in column]
        return bool(pairs) and all(self._needs(then, first) for first, then in pairs)

    def _needs(self, later: str, earlier: str) -> bool:
        """Whether one node waits for another, or is it."""
        same = later == earlier
        return same or bool(self.flow.ancestors[later] >> self.flow.index[earlier] & 1)

    def _regular(self, place: int) -> list[tuple[int, str]]:
        """The steps in which a column must be like itself."""
        return [(k, name) for k, name in sorted(self.held[place].items()) if k >= REGULAR]

    def _sample(self, place: int) -> Node:
        return self.flow.nodes[self._regular(place)[0][1]]

    def _may_join(self, node: Node) -> bool:
        return len(node.outputs) == 1 and (self.wanted(node) or self.product(node))

    def _admit(self, column: dict[int, str]) -> bool:
        """Add a column and all that it needs; nothing if it is not the same in every step."""
        mark = len(self.held)
        pending = [self._add(column)]
        while pending:
            place = pending.pop()
            for position in range(len(self._sample(place).args)):
                more = self._operand(place, position)
                if more is None or len(self.held) > _MOST_COLUMNS:
                    self._roll_back(mark)
                    return False
                pending += more
        return True

    def _add(self, column: dict[int, str]) -> int:
        place = len(self.held)
        self.held.append(column)
        self.at.update({name: (place, k) for k, name in column.items()})
        return place

    def _roll_back(self, mark: int) -> None:
        for column in self.held[mark:]:
            for name in column.values():
                self.at.pop(name, None)
        del self.held[mark:]
        self.sources = {key: found for key, found in self.sources.items() if key[0] < mark}
        self.unknown = {key: meta for key, meta in self.unknown.items() if key[0] < mark}
        self.parts = {key: part for key, part in self.parts.items() if key[0] < mark}
        self.fixed = {key for key in self.fixed if key[0] < mark}

    # --- operands ---------------------------------------------------------------------------------

    def _operand(self, place: int, position: int) -> list[int] | None:
        """New columns behind an operand; None if it is not the same in every step."""
        steps = self._regular(place)
        given = [self.flow.nodes[name].args[position] for _, name in steps]
        if not all(isinstance(v, str) and is_value(v) for v in given):
            return [] if len(set(map(repr, given))) == 1 else None
        reads = [read_of(self.flow, str(value)) for value in given]
        if len({read.way for read in reads}) > 1 or len({len(r.cuts) for r in reads}) > 1:
            return None
        if len({read.root for read in reads}) == 1:
            return self._one_root(place, position, reads)
        if len({read.cuts for read in reads}) > 1:
            return None
        return self._many_roots(place, position, [k for k, _ in steps], reads)

    def _one_root(self, place: int, position: int, reads: Sequence[Read]) -> list[int] | None:
        if len({read.cuts for read in reads}) == 1 and None not in reads[0].cuts:
            self.fixed.add((place, position))
            return []
        if not walked(reads, certain=self.flow.graph.source != "inferred"):
            return None
        self.parts[place, position] = reads[0].root
        return []

    def _many_roots(
        self, place: int, position: int, steps: Sequence[int], reads: Sequence[Read]
    ) -> list[int] | None:
        names = [read.producer for read in reads]
        nodes = [self.flow.nodes[name] for name in names]
        if len({look(node) for node in nodes}) > 1 or len(set(names)) < len(names):
            return None
        if self._is_given(nodes):
            self.unknown[place, position] = nodes[0].outputs[0]
            return []
        if not self._may_join(nodes[0]):
            return None
        known = [(k, *self.at[n]) for k, n in zip(steps, names, strict=True) if n in self.at]
        links = {(at, k - step) for k, at, step in known} or self._lags(steps, names)
        if len(links) != 1:
            return None
        source, lag = links.pop()
        if not 0 <= lag <= _FURTHEST:
            return None
        self.sources[place, position] = source, lag
        return [] if known else [self._add(self._read(place, position, lag))]

    def _is_given(self, nodes: Sequence[Node]) -> bool:
        """Inputs of the graph, one for each step: what a step of the forward pass saved, say."""
        inputs = self.flow.graph.inputs
        known = self.linked and self.flow.graph.phase != "backward"
        return not known and all(node.id in inputs for node in nodes)

    def _lags(self, steps: Sequence[int], names: Sequence[str]) -> set[tuple[int, int]]:
        """(the next free place, how many steps before its reader a node belongs to) of each."""
        place = len(self.held)
        rows = [(k, self._step_of(n)) for k, n in zip(steps, names, strict=True) if k > REGULAR]
        return {(place, 0 if step is None else k - step) for k, step in rows}

    def _step_of(self, name: str) -> int | None:
        """The step whose state needs a node first; None if none does."""
        if not self.linked:
            return None
        order = sorted(self.clock)
        at = bisect_left(order, True, key=lambda k: self._needs(self.clock[k], name))
        return order[at] if at < len(order) else None

    def _read(self, place: int, position: int, lag: int) -> dict[int, str]:
        """What a column reads at a position, in the first steps too where it is the same op."""
        found: dict[int, str] = {}
        for k, name in sorted(self.held[place].items(), reverse=True):
            source = self._producer(name, position)
            like = next(iter(found.values()), source)
            if source is not None and like is not None and source not in self.at:
                alike = look(self.flow.nodes[source]) == look(self.flow.nodes[like])
                if alike and source not in found.values():
                    found[k - lag] = source
        return found

    def _producer(self, name: str, position: int) -> str | None:
        """The computing node behind an operand, None where that is a number."""
        args = self.flow.nodes[name].args[position : position + 1]
        value = args[0] if args else None
        if isinstance(value, str) and is_value(value):
            return read_of(self.flow, value).producer
        return None

    # --- readers ----------------------------------------------------------------------------------

    def _follow_readers(self) -> None:
        """Add what every step does with its state: more of the loop, and what it reads out."""
        place = 0
        while place < len(self.held):
            if self._has_state(place):
                for column in self.readers(self.held[place]):
                    fresh = not any(name in self.at for name in column.values())
                    if fresh and len(self.held) < _MOST_COLUMNS:
                        self._admit(column)
            place += 1

    def _has_state(self, place: int) -> bool:
        """Whether a column depends on the state; the readers of what only feeds it matter not."""
        first = self.clock[min(self.clock)]
        return not self.linked or all(self._needs(name, first) for _, name in self._regular(place))

    def readers(self, column: Mapping[int, str]) -> list[dict[int, str]]:
        """Columns of alike nodes that read a column: in every regular step but perhaps the last."""
        groups: dict[object, dict[int, list[str]]] = {}
        for k, name in column.items():
            for consumer, position, read in self._uses(name):
                key = (look(self.flow.nodes[consumer]), position, read.way, read.cuts)
                groups.setdefault(key, {}).setdefault(k, []).append(consumer)
        needed = {k for k in column if REGULAR <= k < max(column)}
        found = []
        for rows in groups.values():
            for rank in range(min(map(len, rows.values()))):
                own = {k: names[rank] for k, names in rows.items()}
                if needed <= set(own) and len(set(own.values())) == len(own):
                    found.append(own)
        return found

    def _uses(self, name: str) -> Iterable[tuple[str, int, Read]]:
        """(reader, position of the operand, how it is read) for all that may read it in a step."""
        for consumer in self._consumers(name):
            node = self.flow.nodes[consumer]
            if self._may_join(node):
                for position, value in values_of(node):
                    read = read_of(self.flow, value)
                    if read.producer == name:
                        yield consumer, position, read

    def _consumers(self, name: str) -> list[str]:
        """The computing nodes that read a node's results, through views of any kind."""
        pending, found = [name], dict[str, None]()
        while pending:
            node = self.flow.nodes[pending.pop()]
            for output in range(max(len(node.outputs), 1)):
                for use in self.flow.uses.get(node.value(output), ()):
                    consumer = self.flow.nodes[use.consumer]
                    if passes(consumer):
                        pending.append(consumer.id)
                    else:
                        found[consumer.id] = None
        return list(found)

    # --- steps at both ends -----------------------------------------------------------------------

    def _extend(self) -> None:
        """Add the nodes of steps at the ends that were reached from one side only."""
        changed = True
        while changed:
            changed = False
            for (reader, position), (source, lag) in self.sources.items():
                for k, name in list(self.held[reader].items()):
                    found = self._producer(name, position)
                    if k - lag not in self.held[source] and found is not None:
                        changed |= self._put(source, k - lag, found)
                for k, name in list(self.held[source].items()):
                    if k + lag not in self.held[reader] and k >= REGULAR:
                        changed |= any(
                            self._reads_alike(reader, k + lag, found)
                            and self._put(reader, k + lag, found)
                            for found, at, _ in self._uses(name)
                            if at == position
                        )

    def _put(self, place: int, k: int, name: str) -> bool:
        alike = look(self.flow.nodes[name]) == look(self._sample(place))
        if not alike or name in self.at or k in self.held[place]:
            return False
        self.held[place][k] = name
        self.at[name] = (place, k)
        return True

    def _reads_alike(self, place: int, k: int, name: str) -> bool:
        """Whether a node reads in step `k` what the nodes of a column read in the others."""
        model, node = self._sample(place), self.flow.nodes[name]
        if look(model) != look(node):
            return False
        for position, (mine, theirs) in enumerate(zip(node.args, model.args, strict=True)):
            if (place, position) in self.sources:
                source, lag = self.sources[place, position]
                held = self.held[source].get(k - lag)
                if held is not None and held != self._producer(name, position):
                    return False
            elif not (isinstance(mine, str) and is_value(mine)):
                if mine != theirs:
                    return False
            elif not (isinstance(theirs, str) and is_value(theirs)):
                return False
            else:
                own, other = read_of(self.flow, mine), read_of(self.flow, theirs)
                elsewhere = own.root != other.root and (place, position) not in self.unknown
                if own.way != other.way or elsewhere:
                    return False
        return True

    # --- the state --------------------------------------------------------------------------------

    def carried(self) -> frozenset[int]:
        """The columns that depend on themselves a step before."""
        if not self.linked:
            return self._carried_by_looks()
        return frozenset(at for at, column in enumerate(self.held) if self.repeats(column))

    def _carried_by_looks(self) -> frozenset[int]:
        """Columns between an operand that looks like the state and the last value like it."""
        for (reader, position), meta in self.unknown.items():
            behind = self._reached(reader)
            alike = [place for place in behind if self._sample(place).outputs[0] == meta]
            if alike:
                state = max(alike, key=lambda place: self.flow.index[self._sample(place).id])
                self.sources[reader, position] = state, 1
                return frozenset(place for place in behind if state in self._reached(place))
        return frozenset()

    def _reached(self, place: int) -> set[int]:
        """The columns that depend on one within a step, itself included."""
        found, pending = {place}, [place]
        while pending:
            at = pending.pop()
            more = {r for (r, _), (s, lag) in self.sources.items() if s == at and not lag} - found
            found |= more
            pending += more
        return found

    def readings(self, column: Mapping[int, str]) -> tuple[int, int]:
        """(how many nodes read a column's values, where it stands in the graph)."""
        used = sum(len(self._consumers(name)) for name in column.values())
        return used, self.flow.index[column[max(column)]]

    def reads_further_back(self) -> bool:
        """Whether a step needs the state of two steps before, and not through a second state.

        Two states that read each other look alike: each then repeats without the other.
        """
        edges: dict[tuple[int, int], int] = {}
        for (reader, _), (source, lag) in self.sources.items():
            edges[source, reader] = max(lag, edges.get((source, reader), 0))
        return any(_longest(state, edges) > 1 for state in range(len(self.held)))


def _longest(state: int, edges: Mapping[tuple[int, int], int]) -> int:
    """The most steps on a way from a column to itself past columns that repeat without it."""
    rest = {pair: lag for pair, lag in edges.items() if state not in pair}
    alone = {at for at in {at for pair in rest for at in pair} if _cycles(at, rest)}
    best: dict[int, int] = {state: 0}
    pending = [state]
    longest = 0
    while pending:
        at = pending.pop()
        for (source, reader), lag in edges.items():
            if source == at and reader not in alone:
                far = best[at] + lag
                if reader == state:
                    longest = max(longest, far)
                elif far > best.get(reader, -1):
                    best[reader] = far
                    pending.append(reader)
    return longest


def _cycles(start: int, edges: Mapping[tuple[int, int], int]) -> bool:
    """Whether a way leads from a column back to it."""
    seen: set[int] = set()
    pending = [start]
    while pending:
        at = pending.pop()
        for source, reader in edges:
            if source == at and reader not in seen:
                if reader == start:
                    return True
                seen.add(reader)
                pending.append(reader)
    return False
