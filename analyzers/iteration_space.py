"""Can these ops run over one iteration space [row axes..., columns]? Where do values live in it?

Shapes of a group need not be equal: `[4, 1024, 2048]` and `[4096, 2048]` hold the same elements in
the same linear order. All full-size shapes are refined to common *axes* (the ratios of their sorted
suffix products); every dimension of every value is then a run of axes, assigned from the seed
reduction outwards and checked at every use. A group is legal if all assignments agree, every
reduction runs over exactly the column axes, and every input can be addressed by one stride per
axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from advisor.errors import IllegalFusionError
from advisor.model.graph import Node, TensorMeta, node_of
from advisor.model.optable import DTYPES, spec_of
from advisor.model.sizes import ONE, Dim, Size, parse, product
from analyzers.dataflow import Dataflow
from analyzers.strides import BoundInput, is_row_major, mergeable

# float64 runs at 1/2 to 1/64 of the float32 rate and is refused by code generation.
KERNEL_DTYPES = tuple(name for name in DTYPES if name != "float64")
# Column numbers are 32-bit in a kernel, and the last block's may run past the last column.
MAX_COLUMNS = 2**30
AxisRun = tuple[int, ...]
Placement = tuple[AxisRun, ...]


@dataclass(frozen=True)
class IterationSpace:
    """The axes (outermost first), how many of them are rows, and what every value spans.

    `spans[v]` is the set of axes along which value v varies; `operands[(consumer, position)]` the
    bound input read there, for operands from outside; `outputs` the values that leave the group, in
    graph order.
    """

    axes: tuple[Size, ...]
    row_axes: int
    spans: dict[str, frozenset[int]]
    operands: dict[tuple[str, int], BoundInput]
    outputs: tuple[str, ...]

    @property
    def rows(self) -> frozenset[int]:
        """The row axes."""
        return frozenset(range(self.row_axes))

    @property
    def columns(self) -> frozenset[int]:
        """The column axes."""
        return frozenset(range(self.row_axes, len(self.axes)))


@dataclass(frozen=True)
class Shares:
    """Values that a group computes beside its own: who else computes them, who need not be given.

    `again` are members that other kernels compute too: their values are never outputs here.
    `spared` are (value, consumer) pairs outside: that consumer computes the value itself.
    """

    again: frozenset[str] = frozenset()
    spared: frozenset[tuple[str, str]] = frozenset()


ALONE = Shares()


def iteration_space(
    flow: Dataflow, members: frozenset[str], seed: str, shares: Shares = ALONE
) -> IterationSpace:
    """Place a group in one iteration space; `IllegalFusionError` says why it has none."""
    return _Solver(flow, members, seed, shares).solve()


class _Solver:
    def __init__(self, flow: Dataflow, members: frozenset[str], seed: str, shares: Shares) -> None:
        self.flow, self.members, self.shares = flow, members, shares
        self.order = [n for n in flow.graph.nodes if n.id in members]
        seed_node = flow.nodes[seed]
        operand = self.flow.need_meta(str(seed_node.args[0]))
        # Axes of size 1 hold nothing to reduce and stand in nobody's way.
        wide = [d for d, size in enumerate(operand.shape) if not parse(size).is_one]
        reduced = [d for d in seed_node.axes if d in wide]
        if not reduced:
            raise IllegalFusionError("the reduction is over a single element")
        if reduced != wide[-len(reduced) :]:
            raise IllegalFusionError("the reduction is not over the innermost axes")
        self.total = product(operand.shape)
        self.column_size = product(operand.shape[d] for d in reduced)
        if self.flow.hint(self.total) == 0:
            raise IllegalFusionError("there is nothing to compute: a tensor of the group is empty")
        if (width := flow.hint(self.column_size)) > MAX_COLUMNS:
            raise IllegalFusionError(f"{width:,} columns are more than a kernel can number")
        self.device = operand.device
        self.axes = self._refine()
        self.row_axes = self._split_rows()
        if self.row_axes == 0:
            raise IllegalFusionError("a single row: one program would have to do all the work")
        self.placed: dict[str, Placement] = {}
        self.roots: dict[BoundInput, str] = {}

    def solve(self) -> IterationSpace:
        """Assign placements until nothing changes, then verify every use."""
        self._place_full_size()
        while self._propagate():
            pass
        spans: dict[str, frozenset[int]] = {}
        operands: dict[tuple[str, int], BoundInput] = {}
        for node in self.order:
            self._verify(node, spans, operands)
        outputs = self._outputs(spans)
        merged = self._merged_shapes(operands)
        return IterationSpace(self.axes, self.row_axes, spans, merged, outputs)

    # --- axes -------------------------------------------------------------------------------------

    def _refine(self) -> tuple[Size, ...]:
        """The ratios of all suffix products of full-size shapes: the coarsest common refinement."""
        marks = {ONE, self.total, self.column_size}
        for meta in self._full_size_metas():
            suffix = ONE
            for dim in reversed(meta.shape):
                suffix = suffix.times(parse(dim))
                marks.add(suffix)
        ordered = sorted(marks, key=self.flow.hint)
        axes = []
        for inner, outer in pairwise(ordered):
            ratio = outer.over(inner)
            if ratio is None:
                raise IllegalFusionError(
                    "shapes in the group split the same elements in incompatible ways"
                )
            axes.append(ratio)
        return tuple(reversed(axes))

    def _full_size_metas(self) -> list[TensorMeta]:
        found = []
        for node in self.order:
            values = [node.value(), *node.value_args]
            for value in [*values, *self._views_behind(values)]:
                meta = self.flow.meta(value)
                if meta is not None and product(meta.shape) == self.total:
                    found.append(meta)
        return found

    def _views_behind(self, values: list[str]) -> list[str]:
        """View nodes on the way from a member's operand back to another member."""
        found = []
        for start in values:
            value, path = start, []
            while spec_of(self.flow.nodes[node_of(value)[0]].op).kind == "view":
                path.append(value)
                value = str(self.flow.nodes[node_of(value)[0]].args[0])
            if node_of(value)[0] in self.members:
                found += path
        return found

    def _split_rows(self) -> int:
        """The number of leading axes that are rows."""
        inner = ONE
        for position in range(len(self.axes), -1, -1):
            if inner == self.column_size:
                return position
            if position:
                inner = inner.times(self.axes[position - 1])
        raise IllegalFusionError("the reduced size is not a run of axes")

    def _partition(self, shape: tuple[Dim, ...], run: AxisRun) -> Placement:
        """Split an ordered run of axes over the dimensions of a shape of as many elements."""
        left, placement = list(run), []
        for dim in shape:
            want, took, size = parse(dim), [], ONE
            while size != want:
                if not left:
                    raise IllegalFusionError(
                        f"shape {list(shape)} does not follow the axes of the group"
                    )
                axis = left.pop(0)
                took.append(axis)
                size = size.times(self.axes[axis])
            placement.append(tuple(took))
        if left:
            raise IllegalFusionError(f"shape {list(shape)} does not follow the axes of the group")
        return tuple(placement)

    # --- placement --------------------------------------------------------------------------------

    def _place_full_size(self) -> None:
        run = tuple(range(len(self.axes)))
        for node in self.order:
            meta = self.flow.need_meta(node.value())
            if product(meta.shape) == self.total:
                self._place(node.value(), self._partition(meta.shape, run))
            if spec_of(node.op).kind == "reduction":
                operand = str(node.args[0])
                shape = self.flow.need_meta(operand).shape
                if product(shape) != self.total:
                    raise IllegalFusionError("two reductions of the group run over different sizes")
                self._place(operand, self._partition(shape, run))

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
        if run != tuple(range(self.row_axes, len(self.axes))):
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
            self._place(value, self._aligned(operand.shape, shape, placement))

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

    def _aligned(
        self, operand: tuple[Dim, ...], shape: tuple[Dim, ...], placement: Placement
    ) -> Placement:
        """The placement of an operand broadcast to a placed result (right-aligned)."""
        offset = len(shape) - len(operand)
        return tuple(
            () if parse(dim).is_one else placement[offset + position]
            for position, dim in enumerate(operand)
        )

    def _through_views(self, value: str) -> None:
        """Carry a placement across one chain of views, towards the member behind it and back."""
        node = self.flow.nodes[node_of(value)[0]]
        if spec_of(node.op).kind != "view" or node_of(self.flow.base(value))[0] not in self.members:
            return
        source = str(node.args[0])
        inner, outer = self.flow.need_meta(source), self.flow.need_meta(value)
        if value in self.placed:
            # Also where the source is placed already: both sides must agree.
            self._place(source, self._across(node, self.placed[value], outer.shape, inner.shape))
        self._through_views(source)
        if source in self.placed and value not in self.placed and node.op == "reshape":
            self._place(value, self._across(node, self.placed[source], inner.shape, outer.shape))

    def _across(
        self, node: Node, placement: Placement, known: tuple[Dim, ...], wanted: tuple[Dim, ...]
    ) -> Placement:
        if node.op == "expand":
            return self._aligned(wanted, known, placement)
        return self._partition(wanted, tuple(axis for run in placement for axis in run))

    def _place(self, value: str, placement: Placement) -> None:
        axes = [axis for run in placement for axis in run]
        if any(outer >= inner for outer, inner in pairwise(axes)):
            raise IllegalFusionError("a value is combined with itself across rows")
        known = self.placed.setdefault(value, placement)
        if known != placement:
            raise IllegalFusionError(
                "a value is read at another position than the one it was computed for"
            )

    # --- verification -----------------------------------------------------------------------------

    def _verify(
        self,
        node: Node,
        spans: dict[str, frozenset[int]],
        operands: dict[tuple[str, int], BoundInput],
    ) -> None:
        meta = self.flow.need_meta(node.value())
        if meta.dtype not in KERNEL_DTYPES:
            raise IllegalFusionError(f"dtype {meta.dtype} is not supported in a row program")
        if meta.device != self.device:
            raise IllegalFusionError(f"a result is on {meta.device}, the group on {self.device}")
        if node.value() not in self.placed:
            if (self.flow.hint(product(meta.shape), unknown=1)) > self.flow.hint(self.total):
                raise IllegalFusionError("its result is larger than the group, which would repeat")
            raise IllegalFusionError("one of its sizes is none of the group's axes")
        span: frozenset[int] = frozenset()
        for position, arg in enumerate(node.args):
            if not (isinstance(arg, str) and arg.startswith("%")):
                continue
            base = self.flow.base(arg)
            if node_of(base)[0] in self.members:
                if arg not in self.placed:
                    raise IllegalFusionError("an operand does not share the iteration space")
                span |= spans[base]
            else:
                operands[(node.id, position)] = bound = self._bind(arg)
                span |= {axis for axis, stride in enumerate(bound.strides) if stride is not None}
        if spec_of(node.op).kind == "reduction":
            if not self.columns() <= span:
                raise IllegalFusionError("a reduction is over a value repeated along the columns")
            span -= self.columns()
        spans[node.value()] = span

    def columns(self) -> frozenset[int]:
        """The column axes."""
        return frozenset(range(self.row_axes, len(self.axes)))

    def _bind(self, value: str) -> BoundInput:
        """Strides of an outside operand along every axis, from its own strides and its placement.

        An expanded tensor is read where it is stored: a compiler may lay the repetition out in
        memory.
        """
        if self.flow.nodes[node_of(self.flow.base(value))[0]].hidden:
            raise IllegalFusionError("it would read a value from inside another op")
        root, strides = self._stored(value, self.placed[value])
        while (node := self.flow.nodes[node_of(value)[0]]).op == "expand":
            value = str(node.args[0])
        meta = self.flow.need_meta(value)
        if meta.dtype not in KERNEL_DTYPES:
            raise IllegalFusionError(f"input dtype {meta.dtype} is not supported in a row program")
        if meta.device != self.device:
            raise IllegalFusionError(
                f"an input is on {meta.device}, the group runs on {self.device}"
            )
        for stride in strides:
            if stride is not None:
                self.flow.hint(stride)  # a site is described in numbers
        bound = BoundInput(value, strides)
        self.roots[bound] = root
        if not all(
            mergeable(self.axes, bound, axis) for axis in range(self.row_axes + 1, len(self.axes))
        ):
            raise IllegalFusionError("an input does not walk its columns with one stride")
        return bound

    def _merged_shapes(
        self, operands: dict[tuple[str, int], BoundInput]
    ) -> dict[tuple[str, int], BoundInput]:
        """The operands with two shapes of one tensor, if they are read in one way, as one input."""
        ways: dict[BoundInput, set[str]] = {}
        for bound, root in self.roots.items():
            ways.setdefault(BoundInput(root, bound.strides), set()).add(bound.value)
        # A tensor that is read in two ways is two inputs, which must have two names.
        taken = {bound.value: bound for bound in self.roots}
        shared = {
            whole: names
            for whole, names in ways.items()
            if len(names) > 1 and taken.get(whole.value, whole) == whole
        }
        renamed = {
            BoundInput(name, whole.strides): whole
            for whole, names in shared.items()
            for name in names
        }
        return {place: renamed.get(bound, bound) for place, bound in operands.items()}

    def _stored(self, value: str, placement: Placement) -> tuple[str, tuple[Size | None, ...]]:
        """The value behind all views that leave an operand's strides alone, and those strides."""
        strides, expanded = self._strides(value, placement), True
        while spec_of((node := self.flow.nodes[node_of(value)[0]]).op).kind == "view":
            source = str(node.args[0])
            inner, outer = self.flow.need_meta(source), self.flow.need_meta(value)
            try:
                placement = self._across(node, placement, outer.shape, inner.shape)
            except IllegalFusionError:
                break
            expanded &= node.op == "expand"
            found = self._strides(source, placement)
            if not expanded and (node.alias_of is None or found != strides):
                break
            value, strides = source, found
        return value, strides

    def _strides(self, value: str, placement: Placement) -> tuple[Size | None, ...]:
        """The stride of a placed value along every axis, None where it does not vary."""
        meta = self.flow.need_meta(value)
        strides: list[Size | None] = [None] * len(self.axes)
        for dim, run in enumerate(placement):
            stride = parse(meta.strides[dim])
            if stride.coefficient == 0:
                continue
            for axis in reversed(run):
                strides[axis] = stride
                stride = stride.times(self.axes[axis])
        return tuple(strides)

    def _outputs(self, spans: dict[str, frozenset[int]]) -> tuple[str, ...]:
        """Values that somebody outside reads; each must be written whole, in row-major order."""
        found = []
        everything = frozenset(range(len(self.axes)))
        for node in self.order:
            value = node.value()
            if node.id in self.shares.again or not self._is_needed_outside(value):
                continue
            if node.hidden:
                raise IllegalFusionError("a value from inside an op would be needed outside")
            placed = frozenset(axis for run in self.placed[value] for axis in run)
            # A value may have axes along which it only repeats: the kernel computes it once.
            if spans[value] != placed or placed not in (everything, everything - self.columns()):
                raise IllegalFusionError("a broadcast value is needed outside the group")
            if not is_row_major(self.flow.need_meta(value)):
                raise IllegalFusionError("an output is not laid out in row-major order")
            found.append(value)
        if not found:
            raise IllegalFusionError("nothing of the group is used")
        return tuple(found)

    def _is_needed_outside(self, value: str) -> bool:
        return value in self.flow.escapes_graph or any(
            use.consumer not in self.members and (value, use.consumer) not in self.shares.spared
            for use in self.flow.uses.get(value, ())
        )
