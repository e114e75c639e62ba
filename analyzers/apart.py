"""A group without its reductions over the rows, or without its copy: the rows alone, in a kernel.

One pass over the data is not always the faster way: rows that wait for sums of columns occupy the
GPU with fewer programs. The shorter program leaves the columns to somebody else, who reads its
results and the reductions of rows, and computes again what else both need, as a compiler does.

A copy of long rows in the other order makes programs of so many rows that these are read twice; a
copy of the result by itself reads it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from advisor.errors import IllegalFusionError
from advisor.model.configs import MOST_TALL_COLUMNS
from advisor.model.graph import node_of
from advisor.model.optable import spec_of
from analyzers.axes import copies
from analyzers.dataflow import Dataflow
from analyzers.growth import Group
from analyzers.iteration_space import iteration_space


def rows_apart(flow: Dataflow, group: Group) -> Group | None:
    """The members that lead to what rows give; None if that is all of them."""
    if not group.space.late:
        return _without_copy(flow, group)
    late = group.space.late
    seeds = [n for n in group.members if _reduces(flow, n) and flow.nodes[n].value() not in late]
    outputs = {node_of(value)[0] for value in group.space.outputs if value not in late}
    if not seeds or not outputs:
        return None
    kept = _behind(flow, group, outputs, lambda name: True)
    sums = {node_of(value)[0] for value in late}
    written = {name for name in kept if name in outputs or _reduces(flow, name)}
    both = (kept & _behind(flow, group, sums, lambda name: name not in written)) - written
    seeds = [name for name in seeds if name in kept]
    if len(kept) < 2 or not seeds or flow.between(frozenset(kept)):
        return None
    shares = replace(group.shares, again=(group.shares.again & kept) | both)
    try:
        space = iteration_space(flow, frozenset(kept), seeds[0], shares)
    except IllegalFusionError:
        return None
    members = tuple(name for name in group.members if name in kept)
    return Group(members, space, seeds[0], shares)


def _without_copy(flow: Dataflow, group: Group) -> Group | None:
    """The members without copies in the other order, of rows too long for whole ones of them."""
    copied = {node.id for node in copies(flow, [flow.nodes[name] for name in group.members])}
    kept = frozenset(group.members) - copied
    space = group.space
    if not copied or space.lone or flow.hint(space.column_size, unknown=0) <= MOST_TALL_COLUMNS:
        return None
    if len(kept) < 2 or not any(_reduces(flow, name) for name in kept):
        return None
    try:
        space = iteration_space(flow, kept, group.seed, group.shares)
    except IllegalFusionError:
        return None
    members = tuple(name for name in group.members if name in kept)
    return Group(members, space, group.seed, group.shares)


def _behind(
    flow: Dataflow, group: Group, roots: Iterable[str], passes: Callable[[str], bool]
) -> set[str]:
    """The members that lead to some of them; what is behind one that does not pass is left out."""
    members, found, pending = set(group.members), set[str](), list(roots)
    while pending:
        name = pending.pop()
        if name in members and name not in found:
            found.add(name)
            if passes(name):
                pending += [node_of(flow.base(v))[0] for v in flow.nodes[name].value_args]
    return found


def _reduces(flow: Dataflow, name: str) -> bool:
    return spec_of(flow.nodes[name].op).kind == "reduction"
