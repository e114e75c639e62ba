"""Row programs that read rows of a table where they lie, in place of what a lookup wrote of them.

A lookup (`embedding`) before a norm copies one row of a table for every index. A group that reads
the copy can read index and table instead: the copy's round trip goes, or, where others need it too,
the group writes it beside its own results and only the reading back goes. One group takes a lookup;
whoever else reads the copy finds it in memory. The gradient of a table stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.errors import IllegalFusionError
from advisor.model.graph import INDEX, TABLE, Node, TensorMeta, node_of
from advisor.model.plan_checks import MAX_ROW_AXES
from advisor.model.sizes import ONE, Size, parse
from analyzers.dataflow import Dataflow
from analyzers.growth import MAX_GROUP_TENSORS, Group, NearMiss
from analyzers.iteration_space import IterationSpace
from analyzers.strides import BoundInput, Lookup, Strides


class Lookups:
    """Which group takes which lookup: the first `whole` one, in graph order, that can."""

    def __init__(self, flow: Dataflow, groups: Sequence[Group]) -> None:
        self.flow = flow
        self.owners: dict[str, int] = {}
        self.groups = groups
        self.refused: list[NearMiss] = []
        self.whole = tuple(self._taken(number, group) for number, group in enumerate(groups))

    def by_way(self, number: int, group: Group | None) -> Group | None:
        """Another way of the group with a number: with what that one, or nobody, takes."""
        if group is None:
            return None
        free = [name for name in self._read(group) if self.owners.get(name, number) == number]
        return self._with(group, free, self._beside(number) if free else None)

    def by_other(self, group: Group) -> Group:
        """A group in the place of chosen ones: with what these, or nobody, take."""
        mine = set(group.members)
        free = [
            name
            for name in self._read(group)
            if name not in self.owners or mine & {*self.groups[self.owners[name]].members}
        ]
        return self._with(group, free, None)

    def left_out(self, misses: Sequence[NearMiss]) -> tuple[NearMiss, ...]:
        """Why neighbours stay out: without what was taken, of lookups the reasons found here."""
        told = {(miss.seed, miss.node) for miss in self.refused}
        kept = [
            miss
            for miss in misses
            if (miss.seed, miss.node) not in told and not self._is_taken(miss)
        ]
        return (*kept, *self.refused)

    def _is_taken(self, miss: NearMiss) -> bool:
        number = self.owners.get(miss.node)
        return number is not None and self.groups[number].seed == miss.seed

    def _taken(self, number: int, group: Group) -> Group:
        free = [name for name in self._read(group) if name not in self.owners]
        joint = self._beside(number) if free else None
        for name in free:
            try:
                group = with_lookup(self.flow, group, name, joint)
            except IllegalFusionError as error:
                self.refused.append(NearMiss(group.seed, name, error.what))
            else:
                self.owners[name] = number
        return group

    def _beside(self, number: int) -> Dataflow:
        """The flow with every other group, and what it took, as one step."""
        joint = self.flow
        for other, group in enumerate(self.groups):
            if other != number:
                took = (name for name, owner in self.owners.items() if owner == other)
                joint = joint.contracted(frozenset((*group.members, *took)))
        return joint

    def _with(self, group: Group, names: Sequence[str], joint: Dataflow | None) -> Group:
        for name in names:
            try:
                group = with_lookup(self.flow, group, name, joint)
            except IllegalFusionError:
                continue
        return group

    def _read(self, group: Group) -> list[str]:
        """The lookups whose result a group reads, in graph order."""
        bases = {node_of(self.flow.base(b.value))[0] for b in group.space.operands.values()}
        found = (name for name in bases if TABLE in self.flow.nodes[name].attributes)
        return sorted(found, key=self.flow.index.__getitem__)


def with_lookup(flow: Dataflow, group: Group, name: str, joint: Dataflow | None = None) -> Group:
    """The group that reads the rows of a lookup from its table.

    `joint` is the flow with the groups beside it as single steps. Raises `IllegalFusionError` with
    the reason why it cannot.
    """
    node, space = flow.nodes[name], group.space
    bound = _only_reading(flow, space, name)
    lookup = _lookup(flow, node, space, bound)
    members = frozenset((*group.members, name))
    if node.stream != flow.nodes[group.seed].stream:
        raise IllegalFusionError("it runs on another stream")
    if (joint or flow).between(members):
        raise IllegalFusionError("a path leaves the group and comes back")
    read = {item.value for item in space.operands.values()}
    read |= {
        value for known in space.lookups.values() for value in (known.table, known.index.value)
    }
    if lookup.table in read or _read_otherwise(space, lookup.index):
        raise IllegalFusionError("its table or its index is read in another way as well")
    outputs = _outputs(flow, members, space, node, bound)
    found = replace(
        space,
        lookups={**space.lookups, bound: lookup},
        outputs=outputs,
        layouts=space.layouts | ({node.value(): bound.strides} if outputs != space.outputs else {}),
        spans=space.spans | {node.value(): _span(bound.strides)},
    )
    tensors = {item.value for item in found.operands.values()} | {
        item.index.value for item in found.lookups.values()
    }
    if len(tensors) + len(outputs) > MAX_GROUP_TENSORS:
        raise IllegalFusionError(f"the kernel would touch {len(tensors) + len(outputs)} tensors")
    if len(found.walked_columns) != 1:
        raise IllegalFusionError("the columns of a table are one axis, these are several")
    if len(found.walked_rows) > MAX_ROW_AXES:
        raise IllegalFusionError("its index is laid out across the rows of the group")
    ordered = tuple(sorted(members, key=flow.index.__getitem__))
    return replace(group, members=ordered, space=found)


def _only_reading(flow: Dataflow, space: IterationSpace, name: str) -> BoundInput:
    """The one way in which a group reads the result of a lookup."""
    value = flow.nodes[name].value()
    bounds = {b for b in space.operands.values() if flow.base(b.value) == value}
    if len(bounds) != 1:
        raise IllegalFusionError("its result is read in several ways")
    return bounds.pop()


def _lookup(flow: Dataflow, node: Node, space: IterationSpace, bound: BoundInput) -> Lookup:
    """Table and index behind an input; the columns of the group must be those of the table."""
    places = [node.attributes[TABLE], node.attributes[INDEX]]
    table, index = (str(node.args[place]) for place in places if isinstance(place, int))
    if {flow.storage(table), flow.storage(index)} & flow.written:
        raise IllegalFusionError("its table or its index is written to")
    columns = parse(flow.need_meta(table).shape[1])
    if not _is_row_major(flow.need_meta(node.value())):
        raise IllegalFusionError("its result is not stored row after row")
    if space.column_size != columns:
        raise IllegalFusionError("the columns of the group are not those of the table")
    if any(bound.strides[axis] is None for axis in space.columns):
        raise IllegalFusionError("its result repeats along the columns")
    if max(flow.hint(bound.strides[a] or ONE) for a in space.columns) >= flow.hint(columns) > 1:
        raise IllegalFusionError("the columns of the group are not those of the table")
    strides = _index_strides(flow, flow.need_meta(index), space, bound.strides, columns)
    if not any(stride is not None for stride in strides):
        raise IllegalFusionError("it is one row for all rows of the group")
    return Lookup(node.id, table, BoundInput(index, strides))


def _index_strides(
    flow: Dataflow, index: TensorMeta, space: IterationSpace, strides: Strides, columns: Size
) -> Strides:
    """The strides of an index along the axes of a group, from those of the rows that it names."""
    found: list[Size | None] = []
    for axis, stride in enumerate(strides):
        if stride is None or axis in space.columns:
            found.append(None)
            continue
        step = stride.over(columns)
        along = None if step is None else _along(index, step, space.axes[axis])
        if along is None:
            raise IllegalFusionError("its index is laid out across the rows of the group")
        found.append(along)
    return tuple(found)


def _along(index: TensorMeta, step: Size, size: Size) -> Size | None:
    """How far apart in memory `size` elements are that lie `step` apart in row-major order."""
    if _is_row_major(index):
        return step
    inner = ONE
    for dim, apart in zip(reversed(index.shape), reversed(index.strides), strict=True):
        own = inner.times(parse(dim))
        inside = step.over(inner)
        if inside is not None and own.over(step.times(size)) is not None:
            return parse(apart).times(inside)
        inner = own
    return None


def _is_row_major(meta: TensorMeta) -> bool:
    expected = ONE
    for dim, stride in zip(reversed(meta.shape), reversed(meta.strides), strict=True):
        if parse(dim).is_one:
            continue
        if parse(stride) != expected:
            return False
        expected = expected.times(parse(dim))
    return True


def _read_otherwise(space: IterationSpace, index: BoundInput) -> bool:
    """Whether a group reads an index by other strides too: two inputs need two names."""
    known = [*space.operands.values(), *(lookup.index for lookup in space.lookups.values())]
    return any(item.value == index.value and item != index for item in known)


def _outputs(
    flow: Dataflow,
    members: frozenset[str],
    space: IterationSpace,
    node: Node,
    bound: BoundInput,
) -> tuple[str, ...]:
    """What the group writes: the looked-up rows too, where somebody else reads them."""
    value = node.value()
    readers = {use.consumer for use in flow.uses.get(value, ())}
    if value not in flow.escapes_graph and readers <= members:
        return space.outputs
    if _span(bound.strides) != space.rows | space.columns:
        raise IllegalFusionError(
            "its result is needed elsewhere, and smaller than the group's rows"
        )
    values = (*space.outputs, value)
    return tuple(sorted(values, key=lambda item: flow.index[node_of(item)[0]]))


def _span(strides: Strides) -> frozenset[int]:
    return frozenset(axis for axis, stride in enumerate(strides) if stride is not None)
