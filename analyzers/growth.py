"""How a group grows around a reduction, and why a neighbour stays out.

A group absorbs producers of what it reads, consumers of what it computes, and siblings: ops that
read a whole tensor which the group reads anyway, in the same way. It stays convex (no path leaves
it and comes back), in one iteration space, and waits for nothing that one of its reductions need
not wait for. Names of ops, kernels and modules play no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.errors import IllegalFusionError
from advisor.model.graph import Node, node_of
from advisor.model.optable import spec_of
from analyzers.axes import copies
from analyzers.dataflow import Dataflow
from analyzers.iteration_space import (
    ALONE,
    LONE_ROW,
    IterationSpace,
    MissingReaderError,
    Shares,
    iteration_space,
)
from analyzers.strides import BoundInput

# A kernel reads and writes at most this many tensors: each needs address registers.
MAX_GROUP_TENSORS = 16
MAX_GROUP_OPS = 96
# A row that is summed along its columns and into sums over the rows stays in registers, with them.
MAX_SUMMED_COLUMNS = 8192
# A sum of everything by itself: every compiler shares it out and adds up the shares.
_NOTHING_FOLLOWS = "a single row, and nothing as large needs its sum: programs cannot share it here"


@dataclass(frozen=True)
class Group:
    """Legal members (ids in graph order), their common space, and the seed reduction.

    `shares` names the members that other kernels compute as well.
    """

    members: tuple[str, ...]
    space: IterationSpace
    seed: str
    shares: Shares = ALONE

    @property
    def own(self) -> tuple[str, ...]:
        """The members that nobody else computes: what goes away when the group is one kernel."""
        return tuple(name for name in self.members if name not in self.shares.again)


@dataclass(frozen=True)
class NearMiss:
    """A neighbour that stays out of a group, and why; a seed without a group is its own."""

    seed: str
    node: str
    reason: str


@dataclass(frozen=True)
class Grown:
    """What became of a seed: its group, if it has one, and what stays out of it."""

    group: Group | None
    misses: tuple[NearMiss, ...]


def grow(flow: Dataflow, seed: str, claimed: Mapping[str, str]) -> Grown:
    """Absorb neighbours, nearest first, until none is legal; `claimed` nodes belong to others."""
    members = _whole_ops(flow, frozenset((seed,)))
    try:
        for name in members:
            if (reason := obstacle(flow, name, seed, claimed)) is not None:
                raise IllegalFusionError(reason)
        space = iteration_space(flow, members, seed)
    except IllegalFusionError as error:
        return Grown(None, (NearMiss(seed, seed, error.what),))
    rejected: dict[str, str] = {}
    grew = True
    while grew:
        before = members
        near = _neighbours(flow, members)
        last = [node.id for node in copies(flow, [flow.nodes[name] for name in near])]
        first = [name for name in near if name not in last]
        members, space = _absorbed(flow, members, space, first, seed, claimed, rejected)
        if members == before:
            members, space = _with_sibling(flow, members, space, seed, claimed)
        if members == before:  # a sum over the rows, which no copy is beside, would save more
            members, space = _absorbed(flow, members, space, last, seed, claimed, rejected)
        grew = members != before
    if space.lone and (LONE_ROW in rejected.values() or not _follows(flow, members, space)):
        reason = LONE_ROW if LONE_ROW in rejected.values() else _NOTHING_FOLLOWS
        return Grown(None, (NearMiss(seed, seed, reason),))
    inside = members | _views_of_copies(flow, members)
    misses = (NearMiss(seed, name, why) for name, why in rejected.items() if name not in inside)
    ordered = tuple(sorted(members, key=flow.index.__getitem__))
    return Grown(Group(ordered, space, seed), tuple(misses))


def _absorbed(
    flow: Dataflow,
    members: frozenset[str],
    space: IterationSpace,
    names: Sequence[str],
    seed: str,
    claimed: Mapping[str, str],
    rejected: dict[str, str],
) -> tuple[frozenset[str], IterationSpace]:
    """The group with those of some neighbours that are legal; why others are not, in `rejected`."""
    for name in names:
        if name in members:
            continue
        attempt = _extend(flow, members, name, seed, claimed)
        if isinstance(attempt, str):
            rejected[name] = attempt
        else:
            members, space = attempt
    return members, space


def _views_of_copies(flow: Dataflow, members: frozenset[str]) -> set[str]:
    """Views by which others read the copies in the group, in the shape that these have for them."""
    found = copies(flow, [flow.nodes[name] for name in members])
    uses = (use.consumer for node in found for use in flow.uses.get(node.value(), ()))
    return {name for name in uses if flow.nodes[name].alias_of is not None}


def _follows(flow: Dataflow, members: frozenset[str], space: IterationSpace) -> bool:
    """Whether a full-size result needs a reduction of the group: else nothing is read twice."""
    after = 0
    for name in members:
        if spec_of(flow.nodes[name].op).kind == "reduction":
            after |= flow.descendants[name]
    wide = space.rows | space.columns
    return any(
        space.spans[value] == wide and after >> flow.index[node_of(value)[0]] & 1
        for value in space.outputs
    )


def _whole_ops(flow: Dataflow, members: frozenset[str]) -> frozenset[str]:
    """The members with all that shares a hidden value with them: an op is taken whole or not."""
    found, pending = set(members), list(members)
    while pending:
        node = flow.nodes[pending.pop()]
        others = {node_of(flow.base(value))[0] for value in node.value_args}
        others = {name for name in others if flow.nodes[name].hidden}
        if node.hidden:
            others |= {use.consumer for use in flow.uses.get(node.value(), ())}
        pending += others - found
        found |= others
    return frozenset(found)


def _neighbours(flow: Dataflow, members: frozenset[str]) -> list[str]:
    """Producers of the group's operands and consumers of its values, in graph order."""
    found: set[str] = set()
    for name in members:
        node = flow.nodes[name]
        found.update(node_of(flow.base(value))[0] for value in node.value_args)
        for output in range(max(len(node.outputs), 1)):
            found.update(use.consumer for use in flow.uses.get(node.value(output), ()))
    return sorted(found - members, key=flow.index.__getitem__)


def _with_sibling(
    flow: Dataflow,
    members: frozenset[str],
    space: IterationSpace,
    seed: str,
    claimed: Mapping[str, str],
) -> tuple[frozenset[str], IterationSpace]:
    """The group with the first legal op that reads one of its whole inputs just as it does."""
    read = {flow.base(b.value) for b in space.operands.values() if is_whole(space, b)}
    siblings = {use.consumer for value in read for use in flow.uses.get(value, ())} - members
    for name in sorted(siblings, key=flow.index.__getitem__):
        attempt = _extend(flow, members, name, seed, claimed)
        if isinstance(attempt, str):
            continue
        operands = attempt[1].operands
        theirs = {bound for (reader, _), bound in operands.items() if reader in members}
        own = {bound for (reader, _), bound in operands.items() if reader not in members}
        if any(is_whole(attempt[1], bound) for bound in theirs & own):
            return attempt
    return members, space


def is_whole(space: IterationSpace, bound: BoundInput) -> bool:
    """Whether an input varies along all columns and some row axis."""
    spans = {axis for axis, stride in enumerate(bound.strides) if stride is not None}
    return bool(spans & space.rows) and spans >= space.columns


def obstacle(flow: Dataflow, name: str, seed: str, claimed: Mapping[str, str]) -> str | None:
    """Why a node can be in no row program of this seed at all, or None."""
    node = flow.nodes[name]
    if name in claimed:
        return claimed[name]
    if node.mutates:
        return f"{node.target or node.op} writes to one of its inputs"
    if node.boundary is not None:
        return f"{node.target} is a boundary of {node.boundary}"
    if spec_of(node.op).kind not in ("pointwise", "reduction"):
        return _not_a_row_operation(node)
    if len(node.outputs) != 1 or node.has_side_effect:
        return "it has several results or a side effect"
    if node.stream != flow.nodes[seed].stream:
        return "it runs on another stream"
    return None


def _not_a_row_operation(node: Node) -> str:
    if node.alias_of is not None:
        return f"{node.target} reads elements at other positions: it is not a row operation"
    return f"{node.target or node.op} is not a row operation"


def _extend(
    flow: Dataflow, members: frozenset[str], name: str, seed: str, claimed: Mapping[str, str]
) -> tuple[frozenset[str], IterationSpace] | str:
    """The group with `name` and whatever lies between, or the reason it may not be.

    Where a value of it can only be in the group together with what reads it, the readers are taken
    as well.
    """
    grown = closed(flow, members, name, seed, claimed)
    while not isinstance(grown, str):
        if _waits_needlessly(flow, grown):
            return "a reduction of the group would wait for communication that it does not need"
        try:
            space = iteration_space(flow, grown, seed)
        except MissingReaderError as error:
            readers = {use.consumer for use in flow.uses.get(error.value, ())} - grown
            if not readers or len(grown) > MAX_GROUP_OPS:
                return error.what
            reader = min(readers, key=flow.index.__getitem__)
            further = closed(flow, grown, reader, seed, claimed)
            grown = error.what if isinstance(further, str) else further
        except IllegalFusionError as error:
            return error.what
        else:
            return _too_much(flow, space, members, grown) or (grown, space)
    return grown


def closed(
    flow: Dataflow, members: frozenset[str], name: str, seed: str, claimed: Mapping[str, str]
) -> frozenset[str] | str:
    """Members, another node, and whatever lies between; or what stands in the way."""
    reason = obstacle(flow, name, seed, claimed)
    if reason is not None:
        return reason
    grown = _whole_ops(flow, members | {name})
    for other in grown - members - {name}:
        if (reason := obstacle(flow, other, seed, claimed)) is not None:
            return reason
    between = flow.between(grown)
    if between:
        for other in sorted(between, key=flow.index.__getitem__):
            if obstacle(flow, other, seed, claimed) is not None:
                through = flow.nodes[other].target or other
                return f"a path through {through} leaves the group and comes back"
        grown |= between
        if flow.between(grown) or _whole_ops(flow, grown) != grown:
            return "the group would not be convex"
    return grown


def _waits_needlessly(flow: Dataflow, members: frozenset[str]) -> bool:
    """Whether a reduction could run while other GPUs' work is waited for, were it left alone.

    Pointwise ops may wait: they cost less than the round trip that they save.
    """
    if not flow.communication:
        return False
    waits = {name: flow.ancestors[name] & flow.communication for name in members}
    everything = 0
    for mask in waits.values():
        everything |= mask
    return any(
        waits[name] != everything
        for name in members
        if spec_of(flow.nodes[name].op).kind == "reduction"
    )


def _too_much(
    flow: Dataflow, space: IterationSpace, members: frozenset[str], grown: frozenset[str]
) -> str | None:
    tensors = len({bound.value for bound in space.operands.values()}) + len(space.outputs)
    if tensors > MAX_GROUP_TENSORS or len(grown) > MAX_GROUP_OPS:
        return f"the kernel would touch {tensors} tensors in {len(grown)} ops"
    if too_wide(flow, space, grown):
        return "rows this long do not fit in registers beside the sums over them"
    if any(not spans_whole(space, flow.nodes[n]) for n in grown - members):
        return "it is smaller than the group's rows and would be recomputed for each of them"
    return None


def too_wide(flow: Dataflow, space: IterationSpace, members: frozenset[str]) -> bool:
    """Whether a group with reductions over both axes has more columns than one program holds."""
    if not space.late:
        return False
    reductions = [n for n in members if spec_of(flow.nodes[n].op).kind == "reduction"]
    if all(flow.nodes[name].value() in space.late for name in reductions):
        return False
    return flow.hint(space.column_size) > MAX_SUMMED_COLUMNS


def spans_whole(space: IterationSpace, node: Node) -> bool:
    """Whether it is not recomputed for other rows: it spans them all, or has none and all columns.

    A value of a part of each row is recomputed within it, which costs less than another kernel.
    """
    span = space.spans[node.value()]
    return span >= space.rows or span == space.columns
