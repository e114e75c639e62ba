"""What a plan may hold: it is untrusted input, and nothing of it is pasted into source unchecked.

Only ops of the table, known dtypes, generated value names and bounded sizes.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NoReturn

from advisor.errors import InvalidRecordError
from advisor.model.gathers import fits_site, misfit
from advisor.model.gemm import check_product, check_product_outputs, product_space
from advisor.model.graph import literal_value
from advisor.model.members import check_members
from advisor.model.optable import DTYPES, FLOAT8_MAX, FLOAT_DTYPES, RANDOM, spec_of
from advisor.model.scan import check_states, check_steps
from advisor.model.spaces import OVER, ROWS, Space, join_space, space_of

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan, PlanInput, PlanOp, Site
    from advisor.model.sizes import RunTimeSizes

PLAN_SCHEMA_VERSION = 1
MAX_OPS, MAX_TENSORS, MAX_SITES, MAX_SIZE = 512, 64, 100_000, 2**40
MAX_ROW_AXES, MAX_COLUMN_AXES = 6, 4
# Of sizes that are known at run time: symbols of one site, and the characters of one.
MAX_SYMBOLS, MAX_SYMBOL = 4096, 1024
_INPUT = re.compile(r"in\d{1,3}")
_VALUE = re.compile(r"v\d{1,4}")
_PLAN_ID = re.compile(r"[0-9a-f]{16}")


def _fail(plan: FusionPlan, what: str) -> NoReturn:
    raise InvalidRecordError(what, where=f"plan {plan.id[:32]!r}")


def check_plan(plan: FusionPlan) -> None:
    """Raise `InvalidRecordError` for what no plan may hold."""
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
        check_members(plan, check_plan, MAX_OPS)
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
        if item.gathered is not None and (reason := misfit(plan, position)):
            _fail(plan, reason)
        if _spans_some_rows(item) and item.dense and item.gathered is None:
            _fail(plan, f"{item.name}: a dense input spans all rows or none")
        if item.segments and not _is_part(plan, item):
            _fail(plan, f"{item.name}: its segments are no part of the columns")
        if item.counts is not None and not _is_counted(plan, item):
            _fail(plan, f"{item.name}: it counts along no single axis")
        spaces[item.name] = (space_of(item.spans), item.dtype)
    return spaces


def _spans_some_rows(item: PlanInput) -> bool:
    return any(item.spans[:-1]) and not all(item.spans[:-1])


def _is_counted(plan: FusionPlan, item: PlanInput) -> bool:
    """Whether an input that counts does so along the rows or the columns, which are one axis."""
    alone = plan.column_axes == 1 if item.spans[-1] else plan.row_axes == 1
    plain = item.dense and not item.segments and plan.family == "row_program"
    return plain and item.dtype == "int64" and sum(item.spans) == 1 and alone


def _is_part(plan: FusionPlan, item: PlanInput) -> bool:
    """Whether an input with segments varies along some of several column axes, by its strides."""
    some = any(item.segments) and not all(item.segments)
    return len(item.segments) == plan.column_axes and some and item.spans[-1] and not item.dense


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
        across = output.strided and not output.unit_stride and output.space == "tile"
        if output.turned and not (across and plan.column_axes > 1):
            _fail(plan, f"output {output.value}: it has no column axes to be turned along")
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
    if not fits_site(plan, site, MAX_SIZE):
        _fail(plan, f"site in {site.graph}: its tables do not fit the plan")
    if site.run_time is not None and not _is_described(site, site.run_time):
        _fail(plan, f"site in {site.graph}: its sizes at run time do not fit the plan")


def _is_described(site: Site, told: RunTimeSizes) -> bool:
    """Whether sizes at run time are as many as those of the site, and bounded."""
    axes = len(told.row_sizes), len(told.column_sizes)
    strides = [len(own) for own in (*told.input_strides, *told.output_strides)]
    own = [len(strides) for strides in (*site.input_strides, *site.output_strides)]
    names = [name for size in told.every for name in size.symbols]
    return (
        axes == (len(site.row_sizes), len(site.column_axes))
        and strides == own
        and all(0 <= size.coefficient <= MAX_SIZE for size in told.every)
        and len(names) <= MAX_SYMBOLS
        and all(len(name) <= MAX_SYMBOL for name in names)
    )
