"""Where every value of a group lies on its axes: each dimension is a run of them.

Full-size values lie on all axes; from there placements are carried through reductions, broadcasts
and views until nothing changes. Two placements of one value that differ are no group.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from advisor.errors import IllegalFusionError
from advisor.model.graph import Node, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import Dim, parse, product
from analyzers.axes import Axes, AxisRun, Placement, aligned
from analyzers.dataflow import Dataflow


def placements(
    flow: Dataflow, order: Sequence[Node], members: frozenset[str], axes: Axes
) -> dict[str, Placement]:
    """The placement of every value that the group computes or reads, as far as it has one."""
    return _Placer(flow, order, members, axes).solve()


class _Placer:
    def __init__(
        self, flow: Dataflow, order: Sequence[Node], members: frozenset[str], axes: Axes
    ) -> None:
        self.flow, self.order, self.members, self.axes = flow, order, members, axes
        self.placed: dict[str, Placement] = {}

    def solve(self) -> dict[str, Placement]:
        """Assign placements until nothing changes."""
        self._place_full_size()
        while self._propagate():
            pass
        return self.placed

    def _place_full_size(self) -> None:
        run, total = self.axes.whole_run, self.axes.total
        for node in self.order:
            meta = self.flow.need_meta(node.value())
            if product(meta.shape) == total:
                self._place(node.value(), self.axes.partition(meta.shape, run))
            if spec_of(node.op).kind == "reduction":
                operand = str(node.args[0])
                shape = self.flow.need_meta(operand).shape
                if product(shape) != total:
                    raise IllegalFusionError("two reductions of the group run over different sizes")
                self._place(operand, self.axes.partition(shape, run))

    def _propagate(self) -> bool:
        before = len(self.placed)
        for node in self.order:
            self._through(node)
            for value in node.value_args:
                self._through_views(value)
        for node in reversed(self.order):
            self._through(node)
        return len(self.placed) != before

    def _through(self, node: Node) -> None:
        kind = spec_of(node.op).kind
        if kind == "reduction":
            self._through_reduction(node)
        elif kind == "pointwise":
            self._through_pointwise(node)

    def _through_reduction(self, node: Node) -> None:
        placement = self.placed.get(str(node.args[0]))
        if placement is None:
            return
        reduced = node.axes
        run = tuple(axis for dim in reduced for axis in placement[dim])
        found = frozenset(run) - (frozenset(self.axes.row_run) if self.axes.lone else frozenset())
        if found not in (frozenset(self.axes.column_run), frozenset(self.axes.row_run)):
            raise IllegalFusionError("a reduction of the group is over other axes")
        kept = len(self.flow.need_meta(node.value()).shape) == len(placement)
        result = tuple(
            () if dim in reduced else run
            for dim, run in enumerate(placement)
            if kept or dim not in reduced
        )
        self._place(node.value(), result)

    def _through_pointwise(self, node: Node) -> None:
        shape = self.flow.need_meta(node.value()).shape
        placement = self.placed.get(node.value())
        if placement is None:
            placement = self._result_placement(node, shape)
            if placement is None:
                return
            self._place(node.value(), placement)
        for value in dict.fromkeys(node.value_args):
            operand = self.flow.need_meta(value)
            self._place(value, aligned(operand.shape, shape, placement))

    def _result_placement(self, node: Node, shape: tuple[Dim, ...]) -> Placement | None:
        """A result's placement from operands already placed; None while one is undecided."""
        result: list[AxisRun | None] = [() if parse(dim).is_one else None for dim in shape]
        for value in node.value_args:
            placement = self.placed.get(value)
            if placement is None:
                continue
            operand = self.flow.need_meta(value).shape
            offset = len(shape) - len(operand)
            for dim, run in enumerate(placement):
                if not parse(operand[dim]).is_one:
                    result[offset + dim] = run
        decided = tuple(run for run in result if run is not None)
        return decided if len(decided) == len(result) else None

    def _through_views(self, value: str) -> None:
        """Carry a placement across one chain of views, towards the member behind it and back."""
        node = self.flow.nodes[node_of(value)[0]]
        if spec_of(node.op).kind != "view" or node_of(self.flow.base(value))[0] not in self.members:
            return
        source = str(node.args[0])
        inner, outer = self.flow.need_meta(source), self.flow.need_meta(value)
        if value in self.placed:
            # Also where the source is placed already: both sides must agree.
            there = self.axes.across(node, self.placed[value], outer.shape, inner.shape)
            self._place(source, there)
        self._through_views(source)
        if source in self.placed and value not in self.placed and node.op == "reshape":
            self._place(
                value, self.axes.across(node, self.placed[source], inner.shape, outer.shape)
            )

    def _place(self, value: str, placement: Placement) -> None:
        axes = [axis for run in placement for axis in run]
        if any(outer >= inner for outer, inner in pairwise(axes)):
            raise IllegalFusionError("a value is combined with itself across rows")
        known = self.placed.setdefault(value, placement)
        if known != placement:
            raise IllegalFusionError(
                "a value is read at another position than the one it was computed for"
            )
