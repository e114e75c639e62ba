"""Row programs: groups of ops that one pass over the rows of a tensor can compute.

Physics: a chain of memory-bound ops costs its intermediate tensors' round trips to DRAM. Ops that
share one iteration space [rows, columns], with reductions only along the columns, need none of
them: a row stays in registers from its first read to its last write. A group grows from a reduction
over its neighbours as long as it stays convex (no path leaves and re-enters it), its space stays
consistent (`iteration_space`) and its outputs can be written in row-major order. Names of ops,
kernels and modules play no part.

A group may also start after the value in which its prologue ends (a residual sum, a masked score):
that costs one more round trip unless the value must be written anyway, but the shorter variant
often occurs at more sites, so one kernel serves them all. Both variants are returned; what each is
worth is decided by price and by measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.errors import IllegalFusionError
from advisor.model.graph import Graph, Node, node_of
from advisor.model.optable import item_bytes, spec_of
from analyzers.dataflow import Dataflow, dataflow
from analyzers.iteration_space import IterationSpace, iteration_space

# A kernel reads and writes at most this many tensors: each needs address registers.
MAX_GROUP_TENSORS = 16
MAX_GROUP_OPS = 96


@dataclass(frozen=True)
class Group:
    """Legal members (ids in graph order), their common space, and the seed reduction."""

    members: tuple[str, ...]
    space: IterationSpace
    seed: str


@dataclass(frozen=True)
class NearMiss:
    """A neighbour that stays out of a group, and why."""

    seed: str
    node: str
    reason: str


@dataclass(frozen=True)
class RowPrograms:
    """All groups found: `whole` do not overlap, `cores[i]` is a shorter `whole[i]`, if any.

    `flow` is the dataflow that they were found in.
    """

    flow: Dataflow
    whole: tuple[Group, ...]
    cores: tuple[Group | None, ...]
    near_misses: tuple[NearMiss, ...]


def find_row_programs(graph: Graph) -> RowPrograms:
    """All maximal row programs of a graph with at least one row reduction and two ops."""
    flow = joint = dataflow(graph)
    claimed: set[str] = set()
    whole: list[Group] = []
    misses: list[NearMiss] = []
    for node in graph.nodes:
        if node.id in claimed or spec_of(node.op).kind != "reduction":
            continue
        group = _grow(joint, node, claimed, misses)
        if group is not None and len(group.members) >= 2:
            whole.append(group)
            claimed.update(group.members)
            joint = joint.contracted(frozenset(group.members))
    cores = tuple(_core(flow, group) for group in whole)
    return RowPrograms(flow, tuple(whole), cores, tuple(misses))


def _grow(flow: Dataflow, seed: Node, claimed: set[str], misses: list[NearMiss]) -> Group | None:
    """Absorb neighbours, nearest first, until none is legal; None if the seed alone is not."""
    members = frozenset((seed.id,))
    try:
        space = iteration_space(flow, members, seed.id)
    except IllegalFusionError as error:
        misses.append(NearMiss(seed.id, seed.id, str(error)))
        return None
    rejected: dict[str, str] = {}
    grew = True
    while grew:
        grew = False
        for name in _neighbours(flow, members):
            if name in members:
                continue
            reason = _obstacle(flow, name, claimed)
            if reason is None:
                attempt = _extend(flow, members, name, seed.id, claimed)
                if isinstance(attempt, tuple):
                    members, space = attempt
                    rejected.pop(name, None)
                    grew = True
                    continue
                reason = attempt
            rejected[name] = reason
    misses += [
        NearMiss(seed.id, name, why) for name, why in rejected.items() if name not in members
    ]
    ordered = tuple(sorted(members, key=flow.index.__getitem__))
    return Group(ordered, space, seed.id)


def _neighbours(flow: Dataflow, members: frozenset[str]) -> list[str]:
    """Producers of the group's operands and consumers of its values, in graph order."""
    found: set[str] = set()
    for name in members:
        node = flow.nodes[name]
        found.update(node_of(flow.base(value))[0] for value in node.value_args)
        for output in range(max(len(node.outputs), 1)):
            found.update(use.consumer for use in flow.uses.get(node.value(output), ()))
    return sorted(found - members, key=flow.index.__getitem__)


def _obstacle(flow: Dataflow, name: str, claimed: set[str]) -> str | None:
    """Why a node can be in no row program at all, or None."""
    node = flow.nodes[name]
    if name in claimed:
        return "already part of another group"
    if spec_of(node.op).kind not in ("pointwise", "reduction"):
        return f"{node.target or node.op} is not a row operation"
    if len(node.outputs) != 1 or node.mutates or node.has_side_effect:
        return "it writes one of its inputs or has another side effect"
    return None


def _extend(
    flow: Dataflow, members: frozenset[str], name: str, seed: str, claimed: set[str]
) -> tuple[frozenset[str], IterationSpace] | str:
    """The group with `name` and whatever lies between, or the reason it may not be."""
    grown = members | {name}
    between = flow.between(grown)
    if between:
        for other in between:
            if _obstacle(flow, other, claimed) is not None:
                through = flow.nodes[other].target or other
                return f"a path through {through} leaves the group and comes back"
        grown |= between
        if flow.between(grown):
            return "the group would not be convex"
    try:
        space = iteration_space(flow, grown, seed)
    except IllegalFusionError as error:
        return str(error)
    tensors = len({bound.value for bound in space.operands.values()}) + len(space.outputs)
    if tensors > MAX_GROUP_TENSORS or len(grown) > MAX_GROUP_OPS:
        return f"the kernel would touch {tensors} tensors in {len(grown)} ops"
    recomputed = [n for n in grown - members if not _spans_whole(space, flow.nodes[n])]
    if recomputed:
        return "it is smaller than the group's rows and would be recomputed for each of them"
    return grown, space


def _spans_whole(space: IterationSpace, node: Node) -> bool:
    """Full-size, one per row or one per column: others are recomputed along the missing axes."""
    span = space.spans[node.value()]
    return span in (space.rows | space.columns, space.rows, space.columns)


def _core(flow: Dataflow, group: Group) -> Group | None:
    """The group from its narrowest bottleneck before the first reduction on, None without one.

    A bottleneck is one full-size value through which everything computed before any reduction flows
    and that combines several inputs: starting after it, the kernel reads that one value instead of
    them.
    """
    members = frozenset(group.members)
    reductions = [n for n in group.members if spec_of(flow.nodes[n].op).kind == "reduction"]
    after = 0
    for name in reductions:
        after |= flow.descendants[name] | 1 << flow.index[name]
    prologue = [n for n in group.members if not after >> flow.index[n] & 1]
    for name in sorted(prologue, key=lambda n: (_item_bytes(flow, n), flow.index[n])):
        above = frozenset(n for n in prologue if flow.ancestors[name] >> flow.index[n] & 1) | {name}
        if _full_size_inputs(flow, group, above) < 2 or not _only_exit(flow, members, above, name):
            continue
        core = members - above
        if len(core) < 2 or flow.between(core):
            continue
        try:
            space = iteration_space(flow, core, group.seed)
        except IllegalFusionError:
            continue
        return Group(tuple(n for n in group.members if n in core), space, group.seed)
    return None


def _item_bytes(flow: Dataflow, name: str) -> int:
    return item_bytes(flow.nodes[name].outputs[0].dtype)


def _full_size_inputs(flow: Dataflow, group: Group, above: frozenset[str]) -> int:
    """How many outside values that vary along the columns and some row axis these ops read."""
    found = set()
    for (name, _), bound in group.space.operands.items():
        rows = any(bound.strides[axis] is not None for axis in group.space.rows)
        if (
            name in above
            and rows
            and any(bound.strides[a] is not None for a in group.space.columns)
        ):
            found.add(bound.value)
    return len(found)


def _only_exit(flow: Dataflow, members: frozenset[str], above: frozenset[str], name: str) -> bool:
    """Whether the rest of the group reads nothing of `above` but `name`'s value."""
    return not any(
        use.consumer in members - above
        for other in above - {name}
        for use in flow.uses.get(flow.nodes[other].value(), ())
    )
