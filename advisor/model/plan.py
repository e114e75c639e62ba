"""`FusionPlan`: closed data for one kernel signature and its sites.

A plan can be stored, shared and replayed, so it is untrusted input: `check()` is that of
`plan_checks`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Location, Phase, Record
from advisor.model.gemm import PlanProduct
from advisor.model.graph import Arg, AttributeValue
from advisor.model.guards import Guard, Prediction
from advisor.model.members import Member, MemberSizes
from advisor.model.optable import FLOAT_DTYPES, RANDOM
from advisor.model.plan_checks import PLAN_SCHEMA_VERSION, check_plan
from advisor.model.scan import PlanState
from advisor.model.signature import signature_of
from advisor.model.sizes import RunTimeSizes
from advisor.model.spaces import OVER, Space, space_of

Family = Literal["row_program", "horizontal", "scan", "gemm"]
Route = Literal["generated_kernel"]


class PlanInput(Record, frozen=True, kw_only=True):
    """A tensor read by the kernel over the iteration space [row axes..., columns].

    `spans[i]` says whether it varies along row axis i, the last one whether along the columns.
    Where these are several axes, a value of a part of a row, the same throughout each segment of
    it, says in `segments` along which of them it varies; it is read at the index that its strides
    give, products of single axes. A `dense` input is read at the linear index; any other is
    addressed by run-time strides, one per spanned axis. `unit_stride` promises a stride of 1 along
    the innermost column axis. Of a scan, one that is `reverse` holds the first step last. One that
    `counts` (first, step) along the only axis that it spans is computed where it would be read. One
    that is `gathered` is rows of a table, numbered by the earlier input of that name (`gathers`).
    """

    name: str
    dtype: str
    spans: tuple[bool, ...]
    dense: bool
    unit_stride: bool = True
    segments: tuple[bool, ...] = ()
    reverse: bool = False
    counts: tuple[int, int] | None = None
    gathered: str | None = None

    @property
    def traffic(self) -> Space | None:
        """The space whose every element is read once; None for a part of a row, which is small, and
        for what is computed."""
        return None if self.segments or self.counts else space_of(self.spans)


class PlanOp(Record, frozen=True, kw_only=True):
    """`name = op(args)`; arguments are input names, earlier values or literals.

    A reduction makes a row value of a tile; with the attribute `over: rows`, a value per column.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    dtype: str
    space: Space
    attributes: dict[str, AttributeValue] = {}

    @property
    def correction(self) -> float:
        """What a `var` takes off the number of columns in its divisor."""
        value = self.attributes["correction"]
        if not isinstance(value, (int, float)):
            raise InvalidRecordError(f"{self.name}: correction is not a number")
        return float(value)

    @property
    def over_rows(self) -> bool:
        """Whether this is a reduction over the rows: known only when all of them were read."""
        return OVER in self.attributes


class PlanOutput(Record, frozen=True, kw_only=True):
    """A value written whole.

    [rows, columns] for a tile, [rows] for a row value, [columns] for what needs all rows: in that
    order, or where `strided`, with run-time strides, one an axis (`unit_stride` as of inputs). One
    that is `turned` has a stride of 1 along the column axis outside the innermost one. Of a scan,
    all steps' values (`reverse` as of inputs), or the `last` step's alone, as of a product.
    """

    value: str
    dtype: str
    space: Space
    strided: bool = False
    unit_stride: bool = True
    reverse: bool = False
    last: bool = False
    turned: bool = False

    def along(self, row_axes: int, column_axes: int) -> tuple[bool, ...]:
        """Whether it varies along each axis; the steps of a scan are the last row axis."""
        columns = (self.space != "row",) * column_axes
        if self.last:
            return (*(True,) * (row_axes - 1), False, *columns)
        return (*(self.space != "column",) * row_axes, *columns)

    def shape(self, row_sizes: Sequence[int], column_sizes: Sequence[int]) -> tuple[int, ...]:
        """One dimension an axis, of size 1 where the value is the same along it."""
        spans = self.along(len(row_sizes), len(column_sizes))
        sizes = (*row_sizes, *column_sizes)
        return tuple(size if span else 1 for size, span in zip(sizes, spans, strict=True))


class Site(Record, frozen=True, kw_only=True):
    """One occurrence: the nodes replaced, the values bound, the sizes seen when it was captured.

    `row_sizes` and `columns` are the iteration space, `column_sizes` the sizes of the column axes
    where there are several. `input_strides[i]` are the strides of input i over [row axes..., column
    axes...] (0 where it does not span), `output_strides` those of the outputs where one is strided;
    `executions` how often it runs in one step. Of a horizontal plan, `members` have the sizes;
    `columns` are all their elements. `input_offsets` say, of a scan, which element of its memory
    each input begins at; `table_rows`, where a table is read, its rows (0 for any other input).
    `run_time` has the sizes where the graph was compiled for several: those beside it are then one
    example, what the graph was captured with.
    """

    graph: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    row_sizes: tuple[int, ...]
    columns: int
    input_strides: tuple[tuple[int, ...], ...]
    location: Location = Location()
    executions: float = 1.0
    column_sizes: tuple[int, ...] = ()
    output_strides: tuple[tuple[int, ...], ...] = ()
    members: tuple[MemberSizes, ...] = ()
    input_offsets: tuple[int, ...] = ()
    run_time: RunTimeSizes | None = None
    table_rows: tuple[int, ...] = ()

    @property
    def column_axes(self) -> tuple[int, ...]:
        """The sizes of the column axes, also where there is one."""
        return self.column_sizes or (self.columns,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all axes, outermost first."""
        return (*self.row_sizes, *self.column_axes)

    @property
    def rows(self) -> int:
        """The number of rows of the iteration space."""
        total = 1
        for size in self.row_sizes:
            total *= size
        return total


class FusionPlan(Record, frozen=True, kw_only=True):
    """One kernel signature, its ops in topological order, and the N sites it replaces.

    A horizontal one holds several independent programs, its `members`. The ops of a scan are those
    of one step: its last row axis are the steps; what a step reads of the one before are `states`.
    The ops of a gemm follow a `product`, whose depth is the last row axis.
    """

    schema_version: int = PLAN_SCHEMA_VERSION
    id: str
    rule: str
    title: str
    family: Family
    phase: Phase
    level: Literal["dynamo", "post_grad"] = "post_grad"
    route: Route = "generated_kernel"
    row_axes: int
    inputs: tuple[PlanInput, ...]
    ops: tuple[PlanOp, ...]
    outputs: tuple[PlanOutput, ...]
    guards: tuple[Guard, ...] = ()
    sites: tuple[Site, ...] = ()
    prediction: Prediction | None = None
    backward_plan: str | None = None
    column_axes: int = 1
    members: tuple[Member, ...] = ()
    states: tuple[PlanState, ...] = ()
    product: PlanProduct | None = None

    def check(self) -> None:
        check_plan(self)

    def along(self, item: PlanInput) -> tuple[bool, ...]:
        """Whether an input varies along each of [row axes..., column axes...]."""
        return (*item.spans[:-1], *(item.segments or item.spans[-1:] * self.column_axes))

    @property
    def stepped(self) -> bool:
        """Whether a program walks along the last row axis: the steps of a scan, a depth."""
        return bool(self.states) or self.product is not None

    @property
    def has_columns_apart(self) -> bool:
        """Whether the columns of some tile may not lie side by side in memory."""
        written = [o.unit_stride for o in self.outputs if o.strided]
        apart = any(self.column_axes > 1 or not beside for beside in written)
        return apart or self.reads_columns_apart

    @property
    def reads_columns_apart(self) -> bool:
        """Whether those of a tile that is read may not."""
        read = [i.unit_stride for i in self.inputs if i.traffic == "tile" and not i.dense]
        return any(self.column_axes > 1 or not beside for beside in read)

    @property
    def reads_vectors(self) -> bool:
        """Whether an input has one value a column, the same for all rows."""
        return any(item.traffic == "column" for item in self.inputs)

    @property
    def in_tiles(self) -> bool:
        """Whether a row is written across its innermost columns, so in blocks of two axes."""
        return any(output.turned for output in self.outputs)

    @property
    def strided_outputs(self) -> bool:
        """Whether an output is written with strides."""
        return any(output.strided for output in self.outputs)

    def stored_order(self, position: int) -> list[int]:
        """The axes of an output from the widest stride at the first site to the narrowest.

        Without sites in their own order, the last two exchanged where it is turned.
        """
        axes, output = list(range(self.row_axes + self.column_axes)), self.outputs[position]
        if output.strided and self.sites:
            strides = self.sites[0].output_strides[position]
            axes.sort(key=lambda axis: -strides[axis])
        elif output.turned:
            axes[-2:] = axes[:-3:-1]
        return axes

    def late_values(self) -> frozenset[str]:
        """The values that need all rows: reductions over them, and what is computed from these."""
        found: set[str] = set()
        for op in self.ops:
            if op.over_rows or found.intersection(a for a in op.args if isinstance(a, str)):
                found.add(op.name)
        return frozenset(found)

    def drawn_values(self) -> frozenset[str]:
        """Random numbers, also where the graph makes them narrower: kernels keep them float32."""
        found: set[str] = set()
        for op in self.ops:
            narrowed = op.op == "cast" and op.args[0] in found and op.dtype in FLOAT_DTYPES
            if op.op == RANDOM or narrowed:
                found.add(op.name)
        return frozenset(found)

    def signature(self) -> str:
        """The canonical text of the kernel: all that changes generated code, nothing else."""
        return signature_of(self)


def plan_id(rule: str, module_pattern: str, signature: str) -> str:
    """The id of a plan: a hash of its rule, its place in the model and its canonical subgraph."""
    return hashlib.sha256("\0".join((rule, module_pattern, signature)).encode()).hexdigest()[:16]
