"""A checked loop as a program in canonical form: inputs, states and ops numbered by structure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from advisor.errors import IllegalFusionError
from advisor.model.base import Location
from advisor.model.graph import Arg, AttributeValue, Node, is_value, node_of
from advisor.model.optable import spec_of
from advisor.model.plan import PlanInput, PlanOp, PlanOutput, Site
from advisor.model.scan import PlanState
from advisor.model.spaces import Space, join_space, space_of
from analyzers.library_ops import is_product
from analyzers.row_plans import Program
from analyzers.scan_growth import Grown, Seen, is_literal, operand_of
from analyzers.scan_steps import Steps, initial_runs, initial_value
from analyzers.scan_views import STEP, layout_of, offset_of, strides_along, windows_of

MOST_TENSORS, MOST_OPS = 32, 160


@dataclass(frozen=True)
class Axes:
    """The lanes, the columns that are reduced (None without a reduction), and all sizes."""

    lanes: tuple[int, ...]
    column: int | None
    sizes: Mapping[int, int]


@dataclass(frozen=True)
class Output:
    """A column that is written: all its steps, in one value, or the last step's."""

    column: int
    value: str
    dtype: str
    strides: Mapping[int, int]
    reverse: bool = False
    last: bool = False


@dataclass(frozen=True)
class Read:
    """An input: what owns its memory, where it begins, its stride along every axis it spans."""

    base: str
    dtype: str
    offset: int
    strides: tuple[tuple[int, int], ...]
    reverse: bool


def canonical_scan(
    steps: Steps,
    axes: Axes,
    whole: Grown,
    outputs: Sequence[Output],
    nodes: tuple[str, ...],
    location: Location,
) -> Program:
    """The program of a loop with what it takes along and what it leaves."""
    return _Canonical(steps, axes, whole).program(outputs, nodes, location)


@dataclass
class _Canonical:
    steps: Steps
    axes: Axes
    whole: Grown
    inputs: dict[Read, str] = field(default_factory=dict)
    ops: list[PlanOp] = field(default_factory=list)
    made: dict[int | str, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    spaces: dict[str, Space] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def program(
        self, outputs: Sequence[Output], nodes: tuple[str, ...], location: Location
    ) -> Program:
        for output in outputs:
            self._column(output.column)
        pending = list(self.states)
        while pending:
            for column in pending:
                self._column(column)
            pending = [column for column in self.states if column not in self.made]
        states = tuple(self._state(column) for column in self.states)
        lanes = self._lanes(outputs)
        if len(self.ops) > MOST_OPS or len(self.inputs) + len(outputs) > MOST_TENSORS:
            raise IllegalFusionError("more ops or tensors than one kernel takes")
        order = [*(lane[-1] if lane else None for lane in lanes), STEP, self.axes.column]
        return Program(
            row_axes=len(lanes) + 1,
            column_axes=1,
            inputs=tuple(self._input(read, name, order) for read, name in self.inputs.items()),
            ops=tuple(self.ops),
            outputs=tuple(self._output(output, order) for output in outputs),
            states=states,
            site=self._site(outputs, order, lanes, nodes, location),
        )

    # --- ops --------------------------------------------------------------------------------------

    def _column(self, column: int) -> str:
        """A column as an op, with all that it needs."""
        if column in self.made:
            return self.made[column]
        node = self.steps.node(column)
        if is_product(node):
            name = self._product(column, node)
        else:
            args = [self._argument((column, n)) for n in range(len(node.args))]
            name = self._op(node, args)
        self.made[column] = name
        return name

    def _argument(self, place: tuple[int, int]) -> Arg:
        arg = self.steps.node(place[0]).args[place[1]]
        if is_literal(arg):
            return arg
        source = self.steps.source(place)
        if source is None or source[0] not in self.steps.columns:
            seen = self.whole.operands.get(place)
            if seen is not None and node_of(seen[0])[0] in self.whole.absorbed:
                return self._absorbed(node_of(seen[0])[0])
            return self._bound(place)
        return self._column(source[0]) if source[1] == 0 else self._carried(source[0])

    def _carried(self, column: int) -> str:
        if column not in self.states:
            node = self.steps.node(column)
            name = self.states[column] = f"s{len(self.states)}"
            runs = self.steps.runs[column]
            along = {axis for run in runs for axis in run}
            self.spaces[name] = "tile" if self.axes.column in along else "row"
            self.dtypes[name] = node.outputs[0].dtype
            if not set(self.axes.lanes) <= along:
                raise IllegalFusionError("a state that is the same for many lanes")
        return self.states[column]

    def _absorbed(self, name: str) -> str:
        if name not in self.made:
            node = self.steps.flow.nodes[name]
            args: list[Arg] = []
            for arg in node.args:
                if isinstance(arg, str) and is_value(arg):
                    args.append(self._seen(operand_of(self.steps.flow, self.whole, arg, node)))
                else:
                    args.append(arg)
            self.made[name] = self._op(node, args)
        return self.made[name]

    def _seen(self, seen: Seen) -> str:
        producer = node_of(seen[0])[0]
        if producer in self.whole.absorbed:
            return self._absorbed(producer)
        meta = self.steps.flow.need_meta(seen[0])
        layout, place = layout_of(self.steps.flow, seen[0]), offset_of(self.steps.flow, seen[0])
        if layout is None or place is None:
            raise IllegalFusionError("a part of a tensor at an unknown place")
        strides, offset = strides_along(seen[1], layout[1], self.axes.sizes)
        step = strides.get(STEP, 0)
        reverse = STEP in strides and self._is_reverse()
        return self._read(
            Read(
                base=place[0],
                dtype=meta.dtype,
                offset=place[1] + offset,
                strides=tuple(sorted((a, s) for a, s in strides.items() if a != STEP))
                + (((STEP, step),) if STEP in strides else ()),
                reverse=reverse,
            )
        )

    def _is_reverse(self) -> bool:
        """Whether the steps walk from the last part to the first: all that is taken along does."""
        ways = {bound.stride < 0 for bound in self.steps.bound.values() if bound.stride}
        if len(ways) > 1:
            raise IllegalFusionError("steps read what is taken along in two directions")
        return bool(ways) and ways.pop()

    def _op(self, node: Node, args: Sequence[Arg]) -> str:
        kept = {name: node.attributes[name] for name in spec_of(node.op).attributes}
        return self._add(node.op, args, node.outputs[0].dtype, kept)

    def _add(
        self,
        op: str,
        args: Sequence[Arg],
        dtype: str,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> str:
        name = f"v{len(self.ops)}"
        space: Space = "scalar"
        for arg in args:
            if isinstance(arg, str) and arg in self.spaces:
                space = join_space(space, self.spaces[arg])
        if spec_of(op).kind == "reduction":
            space = "row" if space == "tile" else "scalar"
        self.spaces[name], self.dtypes[name] = space, dtype
        self.ops.append(
            PlanOp(
                name=name,
                op=op,
                args=tuple(args),
                dtype=dtype,
                space=space,
                attributes=dict(attributes or {}),
            )
        )
        return name

    def _product(self, column: int, node: Node) -> str:
        """A product with one row or column: products added up in float32, rounded once."""
        wide = []
        for position in range(2):
            arg = self._argument((column, position))
            assert isinstance(arg, str)
            kind = self.dtypes[arg]
            if kind != "float32":
                arg = self._add("cast", [arg], "float32", {"dtype": "float32"})
            wide.append(arg)
        name = self._add("mul", wide, "float32")
        name = self._add("sum", [name], "float32")
        dtype = node.outputs[0].dtype
        return name if dtype == "float32" else self._add("cast", [name], dtype, {"dtype": dtype})

    # --- inputs and states ------------------------------------------------------------------------

    def _read(self, read: Read) -> str:
        if read not in self.inputs:
            self._check_outside(read.base)
            name = self.inputs[read] = f"in{len(self.inputs)}"
            along = {axis for axis, _ in read.strides}
            lanes = any(axis in along for axis in (*self.axes.lanes, STEP))
            self.spaces[name] = space_of((lanes, self.axes.column in along))
            self.dtypes[name] = read.dtype
        return self.inputs[read]

    def _check_outside(self, base: str) -> None:
        flow = self.steps.flow
        name = node_of(base)[0]
        if flow.storage(base) in flow.written or flow.nodes[name].hidden:
            raise IllegalFusionError("a tensor that the loop reads is written to, or in no op")
        if any(name in self.steps.loop.columns[at].values() for at in self.steps.columns):
            raise IllegalFusionError("a step reads what another step than the last one made")

    def _bound(self, place: tuple[int, int]) -> str:
        """An operand that steps read from outside."""
        bound, node = self.steps.bound[place], self.steps.node(place[0])
        value = str(node.args[place[1]])
        meta, layout = self.steps.flow.need_meta(value), layout_of(self.steps.flow, value)
        if layout is None:
            raise IllegalFusionError("its sizes are only known at run time")
        windows = windows_of(self.steps.operands[place])
        strides, _ = strides_along(windows, layout[1], self.axes.sizes)
        back = bound.stride < 0
        begin = bound.offset + (self.steps.count - 1) * bound.stride if back else bound.offset
        along = tuple(sorted(strides.items()))
        if bound.stride:
            along += ((STEP, abs(bound.stride)),)
        return self._read(Read(bound.base, meta.dtype, begin, along, back))

    def _state(self, column: int) -> PlanState:
        initial = self.steps.initial.get(column)
        if initial is None:
            raise IllegalFusionError("it is not clear what the state is before the first step")
        name = self.states[column]
        value = self.made[column]
        space = self.spaces[value]
        if space not in ("tile", "row") or self.spaces[name] != space:
            raise IllegalFusionError("a state that is the same for many lanes")
        return PlanState(
            name=name,
            value=value,
            initial=initial if isinstance(initial, float) else self._initial(initial),
            dtype=self.dtypes[value],
            space="tile" if space == "tile" else "row",
        )

    def _initial(self, place: tuple[int, int]) -> str:
        """The input that a state is at first."""
        value = initial_value(self.steps, place)
        meta, found = self.steps.flow.need_meta(value), offset_of(self.steps.flow, value)
        layout = layout_of(self.steps.flow, value)
        if layout is None or found is None:
            raise IllegalFusionError("a part of a tensor at an unknown place")
        windows = windows_of(initial_runs(self.steps, place))
        strides, _ = strides_along(windows, layout[1], self.axes.sizes)
        read = Read(found[0], meta.dtype, found[1], tuple(sorted(strides.items())), reverse=False)
        return self._read(read)

    # --- layout -----------------------------------------------------------------------------------

    def _lanes(self, outputs: Sequence[Output]) -> list[tuple[int, ...]]:
        """The lane axes, those together that all tensors walk as if they were one."""
        walks = [dict(read.strides) for read in self.inputs]
        walks += [dict(output.strides) for output in outputs]
        runs: list[tuple[int, ...]] = []
        for axis in self.axes.lanes:
            if runs and all(self._as_one(walk, runs[-1][-1], axis) for walk in walks):
                runs[-1] = (*runs[-1], axis)
            else:
                runs.append((axis,))
        return runs or [()]

    def _as_one(self, walk: Mapping[int, int], outer: int, inner: int) -> bool:
        if outer not in walk or inner not in walk:
            return outer not in walk and inner not in walk
        return walk[outer] == walk[inner] * self.axes.sizes[inner]

    def _input(self, read: Read, name: str, order: Sequence[int | None]) -> PlanInput:
        walk = dict(read.strides)
        spans = tuple(axis in walk for axis in order)
        column = order[-1]
        return PlanInput(
            name=name,
            dtype=read.dtype,
            spans=spans,
            dense=False,
            unit_stride=column is None or walk.get(column, 1) == 1,
            reverse=read.reverse,
        )

    def _output(self, output: Output, order: Sequence[int | None]) -> PlanOutput:
        value, walk = self.made[output.column], output.strides
        space = self.spaces[value]
        lanes = all(axis in walk for axis in order[:-2] if axis is not None)
        if space not in ("tile", "row") or not lanes:
            raise IllegalFusionError("a result that is the same for many lanes")
        column = order[-1]
        return PlanOutput(
            value=value,
            dtype=output.dtype,
            space=space,
            strided=True,
            unit_stride=column is None or walk.get(column, 1) == 1,
            reverse=output.reverse,
            last=output.last,
        )

    def _site(
        self,
        outputs: Sequence[Output],
        order: Sequence[int | None],
        lanes: Sequence[tuple[int, ...]],
        nodes: tuple[str, ...],
        location: Location,
    ) -> Site:
        sizes = self.axes.sizes
        rows = [math.prod(sizes[axis] for axis in lane) for lane in lanes]
        column = self.axes.column

        def along(walk: Mapping[int, int]) -> tuple[int, ...]:
            return tuple(walk.get(axis, 0) if axis is not None else 0 for axis in order)

        return Site(
            graph=self.steps.flow.graph.id,
            nodes=nodes,
            inputs=tuple(read.base for read in self.inputs),
            outputs=tuple(output.value for output in outputs),
            row_sizes=(*rows, sizes[STEP]),
            columns=1 if column is None else sizes[column],
            input_strides=tuple(along(dict(read.strides)) for read in self.inputs),
            output_strides=tuple(along(output.strides) for output in outputs),
            input_offsets=tuple(read.offset for read in self.inputs),
            location=location,
            executions=self.steps.flow.graph.executions,
        )
