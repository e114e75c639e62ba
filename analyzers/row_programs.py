"""Row programs: groups of ops that one pass over the rows of a tensor can compute.

Physics: a chain of memory-bound ops costs its intermediate tensors' round trips to DRAM. Ops that
share one iteration space [rows, columns], with reductions along the one or the other, need none of
them: a row stays in registers from its first read to its last write. Groups grow around reductions
(`growth`), are chosen together where they overlap (`choice`), and compute again what is cheaper to
compute than to read back (`fan_out`). What is left grows around ops that read across the order in
which they write (`turned`). Rows that a lookup copies are read from their table (`lookups`).

A group may also start after the value in which its prologue ends (a residual sum, a masked score):
that costs one more round trip unless the value must be written anyway, but the shorter variant
often occurs at more sites, so one kernel serves them all. Both variants are returned; what each is
worth is decided by price and by measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.errors import IllegalFusionError
from advisor.model.graph import Graph
from advisor.model.optable import item_bytes, spec_of
from analyzers.apart import rows_apart
from analyzers.choice import Worth, choose, traffic_saved
from analyzers.dataflow import Dataflow, dataflow
from analyzers.fan_out import FanOut, share
from analyzers.growth import MAX_GROUP_OPS, MAX_GROUP_TENSORS, Group, NearMiss, is_whole
from analyzers.iteration_space import iteration_space
from analyzers.lookups import Lookups

__all__ = ["MAX_GROUP_OPS", "MAX_GROUP_TENSORS", "Group", "NearMiss", "RowPrograms"]


@dataclass(frozen=True)
class RowPrograms:
    """All groups found: `whole` own no op in common, `cores[i]` is a shorter `whole[i]`, if any.

    `apart[i]` leaves out the reductions over the rows of a `whole[i]` that reduces both axes;
    `plain[i]` is `whole[i]` with values read back that it computes again, if there are any;
    `others` are groups of sets that were not chosen. `flow` is the dataflow that all were found in.
    """

    flow: Dataflow
    whole: tuple[Group, ...]
    cores: tuple[Group | None, ...]
    apart: tuple[Group | None, ...]
    plain: tuple[Group | None, ...]
    others: tuple[Group, ...]
    near_misses: tuple[NearMiss, ...]
    fan_outs: tuple[FanOut, ...]

    def every_group(self) -> tuple[Group, ...]:
        """All ways to fuse anything, the chosen ones first."""
        beside = zip(self.whole, self.cores, self.apart, self.plain, strict=True)
        return (*(g for groups in beside for g in groups if g is not None), *self.others)


def find_row_programs(graph: Graph) -> RowPrograms:
    """All row programs of a graph with two ops or more, by traffic."""
    return row_programs(dataflow(graph))


def row_programs(flow: Dataflow, worth: Worth = traffic_saved) -> RowPrograms:
    """The same from the dataflow; `worth` decides between groups that want the same ops."""
    chosen = choose(flow, worth)
    shared = share(flow, chosen.groups)
    taken = Lookups(flow, shared.groups)
    return RowPrograms(
        flow=flow,
        whole=taken.whole,
        cores=tuple(taken.by_way(n, _core(flow, g)) for n, g in enumerate(chosen.groups)),
        apart=tuple(taken.by_way(n, rows_apart(flow, g)) for n, g in enumerate(chosen.groups)),
        plain=tuple(taken.by_way(n, group) for n, group in enumerate(shared.plain)),
        others=tuple(taken.by_other(group) for group in chosen.others),
        near_misses=taken.left_out(chosen.misses),
        fan_outs=shared.fan_outs,
    )


def _core(flow: Dataflow, group: Group) -> Group | None:
    """The group from its narrowest bottleneck before the first reduction on, None without one.

    A bottleneck is one full-size value through which everything computed before any reduction flows
    and that combines several inputs: starting after it, the kernel reads that one value instead of
    them.
    """
    members = frozenset(group.members)
    reductions = [n for n in group.members if spec_of(flow.nodes[n].op).kind == "reduction"]
    if not reductions:
        return None
    after = 0
    for name in reductions:
        after |= flow.descendants[name] | 1 << flow.index[name]
    prologue = [n for n in group.members if not after >> flow.index[n] & 1]
    for name in sorted(prologue, key=lambda n: (_item_bytes(flow, n), flow.index[n])):
        above = frozenset(n for n in prologue if flow.ancestors[name] >> flow.index[n] & 1) | {name}
        if _full_size_inputs(group, above) < 2 or not _only_exit(flow, members, above, name):
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


def _full_size_inputs(group: Group, above: frozenset[str]) -> int:
    """How many outside values that vary along the columns and some row axis these ops read."""
    found = {
        bound.value
        for (name, _), bound in group.space.operands.items()
        if name in above and is_whole(group.space, bound)
    }
    return len(found)


def _only_exit(flow: Dataflow, members: frozenset[str], above: frozenset[str], name: str) -> bool:
    """Whether the rest of the group reads nothing of `above` but `name`'s value."""
    return not any(
        use.consumer in members - above
        for other in above - {name}
        for use in flow.uses.get(flow.nodes[other].value(), ())
    )
