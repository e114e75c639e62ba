"""`FusionPlan`: closed data for one kernel signature and its sites.

A plan can be stored, shared and replayed, so it is untrusted input: `check()` admits only ops of
the table, known dtypes, generated value names and bounded sizes; nothing of it is ever pasted into
source unchecked.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Literal, NoReturn

from advisor.errors import InvalidRecordError
from advisor.model.base import Location, Phase, Record
from advisor.model.gemm import PlanProduct, check_product, check_product_outputs, product_space
from advisor.model.graph import Arg, AttributeValue, literal_value
from advisor.model.guards import Guard, Prediction
from advisor.model.members import Member, MemberSizes, check_members
from advisor.model.optable import DTYPES, FLOAT8_MAX, FLOAT_DTYPES, RANDOM, spec_of
from advisor.model.scan import PlanState, check_states, check_steps
from advisor.model.signature import signature_of

PLAN_SCHEMA_VERSION = 1
MAX_OPS, MAX_TENSORS, MAX_SITES, MAX_SIZE = 512, 64, 100_000, 2**40
MAX_ROW_AXES, MAX_COLUMN_AXES = 6, 4
_INPUT = re.compile(r"in\d{1,3}")
_VALUE = re.compile(r"v\d{1,4}")
_PLAN_ID = re.compile(r"[0-9a-f]{16}")

Space = Literal["tile", "row", "column", "scalar"]
# The attribute of a reduction over the rows; one without it reduces the columns.
OVER, ROWS = "over", "rows"
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
    `counts` (first, step) along the only axis that it spans is computed where it would be read.
    """

    name: str
    dtype: str
    spans: tuple[bool, ...]
    dense: bool
    unit_stride: bool = True
    segments: tuple[bool, ...] = ()
    reverse: bool = False
    counts: tuple[int, int] | None = None

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
    order, or where `strided`, with run-time strides, one an axis (`unit_stride` as of inputs). Of a
    scan, all steps' values (`reverse` as of inputs), or the `last` step's alone, as of a product.
    """

    value: str
    dtype: str
    space: Space
    strided: bool = False
    unit_stride: bool = True
    reverse: bool = False
    last: bool = False

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
    each input begins at.
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
        _check_plan(self)

    def along(self, item: PlanInput) -> tuple[bool, ...]:
        """Whether an input varies along each of [row axes..., column axes...]."""
        return (*item.spans[:-1], *(item.segments or item.spans[-1:] * self.column_axes))

    @property
    def stepped(self) -> bool:
        """Whether a program walks along the last row axis: the steps of a scan, a depth."""
        return bool(self.states) or self.product is not None

    @property
    def strided_outputs(self) -> bool:
        """Whether an output is written with strides."""
        return any(output.strided for output in self.outputs)

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


def _fail(plan: FusionPlan, what: str) -> NoReturn:
    raise InvalidRecordError(what, where=f"plan {plan.id[:32]!r}")


def _check_plan(plan: FusionPlan) -> None:
    if plan.schema_version != PLAN_SCHEMA_VERSION:
        _fail(plan, f"schema version {plan.schema_version} is not {PLAN_SCHEMA_VERSION}")
    if not _PLAN_ID.fullmatch(plan.id) or not (
        plan.backward_plan is None or _PLAN_ID.fullmatch(plan.backward_plan)
    ):
        _fail(plan, "id is not 16 hex digits")
    check_states(plan)
    check_product(plan)
    if (plan.family == "horizontal") != bool(plan.members):
        _fail(plan, f"a {plan.family} with {len(plan.members)} members")
    if plan.members:
        check_members(plan, _check_plan, MAX_OPS)
        return
    if (
        not 1 <= len(plan.ops) <= MAX_OPS
        or not plan.outputs
        or not 0 <= plan.row_axes <= MAX_ROW_AXES
        or not 1 <= plan.column_axes <= MAX_COLUMN_AXES
    ):
        _fail(plan, "no ops, no outputs or too many axes")
    if len(plan.inputs) + len(plan.outputs) > MAX_TENSORS or len(plan.sites) > MAX_SITES:
        _fail(plan, "too many tensors or sites")
    spaces = _check_inputs(plan)
    spaces |= {state.name: (state.space, state.dtype) for state in plan.states}
    spaces |= product_space(plan)
    _check_ops(plan, spaces)
    check_steps(plan)
    _check_late(plan)
    _check_outputs(plan, spaces)
    if plan.column_axes > 1:
        _check_parts(plan)
    for site in plan.sites:
        _check_site(plan, site)
    check_product_outputs(plan)


def _check_inputs(plan: FusionPlan) -> dict[str, tuple[Space, str]]:
    """Space and dtype of every input by name."""
    spaces: dict[str, tuple[Space, str]] = {}
    for position, item in enumerate(plan.inputs):
        if item.name != f"in{position}" or not _INPUT.fullmatch(item.name):
            _fail(plan, f"input {position} is not named in{position}")
        if item.dtype not in DTYPES or len(item.spans) != plan.row_axes + 1:
            _fail(plan, f"{item.name}: bad dtype or rank")
        if item.dense and not (all(item.spans) or all(item.spans[:-1]) or not any(item.spans[:-1])):
            _fail(plan, f"{item.name}: a dense input spans all rows or none")
        if item.segments and not _is_part(plan, item):
            _fail(plan, f"{item.name}: its segments are no part of the columns")
        if item.counts is not None and not _is_counted(plan, item):
            _fail(plan, f"{item.name}: it counts along no single axis")
        spaces[item.name] = (space_of(item.spans), item.dtype)
    return spaces


def _is_counted(plan: FusionPlan, item: PlanInput) -> bool:
    """Whether an input that counts does so along the rows or the columns, which are one axis."""
    alone = plan.column_axes == 1 if item.spans[-1] else plan.row_axes == 1
    plain = item.dense and not item.segments and plan.family == "row_program"
    return plain and item.dtype == "int64" and sum(item.spans) == 1 and alone


def _is_part(plan: FusionPlan, item: PlanInput) -> bool:
    """Whether an input with segments varies along some of several column axes, by its strides."""
    some = any(item.segments) and not all(item.segments)
    return len(item.segments) == plan.column_axes and some and item.spans[-1] and not item.dense


def space_of(spans: tuple[bool, ...]) -> Space:
    """Where a value lives in registers, from the axes it varies along."""
    rows, column = any(spans[:-1]), spans[-1]
    return ("tile" if column else "row") if rows else ("column" if column else "scalar")


def join_space(first: Space, second: Space) -> Space:
    """The space of a pointwise result of two operands."""
    rows = "tile" in (first, second) or "row" in (first, second)
    columns = "tile" in (first, second) or "column" in (first, second)
    return ("tile" if columns else "row") if rows else ("column" if columns else "scalar")


def _check_ops(plan: FusionPlan, spaces: dict[str, tuple[Space, str]]) -> None:
    for position, op in enumerate(plan.ops):
        spec = spec_of(op.op)
        if spec.kind not in ("pointwise", "reduction"):
            _fail(plan, f"{op.op} may not occur in a plan")
        if op.name != f"v{position}" or not _VALUE.fullmatch(op.name):
            _fail(plan, f"op {position} is not named v{position}")
        if (
            len(op.args) != spec.arity
            or op.dtype not in DTYPES
            or set(op.attributes) - ({OVER} if spec.kind == "reduction" else set())
            != set(spec.attributes)
        ):
            _fail(plan, f"{op.name}: arguments, dtype or attributes do not fit {op.op}")
        space = _operand_space(plan, op, spaces)
        eight = {op.dtype, *(spaces[arg][1] for arg in op.args if arg in spaces)} & set(FLOAT8_MAX)
        if eight and op.op != "cast":
            _fail(plan, f"{op.name}: nothing is computed in {min(eight)}")
        if op.op == RANDOM:
            space = _drawn_space(plan, op, spaces)
        if spec.kind == "reduction":
            space = _reduced_space(plan, op, space)
        _check_attributes(plan, op)
        if op.space != space:
            _fail(plan, f"{op.name}: space is {op.space}, its operands make it {space}")
        spaces[op.name] = (space, op.dtype)


def _drawn_space(plan: FusionPlan, op: PlanOp, spaces: dict[str, tuple[Space, str]]) -> Space:
    """Where random numbers live: the op itself says, its seed is one number for all of them."""
    if spaces[str(op.args[0])] != ("scalar", "int64") or op.dtype != "float32":
        _fail(plan, f"{op.name}: random numbers are float32, from one int64 seed")
    given = [plan.along(item) for item in plan.inputs]
    if op.space == "scalar" or not all(any(along) for along in zip(*given, strict=True)):
        _fail(plan, f"{op.name}: nothing says how many random numbers there are")
    return op.space


def _reduced_space(plan: FusionPlan, op: PlanOp, operand: Space) -> Space:
    """Where the result of a reduction lives."""
    needed = ("tile",) if op.over_rows else ("tile", "column")
    if operand not in needed or op.dtype not in FLOAT_DTYPES:
        axes = "rows and columns" if op.over_rows else "columns"
        _fail(plan, f"{op.name}: {op.op} needs a floating-point operand that spans the {axes}")
    if op.over_rows:
        return "column"
    return "row" if operand == "tile" else "scalar"


def _check_late(plan: FusionPlan) -> None:
    """What needs all rows is one value per column, of values that need none or all of them."""
    late = plan.late_values()
    reduced: set[str] = set()
    for op in plan.ops:
        args = {arg for arg in op.args if isinstance(arg, str)}
        reduces = spec_of(op.op).kind == "reduction"
        if op.name in late and not op.over_rows and (op.space != "column" or args & reduced):
            _fail(plan, f"{op.name}: it would need a second pass over the rows")
        if op.name in late and op.over_rows and args & late:
            _fail(plan, f"{op.name}: it reduces what needs all rows already")
        if op.name not in late and (reduces or args & reduced):
            reduced.add(op.name)


def _check_parts(plan: FusionPlan) -> None:
    """What is reduced or written varies along all column axes or none, not along some."""
    along = {item.name: plan.along(item)[plan.row_axes :] for item in plan.inputs}
    for op in plan.ops:
        spans = [along[arg] for arg in op.args if isinstance(arg, str) and arg in along]
        found = tuple(any(column) for column in zip(*spans, strict=True))
        if spec_of(op.op).kind == "reduction":
            if not all(found):
                _fail(plan, f"{op.name}: it reduces a value of a part of a row")
            found = (op.over_rows,) * plan.column_axes
        if op.op == RANDOM:
            found = (op.space != "row",) * plan.column_axes
        along[op.name] = found
    for output in plan.outputs:
        if output.space in ("tile", "column") and not all(along[output.value]):
            _fail(plan, f"output {output.value} is a value of a part of a row")


def _operand_space(plan: FusionPlan, op: PlanOp, spaces: dict[str, tuple[Space, str]]) -> Space:
    """What the operands of an op span together; one of them at least is no literal."""
    values = [arg for arg in op.args if isinstance(arg, str) and arg in spaces]
    for arg in op.args:
        if arg not in values:
            literal_value(arg)
    if not values:
        _fail(plan, f"{op.name}: {op.op} reads no value")
    space: Space = "scalar"
    for value in values:
        space = join_space(space, spaces[value][0])
    return space


def _check_attributes(plan: FusionPlan, op: PlanOp) -> None:
    if op.attributes.get(OVER, ROWS) != ROWS:
        _fail(plan, f"{op.name}: reduces over {op.attributes[OVER]!r}")
    if op.op == "cast" and op.attributes["dtype"] != op.dtype:
        _fail(plan, f"{op.name}: cast to {op.attributes['dtype']!r} has dtype {op.dtype}")
    if op.op == "var" and not isinstance(op.attributes["correction"], (int, float)):
        _fail(plan, f"{op.name}: correction is not a number")


def _check_outputs(plan: FusionPlan, spaces: dict[str, tuple[Space, str]]) -> None:
    seen: set[tuple[str, bool]] = set()
    late = plan.late_values()
    for output in plan.outputs:
        key = (output.value, output.last)
        if output.value not in spaces or not _VALUE.fullmatch(output.value) or key in seen:
            _fail(plan, f"output {output.value!r} is not a value of the plan, or is repeated")
        written = ("column",) if output.value in late else ("tile", "row")
        if (output.space, output.dtype) != spaces[output.value] or output.space not in written:
            _fail(plan, f"output {output.value}: wrong space or dtype")
        seen.add(key)


def _check_site(plan: FusionPlan, site: Site) -> None:
    axes = plan.row_axes + plan.column_axes
    sizes = (*site.sizes, site.columns)
    if len(site.sizes) != axes or math.prod(site.column_axes) != site.columns:
        _fail(plan, f"site in {site.graph}: column sizes do not fit the plan")
    if len(site.row_sizes) != plan.row_axes or any(not 0 <= size <= MAX_SIZE for size in sizes):
        _fail(plan, f"site in {site.graph}: sizes do not fit the plan")
    if len(site.inputs) != len(plan.inputs) or len(site.outputs) != len(plan.outputs):
        _fail(plan, f"site in {site.graph}: inputs or outputs do not fit the plan")
    if site.executions < 0:
        _fail(plan, f"site in {site.graph}: runs a negative number of times")
    if len(site.input_strides) != len(plan.inputs) or any(
        len(strides) != axes or any(not 0 <= s <= MAX_SIZE for s in strides)
        for strides in (*site.input_strides, *site.output_strides)
    ):
        _fail(plan, f"site in {site.graph}: strides do not fit the plan")
    if len(site.output_strides) != (len(plan.outputs) if plan.strided_outputs else 0):
        _fail(plan, f"site in {site.graph}: strides of outputs do not fit the plan")
