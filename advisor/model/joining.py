"""Several programs made one horizontal plan, in an order that depends on what they are alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.model.block_configs import has_reductions
from advisor.model.derived import dense_strides, renamed
from advisor.model.guards import Guard
from advisor.model.launch import next_power_of_two
from advisor.model.members import MAX_WIDTH, Member, MemberSizes
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site


def width_of(program: FusionPlan, site: Site) -> int:
    """The columns that a program of the member holds, or has in a block at most.

    What has a single row is one run of elements: blocks of any length suit it.
    """
    if not has_reductions(program) and site.rows == 1:
        return MAX_WIDTH
    return min(next_power_of_two(site.columns), MAX_WIDTH)


def member_key(program: FusionPlan, site: Site) -> tuple[str, int]:
    """Equal for two programs exactly when one body serves both."""
    return program.signature(), width_of(program, site)


def join(programs: Sequence[FusionPlan], identity: str, title: str) -> FusionPlan:
    """One plan of several programs, each with its own site: equal ones side by side.

    The order in which they are given decides nothing but which of two equal ones is bound first.
    """
    keyed = sorted(programs, key=lambda program: member_key(program, program.sites[0]))
    inputs: list[PlanInput] = []
    ops: list[PlanOp] = []
    outputs: list[PlanOutput] = []
    members: list[Member] = []
    guards: list[Guard] = []
    for program in keyed:
        names = {item.name: f"in{len(inputs) + n}" for n, item in enumerate(program.inputs)}
        names |= {op.name: f"v{len(ops) + n}" for n, op in enumerate(program.ops)}
        inputs += [msgspec.structs.replace(i, name=names[i.name]) for i in program.inputs]
        ops += [renamed(op, names) for op in program.ops]
        outputs += [
            msgspec.structs.replace(output, value=names[output.value]) for output in program.outputs
        ]
        members.append(
            Member(
                row_axes=program.row_axes,
                inputs=len(program.inputs),
                ops=len(program.ops),
                outputs=len(program.outputs),
                width=width_of(program, program.sites[0]),
            )
        )
        guards += [
            msgspec.structs.replace(guard, subject=names[guard.subject])
            for guard in program.guards
            if guard.subject in names
        ]
    return FusionPlan(
        id=identity,
        rule=keyed[0].rule,
        title=title,
        family="horizontal",
        phase=keyed[0].phase,
        row_axes=0,
        inputs=tuple(inputs),
        ops=tuple(ops),
        outputs=tuple(outputs),
        guards=tuple(guards),
        members=tuple(members),
        sites=(joined_site(keyed),),
    )


def joined_site(programs: Sequence[FusionPlan]) -> Site:
    """The sites of the members as one, in their order."""
    sites = [program.sites[0] for program in programs]
    strided = any(program.strided_outputs for program in programs)
    written = [
        strides
        for program, site in zip(programs, sites, strict=True)
        for strides in site.output_strides
        or [dense_strides(site.sizes, o.along(program.row_axes, 1)) for o in program.outputs]
    ]
    return Site(
        graph=sites[0].graph,
        nodes=tuple(dict.fromkeys(name for site in sites for name in site.nodes)),
        inputs=tuple(value for site in sites for value in site.inputs),
        outputs=tuple(value for site in sites for value in site.outputs),
        row_sizes=(),
        columns=sum(site.rows * site.columns for site in sites),
        input_strides=tuple(strides for site in sites for strides in site.input_strides),
        output_strides=tuple(written) if strided else (),
        location=sites[0].location,
        executions=sites[0].executions,
        members=tuple(MemberSizes(row_sizes=s.row_sizes, columns=s.columns) for s in sites),
    )
