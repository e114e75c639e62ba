"""Fusion plans built a line at a time; spaces and result dtypes follow from the operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from advisor.model.gathers import gathers, table_axis
from advisor.model.graph import Arg, AttributeValue
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site, plan_id
from advisor.model.spaces import OVER, ROWS, Space, join_space, space_of


def op_in_spaces(
    name: str, op: str, args: tuple[Arg, ...], dtype: str, spaces: Mapping[str, Space]
) -> PlanOp:
    """An op whose space follows from those of what it reads; its tests are booleans."""
    space: Space = "scalar"
    for arg in args:
        if isinstance(arg, str):
            space = join_space(space, spaces[arg])
    if spec_of(op).kind == "reduction":
        space = "row" if space == "tile" else "scalar"
    attributes: dict[str, AttributeValue] = {"dtype": dtype} if op == "cast" else {}
    result = "bool" if spec_of(op).result == "bool" else dtype
    return PlanOp(name=name, op=op, args=args, dtype=result, space=space, attributes=attributes)


@dataclass
class PlanBuilder:
    """Inputs and ops in order; `plan()` checks and freezes them."""

    row_axes: int = 1
    column_axes: int = 1
    inputs: list[PlanInput] = field(default_factory=list)
    ops: list[PlanOp] = field(default_factory=list)

    def input(
        self,
        dtype: str = "float32",
        spans: tuple[bool, ...] | None = None,
        *,
        dense: bool = True,
        unit_stride: bool = True,
        segments: tuple[bool, ...] = (),
        counts: tuple[int, int] | None = None,
        gathered: str | None = None,
    ) -> str:
        """An input that spans everything unless told otherwise."""
        name = f"in{len(self.inputs)}"
        full = (True,) * (self.row_axes + 1)
        self.inputs.append(
            PlanInput(
                name=name,
                dtype=dtype,
                spans=spans or full,
                dense=dense and not segments,
                unit_stride=unit_stride,
                segments=segments,
                counts=counts,
                gathered=gathered,
            )
        )
        return name

    def op(
        self, name: str, *args: Arg, dtype: str | None = None, **attributes: AttributeValue
    ) -> str:
        """`name(args)`; the dtype is that of the op's rule unless given."""
        space: Space = "scalar"
        for arg in args:
            if self._is_value(arg):
                space = join_space(space, self.space(str(arg)))
        if spec_of(name).kind == "reduction":
            space = "row" if space == "tile" else "scalar"
        if OVER in attributes:
            space = "column"
        result = dtype or str(attributes.get("dtype") or self._promoted(name, args))
        value = f"v{len(self.ops)}"
        self.ops.append(
            PlanOp(name=value, op=name, args=args, dtype=result, space=space, attributes=attributes)
        )
        return value

    def over_rows(self, name: str, value: str, **attributes: AttributeValue) -> str:
        """`name(value)` over the rows: a value per column."""
        return self.op(name, value, **{OVER: ROWS} | attributes)

    def random(self, seed: str, space: Space = "tile") -> str:
        """Random numbers of a seed, which is an input of one int64."""
        name = f"v{len(self.ops)}"
        self.ops.append(PlanOp(name=name, op="random", args=(seed,), dtype="float32", space=space))
        return name

    def cast(self, value: str, dtype: str) -> str:
        """`value` rounded to `dtype`."""
        name = f"v{len(self.ops)}"
        self.ops.append(
            PlanOp(
                name=name,
                op="cast",
                args=(value,),
                dtype=dtype,
                space=self.space(value),
                attributes={"dtype": dtype},
            )
        )
        return name

    def space(self, value: str) -> Space:
        """Where an input or an op lives."""
        for item in self.inputs:
            if item.name == value:
                return space_of(item.spans)
        return next(op.space for op in self.ops if op.name == value)

    def dtype(self, value: str) -> str:
        """The dtype of an input or an op."""
        named = {item.name: item.dtype for item in self.inputs} | {
            op.name: op.dtype for op in self.ops
        }
        return named[value]

    def _is_value(self, arg: Arg) -> bool:
        return isinstance(arg, str) and arg[0] in "iv" and arg not in ("inf",)

    def _promoted(self, name: str, args: Sequence[Arg]) -> str:
        if spec_of(name).result == "bool":
            return "bool"
        tensors = [self.dtype(str(a)) for a in args if self._is_value(a)]
        if name == "where" and self._is_value(args[0]):
            tensors = tensors[1:]
        result = getattr(torch, tensors[0]) if tensors else torch.float32
        for other in tensors[1:]:
            result = torch.promote_types(result, getattr(torch, other))
        return str(result).removeprefix("torch.")

    def plan(
        self,
        *outputs: str,
        title: str = "",
        sizes: tuple[int, ...] | None = None,
        columns: int | tuple[int, ...] = 64,
        strided: tuple[str, ...] = (),
        unit_stride: bool = True,
        turned: tuple[str, ...] = (),
        table_rows: int = 11,
    ) -> FusionPlan:
        """The checked plan with one contiguous site of `sizes` × `columns`.

        Outputs that are `strided` are contiguous too, if nobody lays them out otherwise; those that
        are `turned` are written across the columns, along the axis outside the innermost.
        """
        widths = (columns,) if isinstance(columns, int) else columns
        found = FusionPlan(
            id="0" * 16,
            rule="row_program",
            title=title or "test",
            family="row_program",
            phase="inference",
            row_axes=self.row_axes,
            column_axes=self.column_axes,
            inputs=tuple(self.inputs),
            ops=tuple(self.ops),
            outputs=tuple(
                PlanOutput(
                    value=v,
                    dtype=self.dtype(v),
                    space=self.space(v),
                    strided=v in strided,
                    unit_stride=v not in turned and (v not in strided or unit_stride),
                    turned=v in turned and self.column_axes > 1,
                )
                for v in outputs
            ),
        )
        found = msgspec.structs.replace(
            found,
            id=plan_id("test", title, found.signature()),
            sites=(_site(found, sizes or (4,) * self.row_axes, widths, table_rows),),
        )
        found.check()
        return found


def _site(
    plan: FusionPlan, sizes: tuple[int, ...], columns: tuple[int, ...], table_rows: int
) -> Site:
    outputs = [output.along(plan.row_axes, plan.column_axes) for output in plan.outputs]
    whole = (*sizes, *columns)
    return Site(
        graph="graph0",
        nodes=("n",),
        inputs=tuple(f"%{item.name}" for item in plan.inputs),
        outputs=tuple(f"%{output.value}" for output in plan.outputs),
        row_sizes=sizes,
        columns=math.prod(columns),
        column_sizes=columns if len(columns) > 1 else (),
        input_strides=tuple(
            _contiguous(whole, plan.along(item))
            if item.gathered is None
            else _of_table(item, columns[0])
            for item in plan.inputs
        ),
        table_rows=tuple(table_rows * (item.gathered is not None) for item in plan.inputs)
        if gathers(plan)
        else (),
        output_strides=tuple(_contiguous(whole, spans) for spans in outputs)
        if plan.strided_outputs
        else (),
    )


def _of_table(item: PlanInput, columns: int) -> tuple[int, ...]:
    strides = [0] * len(item.spans[:-1]) + [1]
    strides[table_axis(item)] = columns if item.dense else columns + 3
    return tuple(strides)


def _contiguous(sizes: tuple[int, ...], spans: tuple[bool, ...]) -> tuple[int, ...]:
    step, found = 1, []
    for size, span in zip(reversed(sizes), reversed(spans), strict=True):
        found.append(step if span else 0)
        step *= size if span else 1
    return tuple(reversed(found))


def rms_norm(*, columns: int = 64, dtype: str = "bfloat16", epsilon: float = 1e-6) -> FusionPlan:
    """`cast(x · rsqrt(mean(x²) + ε)) · weight`, the mean taken in float32."""
    make = PlanBuilder()
    x, weight = make.input(dtype), make.input(dtype, (False, True))
    wide = make.cast(x, "float32")
    mean = make.op("mean", make.op("mul", wide, wide))
    scaled = make.op("mul", wide, make.op("rsqrt", make.op("add", mean, epsilon)))
    out = make.op("mul", make.cast(scaled, dtype), weight)
    return make.plan(out, title="rms norm", columns=columns)
