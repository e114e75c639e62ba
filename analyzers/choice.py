"""Which groups are taken where several want the same ops: the set that is worth most together.

Every reduction that no earlier group holds grows a group as if it were alone. Groups that share no
op are all taken. Then pointwise ops that read across the order in which they write grow groups of
what is left, and so do random numbers: a dropout with its residual. Where they overlap, whoever
grows first keeps the shared ops and the others grow around it, so a set is an order of seeds: up to
`MAX_ORDERED` overlapping seeds every order is tried, which is exact; beyond that two are, by place
in the graph and by worth. The best set wins, the first of equals. What a set is worth is the
caller's to say; by default it is traffic. A set is judged as a whole: an op of the user's program
that two groups split between them goes away once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from advisor.model.optable import RANDOM, item_bytes, spec_of
from advisor.model.sizes import ONE, Size
from analyzers.dataflow import Dataflow
from analyzers.growth import Group, NearMiss, grow
from analyzers.iteration_space import reads_all_axes
from analyzers.program_cost import nodes_bytes
from analyzers.strides import BoundInput
from analyzers.turned import reads_across

Worth = Callable[[Dataflow, Sequence[Group]], float]
MAX_ORDERED = 4
# A kernel that is not launched is worth the bytes that a GPU moves in the floor of a launch: about
# 2 us at 2 TB/s.
LAUNCH_BYTES = 4 << 20
CLAIMED = "already part of another group"


@dataclass(frozen=True)
class Chosen:
    """The groups taken, in graph order of their seeds; `others` those of the sets not taken."""

    groups: tuple[Group, ...]
    others: tuple[Group, ...]
    misses: tuple[NearMiss, ...]


@dataclass(frozen=True)
class Candidate:
    """A group grown as if it were alone, and what stays out of it."""

    group: Group
    misses: tuple[NearMiss, ...]


@dataclass(frozen=True)
class Chains:
    """Groups of ops none of which reduces, and what stays out of them."""

    groups: tuple[Group, ...]
    misses: tuple[NearMiss, ...]


def traffic_saved(flow: Dataflow, groups: Sequence[Group]) -> float:
    """Bytes that need not be moved, launches counted as bytes: every node a kernel of its own.

    The same on every GPU, and under every name.
    """
    own = [name for group in groups for name in group.own]
    before = sum(nodes_bytes(flow, {name}) for name in own)
    after = sum(group_bytes(flow, group) for group in groups)
    return before - after + LAUNCH_BYTES * (len(own) - len(groups))


def group_bytes(flow: Dataflow, group: Group) -> int:
    """What one kernel reads and writes, each tensor once."""
    written = (flow.need_meta(value) for value in group.space.outputs)
    total = sum(flow.elements(meta.shape) * item_bytes(meta.dtype) for meta in written)
    read = dict.fromkeys(group.space.operands.values())
    return total + sum(input_bytes(flow, group, bound) for bound in read)


def input_bytes(flow: Dataflow, group: Group, bound: BoundInput) -> int:
    """Bytes of an input along the axes that it varies along."""
    size: Size = ONE
    for axis, stride in zip(group.space.axes, bound.strides, strict=True):
        size = size if stride is None else size.times(axis)
    return flow.hint(size, unknown=1) * item_bytes(flow.need_meta(bound.value).dtype)


def choose(flow: Dataflow, worth: Worth) -> Chosen:
    """All groups of a graph with two ops or more."""
    candidates, misses = _candidates(flow)
    joint, claimed = flow, dict[str, str]()
    taken: list[Group] = []
    others: list[Group] = []
    for component in _overlapping(candidates):
        best, rest = _as_alone(joint, component) or _best_set(joint, component, claimed, worth)
        for group in best.groups:
            joint = joint.contracted(frozenset(group.members))
            claimed.update(dict.fromkeys(group.members, CLAIMED))
        taken += best.groups
        others += rest
        misses += best.misses
    left = (name for name in flow.index if name not in claimed)
    seeds = (name for name in left if flow.nodes[name].op == RANDOM or reads_across(flow, name))
    chains = grow_chains(flow, joint, seeds, claimed)
    taken += chains.groups
    misses += chains.misses
    taken.sort(key=lambda group: flow.index[group.seed])
    known = {group.members for group in taken}
    distinct = {group.members: group for group in others if group.members not in known}
    return Chosen(tuple(taken), tuple(distinct.values()), tuple(misses))


def grow_chains(
    flow: Dataflow, joint: Dataflow, seeds: Iterable[str], claimed: Mapping[str, str]
) -> Chains:
    """The chains of seeds, one after the other, of what is not claimed; `joint` is the flow with
    every group so far as one node.
    """
    held = dict(claimed)
    groups: list[Group] = []
    misses: list[NearMiss] = []
    for name in seeds:
        if name in held:
            continue
        grown = grow(joint, name, held)
        if grown.group is not None and _is_chain(flow, grown.group):
            joint = joint.contracted(frozenset(grown.group.members))
            held.update(dict.fromkeys(grown.group.members, CLAIMED))
            groups.append(grown.group)
            misses += grown.misses
    return Chains(tuple(groups), tuple(misses))


def _is_chain(flow: Dataflow, group: Group) -> bool:
    """Whether a group has several ops, none of which reduces, and reads something as large."""
    if len(group.members) < 2 or _reductions(flow, group.members):
        return False
    return reads_all_axes(group.space.operands, group.space.axes)


def _candidates(flow: Dataflow) -> tuple[list[Candidate], list[NearMiss]]:
    """Every reduction's group as if it were alone, those inside an earlier one left out."""
    found: list[Candidate] = []
    misses: list[NearMiss] = []
    covered: set[str] = set()
    for name in _reductions(flow, flow.index):
        if name in covered:
            continue
        grown = grow(flow, name, {})
        if grown.group is None:
            misses += grown.misses
        else:
            found.append(Candidate(grown.group, grown.misses))
            covered.update(grown.group.members)
    return found, misses


def _reductions(flow: Dataflow, names: Iterable[str]) -> list[str]:
    return [name for name in names if spec_of(flow.nodes[name].op).kind == "reduction"]


def _overlapping(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Groups by what they share, directly or through others, in graph order."""
    first: dict[str, int] = {}
    joined_to = list(range(len(candidates)))
    components: dict[int, list[Candidate]] = {}

    def component(number: int) -> int:
        while joined_to[number] != number:
            joined_to[number] = joined_to[joined_to[number]]
            number = joined_to[number]
        return number

    for number, candidate in enumerate(candidates):
        shared = [first[name] for name in candidate.group.members if name in first]
        touching = sorted({component(other) for other in shared})
        joined = [other for place in touching for other in components.pop(place)]
        for place in touching:
            joined_to[place] = number
        components[number] = [*joined, candidate]
        for name in candidate.group.members:
            first.setdefault(name, number)
    return list(components.values())


@dataclass(frozen=True)
class _Set:
    groups: tuple[Group, ...]
    misses: tuple[NearMiss, ...]
    worth: float


def _as_alone(flow: Dataflow, component: Sequence[Candidate]) -> tuple[_Set, list[Group]] | None:
    """A group that overlaps with no other as it grew; None if it would now wait for itself."""
    if len(component) > 1 or flow.between(frozenset(component[0].group.members)):
        return None
    group, misses = component[0].group, component[0].misses
    return _Set((group,) if len(group.members) > 1 else (), misses, 0.0), []


def _best_set(
    flow: Dataflow, component: Sequence[Candidate], claimed: Mapping[str, str], worth: Worth
) -> tuple[_Set, list[Group]]:
    seeds = [candidate.group.seed for candidate in component]
    if len(seeds) <= MAX_ORDERED:
        orders = [list(order) for order in permutations(seeds)]
    else:
        by_worth = sorted(component, key=lambda item: -worth(flow, (item.group,)))
        orders = [seeds, [item.group.seed for item in by_worth]]
    every = {name for item in component for name in item.group.members}
    rest = sorted(_reductions(flow, every), key=flow.index.__getitem__)
    alone = len(orders) == 1
    sets = [_grown_in(flow, [*order, *rest], claimed, None if alone else worth) for order in orders]
    best = max(sets, key=lambda item: item.worth)
    return best, [group for item in sets if item is not best for group in item.groups]


def _grown_in(
    flow: Dataflow, order: Sequence[str], claimed: Mapping[str, str], worth: Worth | None
) -> _Set:
    """The groups of seeds that grow one after the other, each around those before it."""
    held = dict(claimed)
    groups: list[Group] = []
    misses: list[NearMiss] = []
    tried: set[str] = set()
    for seed in order:
        if seed in held or seed in tried:
            continue
        tried.add(seed)
        grown = grow(flow, seed, held)
        misses += grown.misses
        if grown.group is not None and len(grown.group.members) > 1:
            groups.append(grown.group)
            held.update(dict.fromkeys(grown.group.members, CLAIMED))
            flow = flow.contracted(frozenset(grown.group.members))
    total = worth(flow, groups) if worth is not None else 0.0
    return _Set(tuple(groups), tuple(misses), total)
