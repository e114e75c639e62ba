"""The first ops of a plan as a plan of their own, as if the fusion had stopped there."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.model.derived import dense_strides, renamed
from advisor.model.gathers import kept_rows, renamed_input, with_indices
from advisor.model.gemm import PRODUCT, operands, renamed_product
from advisor.model.graph import Arg
from advisor.model.plan import FusionPlan, PlanOp, PlanOutput, Site, plan_id


def prefix(plan: FusionPlan, count: int) -> FusionPlan | None:
    """The kernel of the first `count` ops: it writes what later ops, or callers, still need.

    Values per column that need no rows are not written, nor those per row beside a product (a later
    kernel would compute them again); None where nothing is left to write.
    """
    if count == len(plan.ops):
        return plan
    if plan.states or plan.members:
        return None  # the state goes through the whole step; members are no row of ops
    if plan.product is not None and PRODUCT not in {a for op in plan.ops[:count] for a in op.args}:
        return None
    late = plan.late_values()
    ops, rest = plan.ops[:count], plan.ops[count:]
    needed = {arg for op in rest for arg in op.args} | {out.value for out in plan.outputs}
    product = plan.product is not None
    written = ("tile",) if product else ("tile", "row")
    outputs = tuple(
        PlanOutput(value=op.name, dtype=op.dtype, space=op.space, strided=product, last=product)
        for op in ops
        if op.name in needed and (op.space in written or op.name in late)
    )
    if not outputs:
        return None
    ops = _feeding(ops, outputs)
    read = with_indices(plan, {str(arg) for op in ops for arg in op.args} | set(operands(plan)))
    kept = [place for place, item in enumerate(plan.inputs) if item.name in read]
    names = {plan.inputs[place].name: f"in{number}" for number, place in enumerate(kept)}
    names |= {op.name: f"v{number}" for number, op in enumerate(ops)}
    found = msgspec.structs.replace(
        plan,
        title=f"{plan.title}: first {count} of {len(plan.ops)} ops",
        inputs=tuple(renamed_input(plan.inputs[place], names) for place in kept),
        ops=tuple(renamed(op, names) for op in ops),
        outputs=tuple(msgspec.structs.replace(o, value=names[o.value]) for o in outputs),
        guards=(),
        sites=tuple(_site(plan, site, kept, outputs) for site in plan.sites[:1]),
        prediction=None,
        backward_plan=None,
        product=renamed_product(plan.product, names),
    )
    found = msgspec.structs.replace(found, id=plan_id("prefix", plan.id, found.signature()))
    found.check()
    return found


def _feeding(ops: tuple[PlanOp, ...], outputs: Iterable[PlanOutput]) -> tuple[PlanOp, ...]:
    """The ops that some output rests on, in order."""
    wanted: set[Arg] = {output.value for output in outputs}
    for op in reversed(ops):
        if op.name in wanted:
            wanted |= set(op.args)
    return tuple(op for op in ops if op.name in wanted)


def _site(plan: FusionPlan, site: Site, kept: list[int], outputs: tuple[PlanOutput, ...]) -> Site:
    along = [output.along(plan.row_axes, plan.column_axes) for output in outputs if output.strided]
    return msgspec.structs.replace(
        site,
        inputs=tuple(site.inputs[place] for place in kept),
        outputs=tuple(f"%{output.value}" for output in outputs),
        input_strides=tuple(site.input_strides[place] for place in kept),
        table_rows=kept_rows(site, kept),
        output_strides=tuple(dense_strides(site.sizes, spans) for spans in along),
        run_time=None,
    )
