"""From groups to plans: one canonical program per signature, with every site that has it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from advisor.model.base import Location, Phase
from advisor.model.gathers import table_axis
from advisor.model.gemm import PlanProduct
from advisor.model.graph import FIRST, STEP, Arg, AttributeValue, Node, node_of
from advisor.model.guards import Guard
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site, plan_id
from advisor.model.scan import PlanState
from advisor.model.sizes import NONE, ONE, RunTimeSizes, Size, parse
from advisor.model.spaces import OVER, ROWS, space_of
from analyzers.dataflow import Dataflow
from analyzers.growth import Group
from analyzers.iteration_space import MAX_COLUMNS, IterationSpace
from analyzers.strides import BoundInput, Strides

RULE, SCAN_RULE, GEMM_RULE = "row_program", "scan-written-out", "gemm-epilogue"


@dataclass(frozen=True)
class Program:
    """A group in canonical form: the part of a plan that decides its code, and its own site."""

    row_axes: int
    column_axes: int
    inputs: tuple[PlanInput, ...]
    ops: tuple[PlanOp, ...]
    outputs: tuple[PlanOutput, ...]
    site: Site
    states: tuple[PlanState, ...] = ()
    product: PlanProduct | None = None

    @property
    def rule(self) -> str:
        """The rule that tells of it."""
        return SCAN_RULE if self.states else RULE if self.product is None else GEMM_RULE

    def signature(self) -> str:
        """Equal for two groups exactly when one kernel serves both."""
        return self.as_plan("0" * 16, "", "inference").signature()

    def as_plan(self, identity: str, title: str, phase: Phase) -> FusionPlan:
        """This program as a plan with one site."""
        return FusionPlan(
            id=identity,
            rule=self.rule,
            title=title,
            family="scan" if self.states else "row_program" if self.product is None else "gemm",
            phase=phase,
            row_axes=self.row_axes,
            column_axes=self.column_axes,
            inputs=self.inputs,
            ops=self.ops,
            outputs=self.outputs,
            guards=_guards(self.inputs),
            states=self.states,
            product=self.product,
            sites=(self.site,),
        )


def canonical_program(flow: Dataflow, group: Group) -> Program:
    """Number inputs and ops in an order that depends on structure alone."""
    return _Canonical(flow, group).program()


def cluster(programs: Iterable[tuple[Phase, Program]]) -> list[list[Program]]:
    """Programs by (phase, signature), in order of first appearance."""
    found: dict[tuple[str, str], list[Program]] = {}
    for phase, program in programs:
        found.setdefault((phase, program.signature()), []).append(program)
    return list(found.values())


def plan_of(programs: list[Program], phase: Phase, title: str) -> FusionPlan:
    """One plan with the sites of equal programs; its id hashes rule, module patterns, signature."""
    first = programs[0]
    sites = tuple(program.site for program in programs)
    patterns = sorted({module_pattern(site.location.module) for site in sites})
    identity = plan_id(f"{first.rule}/{phase}", "|".join(patterns), first.signature())
    plan = msgspec.structs.replace(first.as_plan(identity, title, phase), sites=sites)
    plan.check()
    return plan


def module_pattern(path: str | None) -> str:
    """A module path with its layer numbers replaced: `model.layers.*.norm`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", path or "")


def _guards(inputs: tuple[PlanInput, ...]) -> tuple[Guard, ...]:
    guards = [Guard(kind="columns_at_most", subject="columns", value=MAX_COLUMNS)]
    for item in inputs:
        guards.append(Guard(kind="dtype", subject=item.name, value=item.dtype))
        layout = (
            "row_major" if item.dense else ("unit_column_stride" if item.unit_stride else "strided")
        )
        guards.append(Guard(kind="layout", subject=item.name, value=layout))
    return tuple(guards)


class _Canonical:
    def __init__(self, flow: Dataflow, group: Group) -> None:
        self.flow, self.group, self.space = flow, group, group.space
        self.members = frozenset(group.members)
        rows, columns = self.space.walked_rows, self.space.walked_columns
        self.axes, self.row_axes = (*rows, *columns), len(rows)
        self.hashes: dict[str, str] = {}
        self.inputs: dict[BoundInput, str] = {}
        self.ops: dict[str, PlanOp] = {}
        self.lookups = {lookup.node: bound for bound, lookup in self.space.lookups.items()}
        self.indices = {lookup.index for lookup in self.space.lookups.values()}

    def program(self) -> Program:
        """Visit outputs in the order of their structural hashes, operands before ops."""
        for name in self.group.members:
            self.hashes[name] = self._hash(name)
        ordered = sorted(self.space.outputs, key=lambda v: self.hashes[node_of(v)[0]])
        for value in ordered:
            self._visit(node_of(value)[0])
        outputs = tuple(self._output(value) for value in ordered)
        bounds = list(self.inputs)
        return Program(
            row_axes=self.row_axes,
            column_axes=len(self.axes) - self.row_axes,
            inputs=tuple(self._input(bound, f"in{i}") for i, bound in enumerate(bounds)),
            ops=tuple(self.ops.values()),
            outputs=outputs,
            site=self._site(bounds, tuple(ordered), any(output.strided for output in outputs)),
        )

    def _hash(self, name: str) -> str:
        node = self.flow.nodes[name]
        if name in self.lookups:
            return self._hashed([*self._told(self.lookups[name]), f"%{name}" in self.space.outputs])
        parts: list[object] = [
            node.op,
            self._attributes(node),
            node.outputs[0].dtype,
        ]
        for position, arg in enumerate(node.args):
            bound = self.space.operands.get((name, position))
            if bound is not None:
                parts.append(self._told(bound))
            elif isinstance(arg, str) and arg.startswith("%"):
                parts.append(self.hashes[node_of(self.flow.base(arg))[0]])
            else:
                parts.append(arg)
        parts.append(f"%{name}" in self.space.outputs)
        return self._hashed(parts)

    def _hashed(self, parts: list[object]) -> str:
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()

    def _told(self, bound: BoundInput) -> list[object]:
        """What a hash says of an input, of a table with its index."""
        item = self._input(bound, "")
        told: list[object] = [item.dtype, item.spans, item.dense, item.unit_stride]
        told += [item.segments] if item.segments else []
        told += [item.counts] if item.counts is not None else []
        lookup = self.space.lookups.get(bound)
        return told if lookup is None else [*told, self._told(lookup.index)]

    def _read(self, bound: BoundInput) -> str:
        """The name of an input; that of an index comes before its table's."""
        lookup = self.space.lookups.get(bound)
        if lookup is not None:
            self._read(lookup.index)
        return self.inputs.setdefault(bound, f"in{len(self.inputs)}")

    def _visit(self, name: str) -> PlanOp:
        if name in self.ops:
            return self.ops[name]
        node = self.flow.nodes[name]
        if name in self.lookups:
            return self._looked_up(node)
        args: list[Arg] = []
        for position, arg in enumerate(node.args):
            bound = self.space.operands.get((name, position))
            if bound is not None:
                args.append(self._read(bound))
            elif isinstance(arg, str) and arg.startswith("%"):
                args.append(self._visit(node_of(self.flow.base(arg))[0]).name)
            else:
                args.append(arg)
        spans = self._spans(self.space.spans[node.value()])
        op = PlanOp(
            name=f"v{len(self.ops)}",
            op=node.op,
            args=tuple(args),
            dtype=node.outputs[0].dtype,
            space=space_of(spans),
            attributes=self._attributes(node),
        )
        self.ops[name] = op
        return op

    def _looked_up(self, node: Node) -> PlanOp:
        """Rows of a table that others need too: written as they are read."""
        dtype = node.outputs[0].dtype
        op = PlanOp(
            name=f"v{len(self.ops)}",
            op="cast",
            args=(self._read(self.lookups[node.id]),),
            dtype=dtype,
            space=space_of(self._spans(self.space.spans[node.value()])),
            attributes={"dtype": dtype},
        )
        self.ops[node.id] = op
        return op

    def _attributes(self, node: Node) -> dict[str, AttributeValue]:
        """The attributes a plan keeps: of a reduction's axes, whether they are the rows."""
        kept = {name: node.attributes[name] for name in spec_of(node.op).attributes}
        over_rows = spec_of(node.op).kind == "reduction" and node.value() in self.space.late
        return kept | ({OVER: ROWS} if over_rows else {})

    def _spans(self, span: frozenset[int]) -> tuple[bool, ...]:
        """Along each row axis, and along the columns, all or some of them."""
        found = [any(axis in span for axis in run) for run in self.axes]
        return (*found[: self.row_axes], any(found[self.row_axes :]))

    def _input(self, bound: BoundInput, name: str) -> PlanInput:
        if bound in self.space.lookups:
            return self._table(bound, name)
        meta = self.flow.need_meta(bound.value)
        strides = self._merged(bound.strides)
        along = [stride is not None for stride in strides]
        rows, columns = along[: self.row_axes], along[self.row_axes :]
        unit = strides[-1] is None or strides[-1] == ONE
        part = any(columns) and not all(columns)
        whole_rows = all(rows) or not any(rows)
        return PlanInput(
            name=name,
            dtype=meta.dtype,
            spans=(*rows, any(columns)),
            dense=whole_rows and not part and _is_dense(strides, self._sizes()),
            unit_stride=unit,
            segments=tuple(columns) if part else (),
            counts=self._counts(bound, rows, columns),
        )

    def _table(self, bound: BoundInput, name: str) -> PlanInput:
        """Rows of a table, in the place of the lookup's result."""
        lookup = self.space.lookups[bound]
        meta = self.flow.need_meta(lookup.table)
        rows = [stride is not None for stride in self._merged(bound.strides)[: self.row_axes]]
        return PlanInput(
            name=name,
            dtype=meta.dtype,
            spans=(*rows, True),
            dense=parse(meta.strides[0]) == parse(meta.shape[1]),
            gathered=self.inputs.get(lookup.index, ""),
        )

    def _counts(
        self, bound: BoundInput, rows: list[bool], columns: list[bool]
    ) -> tuple[int, int] | None:
        """(first, step) of what counts along the rows or along the columns, each a single axis."""
        node = self.flow.nodes[node_of(self.flow.base(bound.value))[0]]
        first, step = node.attributes.get(FIRST), node.attributes.get(STEP)
        if not (isinstance(first, int) and isinstance(step, int)) or bound in self.indices:
            return None
        own = [stride for stride in bound.strides if stride is not None]
        alone = [True] in (rows, columns) and sum(rows) + sum(columns) == 1
        whole = self.flow.need_meta(bound.value).dtype == "int64" and own == [ONE]
        return (first, step) if alone and whole and self._others_span(bound) else None

    def _others_span(self, bound: BoundInput) -> bool:
        """Whether another input tells a kernel all sizes."""
        others = (item for item in self.space.operands.values() if item != bound)
        return any(None not in item.strides for item in others)

    def _output(self, value: str) -> PlanOutput:
        op, strides = self.ops[node_of(value)[0]], self._merged(self.space.layouts[value])
        strided = not _is_dense(strides, self._sizes())
        unit = not strided or strides[-1] is None or strides[-1] == ONE
        wide = op.space == "tile" and len(self.axes) - self.row_axes > 1
        return PlanOutput(
            value=op.name,
            dtype=op.dtype,
            space=op.space,
            strided=strided,
            unit_stride=unit,
            turned=wide and not unit and strides[-2] == ONE and self._reduces_rows_alone(),
        )

    def _reduces_rows_alone(self) -> bool:
        """Whether rows are reduced, and nothing over them: those schemes write whole rows."""
        found = any(spec_of(op.op).kind == "reduction" for op in self.ops.values())
        return found and not self.space.late

    def _merged(self, strides: Strides) -> list[Size | None]:
        return [strides[run[-1]] for run in self.axes]

    def _sizes(self) -> list[Size]:
        return [_size(self.space, run) for run in self.axes]

    def _site(self, bounds: list[BoundInput], outputs: tuple[str, ...], strided: bool) -> Site:
        sizes = [self.flow.hint(size) for size in self._sizes()]
        columns = tuple(sizes[self.row_axes :])
        written = tuple(self.space.layouts[value] for value in outputs) if strided else ()
        return Site(
            graph=self.flow.graph.id,
            nodes=self.group.own,
            inputs=tuple(self._memory(bound) for bound in bounds),
            outputs=outputs,
            row_sizes=tuple(sizes[: self.row_axes]),
            columns=math.prod(columns),
            column_sizes=columns if len(columns) > 1 else (),
            input_strides=tuple(
                tuple(map(self.flow.hint, self._input_strides(bound))) for bound in bounds
            ),
            output_strides=tuple(self._numbers(strides) for strides in written),
            location=self._location(),
            executions=self.flow.graph.executions,
            run_time=self._run_time(bounds, written),
            table_rows=tuple(self._table_rows(bound) for bound in bounds) if self.lookups else (),
        )

    def _run_time(
        self, bounds: list[BoundInput], written: tuple[Strides, ...]
    ) -> RunTimeSizes | None:
        """The sizes and strides of the site as symbols, None where all are numbers."""
        sizes = self._sizes()
        found = RunTimeSizes(
            row_sizes=tuple(sizes[: self.row_axes]),
            column_sizes=tuple(sizes[self.row_axes :]),
            input_strides=tuple(self._input_strides(bound) for bound in bounds),
            output_strides=tuple(self._symbols(strides) for strides in written),
        )
        return found if any(size.symbols for size in found.every) else None

    def _input_strides(self, bound: BoundInput) -> tuple[Size, ...]:
        """The strides of an input; of a table, of its rows on the first axis that it spans."""
        lookup = self.space.lookups.get(bound)
        if lookup is None:
            return self._symbols(bound.strides)
        first = table_axis(self._table(bound, ""))
        apart = parse(self.flow.need_meta(lookup.table).strides[0])
        return (*(apart if axis == first else NONE for axis in range(self.row_axes)), ONE)

    def _symbols(self, strides: Strides) -> tuple[Size, ...]:
        """Strides along the merged axes, 0 where a value does not vary."""
        return tuple(NONE if s is None else s for s in self._merged(strides))

    def _memory(self, bound: BoundInput) -> str:
        """The value behind an input: of what is looked up, the table."""
        lookup = self.space.lookups.get(bound)
        return bound.value if lookup is None else lookup.table

    def _table_rows(self, bound: BoundInput) -> int:
        lookup = self.space.lookups.get(bound)
        if lookup is None:
            return 0
        return self.flow.hint(parse(self.flow.need_meta(lookup.table).shape[0]))

    def _numbers(self, strides: Strides) -> tuple[int, ...]:
        """Strides along the merged axes as numbers, 0 where a value does not vary."""
        return tuple(0 if s is None else self.flow.hint(s) for s in self._merged(strides))

    def _location(self) -> Location:
        """The place of the seed reduction, whatever was absorbed around it."""
        return self.flow.nodes[self.group.seed].location


def _size(space: IterationSpace, run: tuple[int, ...]) -> Size:
    total = ONE
    for axis in run:
        total = total.times(space.axes[axis])
    return total


def _is_dense(strides: list[Size | None], sizes: list[Size]) -> bool:
    """Row-major over the axes it spans."""
    expected = ONE
    for stride, size in zip(reversed(strides), reversed(sizes), strict=True):
        if stride is None:
            continue
        if stride != expected:
            return False
        expected = expected.times(size)
    return True
