"""A plan cut in two: the kernel of its first ops, and that of the rest, which reads its results."""

from __future__ import annotations

import msgspec

from advisor.model.derived import dense_strides, renamed
from advisor.model.gathers import kept_rows, renamed_input, with_indices
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, Site, plan_id
from advisor.model.prefix import prefix


def halves(plan: FusionPlan, count: int) -> tuple[FusionPlan, FusionPlan] | None:
    """The first `count` ops and the others as plans of their own; None where there are none.

    What passes between them is written and read once. Values of the columns alone, and scalars,
    are computed in both. Only the first site is kept.
    """
    if plan.product is not None:
        return None  # a product without what follows is the library's
    first = prefix(plan, count) if 0 < count < len(plan.ops) else None
    rest = _rest(plan, count) if first is not None else None
    return None if first is None or rest is None else (first, rest)


def _rest(plan: FusionPlan, count: int) -> FusionPlan | None:
    """The later ops; None where only values of the columns are left, which are no row program."""
    late = plan.late_values()
    written = {
        op.name: op for op in plan.ops[:count] if op.space in ("tile", "row") or op.name in late
    }
    ops = _needed(plan, count, set(written))
    read = with_indices(plan, {str(arg) for op in ops for arg in op.args})
    passed = [op for name, op in written.items() if name in read]
    kept = [place for place, item in enumerate(plan.inputs) if item.name in read]
    names = {plan.inputs[place].name: f"in{number}" for number, place in enumerate(kept)}
    names |= {op.name: f"in{len(kept) + number}" for number, op in enumerate(passed)}
    names |= {op.name: f"v{number}" for number, op in enumerate(ops)}
    computed = {op.name for op in plan.ops[count:]}
    outputs = [place for place, out in enumerate(plan.outputs) if out.value in computed]
    found = msgspec.structs.replace(
        plan,
        title=f"{plan.title}: the ops after the first {count}",
        inputs=(
            *(renamed_input(plan.inputs[place], names) for place in kept),
            *(_input(plan, op, names[op.name]) for op in passed),
        ),
        ops=tuple(renamed(op, names) for op in ops),
        outputs=tuple(
            msgspec.structs.replace(plan.outputs[place], value=names[plan.outputs[place].value])
            for place in outputs
        ),
        guards=(),
        sites=tuple(_site(plan, site, kept, passed, outputs) for site in plan.sites[:1]),
        prediction=None,
        backward_plan=None,
    )
    late = found.late_values()
    if any(out.space == "column" and out.value not in late for out in found.outputs):
        return None
    found = msgspec.structs.replace(found, id=plan_id("rest", plan.id, found.signature()))
    found.check()
    return found


def _needed(plan: FusionPlan, count: int, written: set[str]) -> tuple[PlanOp, ...]:
    """The later ops, and the earlier ones of no rows that they read."""
    ops = list(plan.ops[count:])
    wanted = {arg for op in ops for arg in op.args}
    again = []
    for op in reversed(plan.ops[:count]):
        if op.name in wanted and op.name not in written:
            again.append(op)
            wanted |= set(op.args)
    return (*reversed(again), *ops)


def _spans(plan: FusionPlan, op: PlanOp) -> tuple[bool, ...]:
    rows = op.space in ("tile", "row")
    return (*(rows,) * plan.row_axes, op.space in ("tile", "column"))


def _input(plan: FusionPlan, op: PlanOp, name: str) -> PlanInput:
    return PlanInput(name=name, dtype=op.dtype, spans=_spans(plan, op), dense=True)


def _site(
    plan: FusionPlan, site: Site, kept: list[int], passed: list[PlanOp], outputs: list[int]
) -> Site:
    return msgspec.structs.replace(
        site,
        inputs=(*(site.inputs[place] for place in kept), *(f"%{op.name}" for op in passed)),
        outputs=tuple(site.outputs[place] for place in outputs),
        input_strides=(
            *(site.input_strides[place] for place in kept),
            *(_strides(plan, op, site) for op in passed),
        ),
        table_rows=kept_rows(site, kept, more=len(passed)),
        output_strides=tuple(site.output_strides[place] for place in outputs)
        if any(plan.outputs[place].strided for place in outputs)
        else (),
        run_time=None,
    )


def _strides(plan: FusionPlan, op: PlanOp, site: Site) -> tuple[int, ...]:
    """Of a value without gaps, in the order of the axes; 0 where it does not vary."""
    spans = _spans(plan, op)
    along = (*spans[:-1], *(spans[-1:] * len(site.column_axes)))
    return dense_strides(site.sizes, along)
