"""A value that several kernels need: written once and read back, or computed in each of them.

A pointwise value that one kernel computes and another reads makes a round trip to memory. If the
reader computes it again, it reads that value's operands instead, and the first kernel need not
write what nobody else reads. Both ways are counted in bytes; the way that moves fewer is taken, the
other is kept beside it. A matrix product or a sum is never computed again, nor is a value whose
operands are overwritten somewhere in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from advisor.errors import IllegalFusionError
from advisor.model.graph import node_of
from advisor.model.optable import item_bytes, spec_of
from analyzers.choice import group_bytes
from analyzers.dataflow import Dataflow
from analyzers.growth import MAX_GROUP_OPS, Group, is_whole, obstacle, spans_whole
from analyzers.iteration_space import Shares, iteration_space


@dataclass(frozen=True)
class FanOut:
    """A value that the group of `seed` needs and others too, with the traffic of both ways."""

    seed: str
    value: str
    computed_again: bool
    again_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class Shared:
    """Groups after the decision, in the same order; `plain[i]` is the one before, if it changed."""

    groups: tuple[Group, ...]
    plain: tuple[Group | None, ...]
    fan_outs: tuple[FanOut, ...]


def share(flow: Dataflow, groups: Sequence[Group]) -> Shared:
    """Decide for every pointwise value that a group reads from outside."""
    fan_outs: list[FanOut] = []
    owners = {name: group for group in reversed(groups) for name in group.own}
    written = {value for group in groups for value in group.space.outputs}
    inside = frozenset(flow.nodes[name].value() for name in owners) - written
    again = [_computing_again(flow, group, owners, inside, fan_outs) for group in groups]
    read = {flow.base(b.value) for group in again for b in group.space.operands.values()}
    spared = frozenset(
        (value, name)
        for group in again
        for name in group.own
        for value in (flow.nodes[other].value() for other in group.shares.again)
        if value not in read
    )
    made = _owned_once(flow, [_sparing(flow, group, spared) for group in again])
    plain = tuple(
        old if old.space != new.space else None for old, new in zip(groups, made, strict=True)
    )
    return Shared(tuple(made), plain, tuple(fan_outs))


def _owned_once(flow: Dataflow, groups: Sequence[Group]) -> list[Group]:
    """Without members whose value nobody needs; the first group that computes one again owns it."""
    kept = [_without_unused(flow, group) for group in groups]
    owned = {name for group in kept for name in group.own}
    gone = {name for group in groups for name in group.own} - owned
    found = []
    for group in kept:
        mine = group.shares.again & gone
        gone -= mine
        shares = replace(group.shares, again=group.shares.again - mine)
        found.append(replace(group, shares=shares) if mine else group)
    return found


def _without_unused(flow: Dataflow, group: Group) -> Group:
    """The group without members that lead to none of its outputs."""
    needed: set[str] = set()
    pending = [node_of(value)[0] for value in group.space.outputs]
    while pending:
        name = pending.pop()
        if name in group.members and name not in needed:
            needed.add(name)
            pending += [node_of(flow.base(value))[0] for value in flow.nodes[name].value_args]
    if len(needed) == len(group.members):
        return group
    members = tuple(name for name in group.members if name in needed)
    try:
        space = iteration_space(flow, frozenset(members), group.seed, group.shares)
    except IllegalFusionError:
        return group
    return replace(group, members=members, space=space)


def _computing_again(
    flow: Dataflow,
    group: Group,
    owners: Mapping[str, Group],
    inside: frozenset[str],
    fan_outs: list[FanOut],
) -> Group:
    """The group with every outside value that it is cheaper to compute than to read.

    `owners` are the groups that nodes belong to, `inside` the values that no kernel writes.
    """
    considered: set[str] = set()
    while True:
        name = next((n for n in _producers(flow, group, inside) if n not in considered), None)
        if name is None:
            return group
        considered.add(name)
        more = _with(flow, group, name)
        if more is None:
            continue
        value = flow.nodes[name].value()
        written = group_bytes(flow, group) + _write_bytes(flow, group, owners, value)
        found = FanOut(
            seed=group.seed,
            value=value,
            computed_again=group_bytes(flow, more) < written,
            again_bytes=group_bytes(flow, more),
            written_bytes=written,
        )
        fan_outs.append(found)
        group = more if found.computed_again else group


def _producers(flow: Dataflow, group: Group, inside: frozenset[str]) -> list[str]:
    """Outside pointwise ops whose whole value the group reads, and that may run twice.

    Their operands must be in memory, not `inside` a kernel, and nothing may overwrite them.
    """
    found = []
    for bound in dict.fromkeys(group.space.operands.values()):
        name = node_of(flow.base(bound.value))[0]
        node = flow.nodes[name]
        if (
            is_whole(group.space, bound)
            and spec_of(node.op).kind == "pointwise"
            and obstacle(flow, name, group.seed, {}) is None
            and not any(
                flow.storage(value) in flow.written or flow.base(value) in inside
                for value in node.value_args
            )
        ):
            found.append(name)
    return sorted(set(found), key=flow.index.__getitem__)


def _with(flow: Dataflow, group: Group, name: str) -> Group | None:
    """The group that computes one more value itself; None where that is not legal."""
    members = frozenset((*group.members, name))
    shares = replace(group.shares, again=group.shares.again | {name})
    try:
        space = iteration_space(flow, members, group.seed, shares)
    except IllegalFusionError:
        return None
    if len(members) > MAX_GROUP_OPS or not spans_whole(space, flow.nodes[name]):
        return None
    ordered = tuple(sorted(members, key=flow.index.__getitem__))
    return replace(group, members=ordered, space=space, shares=shares)


def _write_bytes(flow: Dataflow, group: Group, owners: Mapping[str, Group], value: str) -> int:
    """What is saved besides if this group stops reading a value: its write, if nobody else reads.

    Only a kernel of ours can leave a value unwritten; an op by itself is there for its readers.
    """
    owner = owners.get(node_of(value)[0])
    readers = {use.consumer for use in flow.uses.get(value, ())}
    inside = set(group.members) | set(owner.members if owner else ())
    if owner is None or value in flow.escapes_graph or readers - inside:
        return 0
    meta = flow.need_meta(value)
    return flow.elements(meta.shape) * item_bytes(meta.dtype)


def _sparing(flow: Dataflow, group: Group, readers: frozenset[tuple[str, str]]) -> Group:
    """The group without outputs that only others need who compute them again."""
    mine = frozenset(pair for pair in readers if node_of(pair[0])[0] in group.own)
    if not mine:
        return group
    shares = Shares(again=group.shares.again, spared=mine)
    try:
        space = iteration_space(flow, frozenset(group.members), group.seed, shares)
    except IllegalFusionError:
        return group
    return replace(group, space=space, shares=shares)
