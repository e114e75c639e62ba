"""The tensors that a kernel addresses by run-time strides, and the names of these parameters."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.gathers import table_axis
from advisor.model.gemm import unit_axis
from advisor.model.plan import FusionPlan, PlanInput


@dataclass(frozen=True)
class Strided:
    """A tensor that is addressed by strides: along which axes, and the parameters of those.

    `strides` are (axis, parameter name); `unit` is the axis along which it is stored without gaps.
    Of a table, the stride of its rows stands on the axis of `gathers.table_axis`.
    """

    name: str
    along: tuple[bool, ...]
    strides: tuple[tuple[int, str], ...]
    unit: int | None


def strided(plan: FusionPlan) -> tuple[Strided, ...]:
    """The inputs and outputs with strides, in order."""
    last = plan.row_axes + plan.column_axes - 1
    found = [
        (item.name, _walked(plan, item), unit_axis(plan, item))
        for item in plan.inputs
        if not item.dense and item.gathered is None
    ]
    tables = [i for i in plan.inputs if i.gathered is not None and not i.dense]
    for position, output in enumerate(plan.outputs):
        along = output.along(plan.row_axes, plan.column_axes)
        if output.strided:
            beside = last - 1 if output.turned else last
            unit = beside if along[beside] and (output.turned or output.unit_stride) else None
            found.append((f"out{position}", along, unit))
    whole = tuple(
        Strided(
            name=name,
            along=along,
            strides=tuple(
                (axis, f"{name}_stride_{axis}")
                for axis, spans in enumerate(along)
                if spans and axis != unit
            ),
            unit=unit,
        )
        for name, along, unit in found
    )
    return (*(_table(plan, item) for item in tables), *whole)


def _table(plan: FusionPlan, item: PlanInput) -> Strided:
    """A table with gaps between its rows: of the iteration space it has the columns alone."""
    axis = table_axis(item)
    along = (*(False,) * plan.row_axes, True)
    return Strided(item.name, along, ((axis, f"{item.name}_stride_{axis}"),), plan.row_axes)


def _walked(plan: FusionPlan, item: PlanInput) -> tuple[bool, ...]:
    """The axes along which an input is addressed; the rows of a left operand are one axis."""
    along = plan.along(item)
    if plan.product is None or item.name != plan.product.left:
        return along
    inner = plan.row_axes - 2
    return tuple(spans and axis >= inner for axis, spans in enumerate(along))
