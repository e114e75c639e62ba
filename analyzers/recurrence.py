"""Loops that a program wrote out: steps that do the same, each reading what the one before made.

    h[t] = f(h[t-1], x[t], w)      x[t]: parts of tensors along one axis; w: the same in all steps

A capture unrolls such a loop, and a recorded step never had one: both hold a chain of isomorphic
steps. It is found from its parts: nodes that read part t of one tensor in the same way are a column
(`step_columns.py`), from which the rest of the loop follows. Nothing rests on names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analyzers.dataflow import Dataflow
from analyzers.reads import Read, passes, read_of, values_of, walked
from analyzers.step_columns import REGULAR, Allowed, Columns, look

FEWEST_STEPS = 8


@dataclass(frozen=True)
class Recurrence:
    """One loop: `columns` hold a node for each step that has one, by number of the step.

    `carried`: positions of the columns that the state goes through. `sources`: by column and
    position of the operand, which column it reads and how many steps before; `parts`: the value of
    which each step reads the next part; `fixed`: the operands that are the same in all steps.
    """

    columns: tuple[Mapping[int, str], ...]
    carried: frozenset[int]
    sources: Mapping[tuple[int, int], tuple[int, int]]
    parts: Mapping[tuple[int, int], str]
    fixed: frozenset[tuple[int, int]]
    steps: int

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes of the loop."""
        return frozenset(name for column in self.columns for name in column.values())

    @property
    def states(self) -> frozenset[int]:
        """The carried columns that a later step reads."""
        rows = self.sources.items()
        return frozenset(s for (r, _), (s, lag) in rows if lag and {r, s} <= self.carried)

    def readers(self, places: Iterable[int]) -> set[int]:
        """The columns that depend on these, in their own or in later steps, and these."""
        found = set(places)
        while more := {r for (r, _), (s, _) in self.sources.items() if s in found} - found:
            found |= more
        return found

    def sample(self, place: int) -> str:
        """A node that stands for a column."""
        column = self.columns[place]
        return column[max(column)]

    def step(self, number: int) -> tuple[str, ...]:
        """The nodes of one step."""
        return tuple(column[number] for column in self.columns if number in column)


def recurrences(flow: Dataflow, wanted: Allowed, product: Allowed) -> tuple[Recurrence, ...]:
    """All written-out loops over `wanted` ops and matrix `product`s, in graph order."""
    found: list[Recurrence] = []
    taken: set[str] = set()
    for seed in _seeds(flow, wanted, product):
        if not taken & set(seed):
            loop = _loop(flow, wanted, product, seed)
            if loop is not None and not taken & loop.nodes:
                found.append(loop)
                taken |= loop.nodes
    return tuple(found)


def _loop(flow: Dataflow, wanted: Allowed, product: Allowed, seed: list[str]) -> Recurrence | None:
    """The loop of a seed, whichever way it runs along the axis."""
    for order in (seed, seed[::-1]):
        clock = _clock(flow, wanted, product, dict(enumerate(order)))
        if clock is not None:
            return _grown(Columns(flow, wanted, product, clock))
    if flow.graph.source == "inferred":
        return _grown(Columns(flow, wanted, product, dict(enumerate(seed)), linked=False))
    return None


def _clock(
    flow: Dataflow, wanted: Allowed, product: Allowed, column: dict[int, str]
) -> dict[int, str] | None:
    """The first column at or behind the seed that depends on itself a step before."""
    columns = Columns(flow, wanted, product, column)
    for _ in range(FEWEST_STEPS):
        if columns.repeats(column):
            return column
        behind = columns.readers(column)
        if not behind:
            return None
        column = min(behind, key=lambda found: flow.index[found[REGULAR]])
    return None


def _grown(columns: Columns) -> Recurrence | None:
    """The whole loop of a column of it, with the state as what numbers its steps."""
    found = _finished(columns) if columns.grow(readers=False) else None
    if found is None:
        return None
    clock = columns.clock
    if columns.linked:
        # What is read most, by the next step and by what comes of the loop, is its state.
        place = max(found.carried, key=lambda place: columns.readings(found.columns[place]))
        clock = dict(found.columns[place])
    whole = Columns(columns.flow, columns.wanted, columns.product, clock, linked=columns.linked)
    return _finished(whole) if whole.grow(readers=True) else None


def _finished(columns: Columns) -> Recurrence | None:
    carried = columns.carried()
    if not carried or not columns.parts or columns.reads_further_back():
        return None
    steps = max(len(columns.held[place]) for place in carried)
    if steps < FEWEST_STEPS:
        return None
    return Recurrence(
        columns=tuple(columns.held),
        carried=carried,
        sources=columns.sources,
        parts=columns.parts,
        fixed=frozenset(columns.fixed),
        steps=steps,
    )


# --- where a loop shows: alike readers of consecutive parts ---------------------------------------


def _seeds(flow: Dataflow, wanted: Allowed, product: Allowed) -> list[list[str]]:
    """Alike nodes that read consecutive parts of one tensor, in the order of the parts.

    Where parts are at unknown places, in the order of the graph.
    """
    groups: dict[object, list[tuple[Read, str]]] = {}
    for name in flow.index:
        node = flow.nodes[name]
        if not passes(node) and (wanted(node) or product(node)):
            for position, value in values_of(node):
                read = read_of(flow, value)
                if read.cuts:
                    key = (read.root, read.way, look(node), position)
                    groups.setdefault(key, []).append((read, name))
    certain = flow.graph.source != "inferred"
    seeds = [
        found
        for group in groups.values()
        if len(group) >= FEWEST_STEPS
        for found in _walks(group, certain=certain)
    ]
    return sorted(seeds, key=lambda names: min(flow.index[name] for name in names))


def _walks(group: Sequence[tuple[Read, str]], *, certain: bool) -> Iterator[list[str]]:
    """The reads of a group that go along one axis: one list for each place of the other cuts."""
    for moving in range(len(group[0][0].cuts)):
        lists: dict[object, list[tuple[Read, str]]] = {}
        for read, name in group:
            rest = (read.cuts[:moving], read.cuts[moving + 1 :])
            lists.setdefault(rest, []).append((read, name))
        for found in lists.values():
            found.sort(key=lambda item: item[0].cuts[moving] or (0, 0))
            for ranked in _ranked(found, moving):
                reads = [read for read, _ in ranked]
                if len(ranked) >= FEWEST_STEPS and walked(reads, certain=certain):
                    yield [name for _, name in ranked]


def _ranked(found: list[tuple[Read, str]], moving: int) -> list[list[tuple[Read, str]]]:
    """Reads of one part by several alike ops, each as a list of its own: the n-th of every part."""
    ranks: list[list[tuple[Read, str]]] = []
    seen: dict[object, int] = {}
    for read, name in found:
        cut = read.cuts[moving]
        rank = 0 if cut is None else seen.get(cut, 0)
        seen[cut] = rank + 1
        if rank == len(ranks):
            ranks.append([])
        ranks[rank].append((read, name))
    return ranks
