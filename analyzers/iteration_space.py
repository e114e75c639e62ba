"""Can these ops run over one iteration space [row axes..., columns]? Where do values live in it?

The shapes of a group have common axes (`axes`), on which every dimension of every value is placed
(`placement`). A group is legal if all placements agree, every reduction runs over exactly the
column axes or exactly the row axes, and every tensor can be addressed by one stride per axis, of
which a kernel takes a few. Values of a part of a row (one per channel of a group of them) vary
along some of the column axes. A reduction over the rows is known when all rows were read: what
follows from it is one value per column, and no row may read it. What is reduced to one value is a
lone row: many programs share it in two launches, so what is reduced may need no other reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.errors import IllegalFusionError
from advisor.model.graph import Node, node_of
from advisor.model.launch import MAX_TILE_ELEMENTS
from advisor.model.optable import DTYPES, FLOAT8_MAX, RANDOM, spec_of
from advisor.model.plan_checks import MAX_COLUMN_AXES, MAX_ROW_AXES
from advisor.model.sizes import ONE, Size, parse, product
from analyzers.axes import MAX_COLUMNS, AxisRun, Placement, axes_of, copies, innermost
from analyzers.dataflow import Dataflow
from analyzers.placement import placements
from analyzers.strides import BoundInput, Lookup, Strides, has_no_gaps, merged_axes

__all__ = ["ALONE", "MAX_COLUMNS", "IterationSpace", "Shares", "iteration_space", "reads_all_axes"]

# float64 runs at 1/2 to 1/64 of the float32 rate and is refused by code generation.
KERNEL_DTYPES = tuple(name for name in DTYPES if name != "float64")
LONE_ROW = "a single row, which is reduced twice: one program would have to do all the work"
Operands = dict[tuple[str, int], BoundInput]


@dataclass(frozen=True)
class IterationSpace:
    """The axes (outermost first), which of them are rows or columns, and what every value spans.

    `spans[v]` is the set of axes along which value v varies; `operands[(consumer, position)]` the
    bound input read there, for operands from outside; `outputs` the values that leave the group, in
    graph order, `layouts` the strides of each along the axes. `late` are the values that need all
    rows: reductions over them, and what follows. A `lone` row is all there is. Inputs in `lookups`
    are read from their tables.
    """

    axes: tuple[Size, ...]
    row_run: AxisRun
    column_run: AxisRun
    spans: dict[str, frozenset[int]]
    operands: Operands
    outputs: tuple[str, ...]
    layouts: dict[str, Strides]
    late: frozenset[str] = frozenset()
    lone: bool = False
    lookups: Mapping[BoundInput, Lookup] = field(default_factory=dict)

    @property
    def row_axes(self) -> int:
        """How many axes are rows."""
        return len(self.row_run)

    @property
    def rows(self) -> frozenset[int]:
        """The row axes."""
        return frozenset(self.row_run)

    @property
    def columns(self) -> frozenset[int]:
        """The column axes."""
        return frozenset(self.column_run)

    @property
    def walked_rows(self) -> tuple[AxisRun, ...]:
        """The row axes, those together that all tensors walk as one."""
        return merged_axes(self.axes, self.row_run, self._walks)

    @property
    def walked_columns(self) -> tuple[AxisRun, ...]:
        """The column axes, likewise."""
        return merged_axes(self.axes, self.column_run, self._walks)

    @property
    def _walks(self) -> list[Strides]:
        """The strides of all tensors."""
        bounds = dict.fromkeys(bound.strides for bound in self.operands.values())
        indices = (lookup.index.strides for lookup in self.lookups.values())
        return [*bounds, *indices, *self.layouts.values()]

    @property
    def column_size(self) -> Size:
        """How many columns there are."""
        total = ONE
        for axis in self.columns:
            total = total.times(self.axes[axis])
        return total


@dataclass(frozen=True)
class Shares:
    """Values that a group computes beside its own: who else computes them, who need not be given.

    `again` are members that other kernels compute too: their values are never outputs here.
    `spared` are (value, consumer) pairs outside: that consumer computes the value itself.
    """

    again: frozenset[str] = frozenset()
    spared: frozenset[tuple[str, str]] = frozenset()


ALONE = Shares()


class MissingReaderError(IllegalFusionError):
    """`value` could be in the group together with all that reads it, but not without them."""

    def __init__(self, what: str, value: str) -> None:
        super().__init__(what)
        self.value = value


def iteration_space(
    flow: Dataflow,
    members: frozenset[str],
    seed: str,
    shares: Shares = ALONE,
    width: Size | None = None,
) -> IterationSpace:
    """Place a group in one iteration space; `IllegalFusionError` says why it has none.

    `width` is the number of columns where it is known, as behind a matrix product.
    """
    return _Verifier(flow, members, seed, shares, width).space()


def reads_all_axes(operands: Operands, axes: tuple[Size, ...]) -> bool:
    """Whether the inputs together vary along every axis."""
    read = {
        axis
        for bound in operands.values()
        for axis, stride in enumerate(bound.strides)
        if stride is not None
    }
    return len(read) == len(axes)


class _Verifier:
    """The placements of a group, and the check of every use of a value."""

    def __init__(
        self,
        flow: Dataflow,
        members: frozenset[str],
        seed: str,
        shares: Shares,
        width: Size | None,
    ) -> None:
        self.flow, self.members, self.shares, self.seed = flow, members, shares, seed
        self.order = [flow.nodes[name] for name in sorted(members, key=flow.index.__getitem__)]
        self.reduces = any(spec_of(node.op).kind == "reduction" for node in self.order)
        self.device = flow.need_meta(flow.nodes[seed].value()).device
        self.axes = axes_of(flow, self.order, members, seed, width)
        self.placed = placements(flow, self.order, members, self.axes)
        self.rows, self.columns = frozenset(self.axes.row_run), frozenset(self.axes.column_run)
        self.spans: dict[str, frozenset[int]] = {}
        self.operands: Operands = {}
        self.late: set[str] = set()
        self.reduced: set[str] = set()
        self.roots: dict[BoundInput, str] = {}

    def space(self) -> IterationSpace:
        """The space, once every use in it is found legal."""
        for node in self.order:
            self._verify(node)
        outputs = self._outputs()
        space = IterationSpace(
            axes=self.axes.sizes,
            row_run=self.axes.row_run,
            column_run=self.axes.column_run,
            spans=self.spans,
            operands=self._merged_shapes(),
            outputs=outputs,
            layouts={value: self._strides(value, self.placed[value]) for value in outputs},
            late=frozenset(self.late),
            lone=self.axes.lone,
        )
        self._check_sizes()
        for node in copies(self.flow, self.order) if self.reduces else ():
            self._check_copy(node, space)
        for name, walked, most in (
            ("rows", space.walked_rows, MAX_ROW_AXES),
            ("columns", space.walked_columns, MAX_COLUMN_AXES),
        ):
            if len(walked) > most:
                raise IllegalFusionError(
                    f"its tensors walk the {name} along {len(walked)} axes, a kernel along {most}"
                )
        return space

    # --- members ----------------------------------------------------------------------------------

    def _verify(self, node: Node) -> None:
        self._check_meta(node)
        span: frozenset[int] = frozenset()
        late = reduced = False
        for position, arg in enumerate(node.args):
            if not (isinstance(arg, str) and arg.startswith("%")):
                continue
            base = self.flow.base(arg)
            if node_of(base)[0] in self.members:
                if arg not in self.placed:
                    raise IllegalFusionError("an operand does not share the iteration space")
                span |= self.spans[base]
                late |= base in self.late
                reduced |= base in self.reduced
            else:
                self.operands[(node.id, position)] = bound = self._bind(arg)
                span |= {axis for axis, stride in enumerate(bound.strides) if stride is not None}
        if node.op == RANDOM:
            span = self._drawn(node)
        if late and (span & self.rows or spec_of(node.op).kind == "reduction"):
            raise IllegalFusionError("it needs a reduction over all rows: that takes a second pass")
        if spec_of(node.op).kind == "reduction":
            if reduced and self.axes.lone:
                raise IllegalFusionError(LONE_ROW)
            span, late = self._reduced(node, span)
            reduced = True
        if reduced:
            self.reduced.add(node.value())
        self.spans[node.value()] = span
        if late:
            self.late.add(node.value())

    def _drawn(self, node: Node) -> frozenset[int]:
        """The span of random numbers, which are drawn at the linear index that the kernel walks."""
        if node.id in self.shares.again:
            raise IllegalFusionError("random numbers are drawn once, by whoever reads them first")
        span = frozenset(axis for run in self.placed[node.value()] for axis in run)
        whole = (self.rows | self.columns, self.rows, self.columns)
        walked = [a for a in (*self.axes.row_run, *self.axes.column_run) if a in span]
        if span not in whole or walked != sorted(walked):
            raise IllegalFusionError("random numbers are drawn in another order than memory has")
        return span

    def _check_sizes(self) -> None:
        """A kernel learns its sizes from what it reads, of which random numbers are not."""
        drawn = [node.id for node in self.order if node.op == RANDOM]
        if drawn and self.seed not in drawn and not reads_all_axes(self.operands, self.axes.sizes):
            raise IllegalFusionError("random numbers by themselves: nothing as large is read")

    def _check_copy(self, node: Node, space: IterationSpace) -> None:
        """Refuse a copy in another order whose sectors no tile of rows and columns would fill.

        A program has neighbours along the last row axis, and along the innermost column axis; along
        the one outside it where it takes the columns in tiles: of a row that many programs share,
        or of one that is held in segments of a power of two.
        """
        if self.late:
            raise IllegalFusionError("a copy in the other order, beside sums over all rows")
        along = innermost(self.flow, node, self.axes)
        if along in (self.axes.row_run[-1], self.axes.column_run[-1]) and not self.axes.lone:
            return
        walked = space.walked_columns
        inner = self.flow.hint(self.axes.sizes[self.axes.column_run[-1]], unknown=0)
        held = self.flow.hint(space.column_size, unknown=0) <= MAX_TILE_ELEMENTS
        whole = len(walked) == 2 and 0 < inner == inner & -inner and held
        if not (len(walked) > 1 and along == walked[-2][-1] and (self.axes.lone or whole)):
            raise IllegalFusionError("a copy in an order of which no tile fills whole sectors")

    def _check_meta(self, node: Node) -> None:
        meta = self.flow.need_meta(node.value())
        read = [self.flow.need_meta(value).dtype for value in node.value_args]
        if node.op != "cast" and (eight := FLOAT8_MAX.keys() & {meta.dtype, *read}):
            raise IllegalFusionError(f"nothing is computed in {min(eight)}")
        if meta.dtype not in KERNEL_DTYPES:
            raise IllegalFusionError(f"dtype {meta.dtype} is not supported in a row program")
        if meta.device != self.device:
            raise IllegalFusionError(f"a result is on {meta.device}, the group on {self.device}")
        if node.value() not in self.placed:
            if (self.flow.hint(product(meta.shape), unknown=1)) > self.flow.hint(self.axes.total):
                raise IllegalFusionError("its result is larger than the group, which would repeat")
            raise MissingReaderError("one of its sizes is none of the group's axes", node.value())

    def _reduced(self, node: Node, span: frozenset[int]) -> tuple[frozenset[int], bool]:
        """What a reduction leaves of its operand's span, and whether it runs over the rows."""
        if self._reduces_rows(node):
            if span != self.rows | self.columns:
                raise IllegalFusionError("a reduction over the rows is of a value that repeats")
            return span - self.rows, True
        if not self.columns <= span:
            raise IllegalFusionError("a reduction is over a value repeated along the columns")
        return span - self.columns, False

    def _reduces_rows(self, node: Node) -> bool:
        """Whether a placed reduction runs over the row axes."""
        placement = self.placed[str(node.args[0])]
        return frozenset(axis for dim in node.axes for axis in placement[dim]) == self.rows

    # --- inputs -----------------------------------------------------------------------------------

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
        return bound

    def _merged_shapes(self) -> Operands:
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
        return {place: renamed.get(bound, bound) for place, bound in self.operands.items()}

    def _stored(self, value: str, placement: Placement) -> tuple[str, Strides]:
        """The value behind all views that leave an operand's strides alone, and those strides."""
        strides, expanded = self._strides(value, placement), True
        while spec_of((node := self.flow.nodes[node_of(value)[0]]).op).kind == "view":
            source = str(node.args[0])
            inner, outer = self.flow.need_meta(source), self.flow.need_meta(value)
            try:
                placement = self.axes.across(node, placement, outer.shape, inner.shape)
            except IllegalFusionError:
                break
            expanded &= node.op == "expand"
            found = self._strides(source, placement)
            if not expanded and (node.alias_of is None or found != strides):
                break
            value, strides = source, found
        return value, strides

    def _strides(self, value: str, placement: Placement) -> Strides:
        """The stride of a placed value along every axis, None where it does not vary."""
        meta = self.flow.need_meta(value)
        strides: list[Size | None] = [None] * len(self.axes.sizes)
        for dim, run in enumerate(placement):
            stride = parse(meta.strides[dim])
            if stride.coefficient == 0:
                continue
            for axis in reversed(run):
                strides[axis] = stride
                stride = stride.times(self.axes.sizes[axis])
        return tuple(strides)

    # --- outputs ----------------------------------------------------------------------------------

    def _outputs(self) -> tuple[str, ...]:
        """Values that somebody outside reads; each must be written whole, without gaps."""
        found = []
        for node in self.order:
            value = node.value()
            if node.id in self.shares.again or not self._is_needed_outside(value):
                continue
            if node.hidden:
                raise IllegalFusionError("a value from inside an op would be needed outside")
            placed = frozenset(axis for run in self.placed[value] for axis in run)
            placed |= self.rows if self.axes.lone else frozenset()
            whole = (self.columns,) if value in self.late else (self.rows | self.columns, self.rows)
            # A value may have axes along which it only repeats: the kernel computes it once.
            if self.spans[value] != placed or placed not in whole:
                raise MissingReaderError("a broadcast value is needed outside the group", value)
            if not has_no_gaps(self.flow.need_meta(value)):
                raise IllegalFusionError("an output would be stored with gaps, or over itself")
            found.append(value)
        if not found:
            raise IllegalFusionError("nothing of the group is used")
        return tuple(found)

    def _is_needed_outside(self, value: str) -> bool:
        return value in self.flow.escapes_graph or any(
            use.consumer not in self.members and (value, use.consumer) not in self.shares.spared
            for use in self.flow.uses.get(value, ())
        )
