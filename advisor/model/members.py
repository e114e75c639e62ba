"""Horizontal plans: several independent programs in one launch.

Such a plan lists the inputs, ops and outputs of its members one after the other; each member says
how many of them are its own, and over which axes they run. Equal members stand side by side: one
body of the kernel serves them all, which is why a member names the columns that a program of it
holds (`width`). `split` gives every member as a row program of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import msgspec

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.gathers import gathers
from advisor.model.graph import Arg
from advisor.model.optable import spec_of

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site

MAX_MEMBERS, MAX_MEMBER_TENSORS = 32, 256
# Columns that one program may hold of a member that is reduced; a block of one that is not.
MAX_WIDTH = 8192
_GENERATED = re.compile(r"(in|v)\d+")
_NOBODYS = "another member's"


class Member(Record, frozen=True, kw_only=True):
    """One program of a horizontal plan: how many inputs, ops and outputs are its own.

    `width` is a power of two: the columns that its programs hold of each row, whole rows where they
    are reduced, at most that many where they are not.
    """

    row_axes: int
    inputs: int
    ops: int
    outputs: int
    width: int


class MemberSizes(Record, frozen=True, kw_only=True):
    """The iteration space of one member at a site."""

    row_sizes: tuple[int, ...]
    columns: int


def split(plan: FusionPlan) -> tuple[FusionPlan, ...]:
    """Every member as a row program without sites, its values numbered from 0; else the plan."""
    if not plan.members:
        return (plan,)
    return tuple(_part(plan, number) for number in range(len(plan.members)))


def split_site(plan: FusionPlan, site: Site) -> tuple[Site, ...]:
    """A site as each member sees it; nodes are everybody's."""
    if not plan.members:
        return (site,)
    return tuple(_part_site(plan, site, number) for number in range(len(plan.members)))


def alone(plan: FusionPlan) -> tuple[FusionPlan, ...]:
    """Every member as a row program with its own sites."""
    sites = [split_site(plan, site) for site in plan.sites]
    return tuple(
        msgspec.structs.replace(part, sites=tuple(own[number] for own in sites))
        for number, part in enumerate(split(plan))
    )


def parts(plan: FusionPlan, site: Site) -> tuple[tuple[FusionPlan, Site], ...]:
    """Every member with its own site: the plan and the site themselves, if it is one program."""
    return tuple(zip(split(plan), split_site(plan, site), strict=True))


def first_inputs(plan: FusionPlan) -> tuple[int, ...]:
    """Where the inputs of each member begin."""
    return _begins([member.inputs for member in plan.members])


def first_outputs(plan: FusionPlan) -> tuple[int, ...]:
    """Where the outputs of each member begin."""
    return _begins([member.outputs for member in plan.members])


def bodies(plan: FusionPlan) -> tuple[range, ...]:
    """The members that one body of the kernel serves: equal ones that stand side by side."""
    numbered = enumerate(zip(split(plan), plan.members, strict=True))
    found = []
    for _, run in groupby(numbered, lambda item: (item[1][0].signature(), item[1][1].width)):
        numbers = [number for number, _ in run]
        found.append(range(numbers[0], numbers[-1] + 1))
    return tuple(found)


def check_members(plan: FusionPlan, check_one: Callable[[FusionPlan], None], most_ops: int) -> None:
    """Whether the members share out everything that is in the plan, and each is legal.

    `check_one` checks a member as a program of its own, at all sites: what it would read of another
    is no value there.
    """
    if gathers(plan):
        raise InvalidRecordError("a member that reads rows of a table")
    _check_shares(plan)
    if len(plan.ops) > most_ops:
        raise InvalidRecordError("too many ops for one kernel")
    for part, member in zip(alone(plan), plan.members, strict=True):
        check_one(part)
        _check_member(part, member)


def _check_shares(plan: FusionPlan) -> None:
    """Whether counts and names are those of the members, in the plan and at every site."""
    members = plan.members
    owned = (
        (sum(member.inputs for member in members), len(plan.inputs)),
        (sum(member.ops for member in members), len(plan.ops)),
        (sum(member.outputs for member in members), len(plan.outputs)),
    )
    if not 2 <= len(members) <= MAX_MEMBERS or any(have != want for have, want in owned):
        raise InvalidRecordError("its members do not share out its inputs, ops and outputs")
    for member in members:
        counts = (member.inputs, member.ops, member.outputs)
        if min(counts) < 1 or not 1 <= member.width <= MAX_WIDTH or member.width & member.width - 1:
            raise InvalidRecordError("a member without inputs, ops or outputs, or of no width")
    named = (("in", [i.name for i in plan.inputs]), ("v", [op.name for op in plan.ops]))
    for kind, names in named:
        for position, name in enumerate(names):
            if name != f"{kind}{position}":
                raise InvalidRecordError(f"{name[:32]!r} is not named {kind}{position}")
    if len(plan.inputs) + len(plan.outputs) > MAX_MEMBER_TENSORS:
        raise InvalidRecordError("too many tensors for one kernel")
    for site in plan.sites:
        whole = len(site.inputs), len(site.outputs), len(site.input_strides), len(site.members)
        wanted = len(plan.inputs), len(plan.outputs), len(plan.inputs), len(members)
        laid_out = len(plan.outputs) if plan.strided_outputs else 0
        if whole != wanted or len(site.output_strides) != laid_out or site.row_sizes:
            raise InvalidRecordError(f"site in {site.graph}: its members do not fit the plan")


def _check_member(part: FusionPlan, member: Member) -> None:
    """Whether one member, with its own sites, is what one body of a kernel can compute."""
    reduces = any(spec_of(op.op).kind == "reduction" for op in part.ops)
    if part.row_axes < 1 or part.late_values() or part.drawn_values():
        raise InvalidRecordError("a member without rows, with sums over them or random numbers")
    if reduces and any(site.columns > member.width for site in part.sites):
        raise InvalidRecordError("a member holds fewer columns than it reduces")


def _begins(counts: list[int]) -> tuple[int, ...]:
    return (0, *accumulate(counts[:-1]))


def _part(plan: FusionPlan, number: int) -> FusionPlan:
    member = plan.members[number]
    reads, writes = first_inputs(plan)[number], first_outputs(plan)[number]
    does = _begins([one.ops for one in plan.members])[number]
    names = {f"in{reads + place}": f"in{place}" for place in range(member.inputs)}
    names |= {f"v{does + place}": f"v{place}" for place in range(member.ops)}
    own_inputs = plan.inputs[reads : reads + member.inputs]
    own_outputs = plan.outputs[writes : writes + member.outputs]
    return msgspec.structs.replace(
        plan,
        family="row_program",
        members=(),
        row_axes=member.row_axes,
        column_axes=1,
        inputs=tuple(_renamed(item, names) for item in own_inputs),
        ops=tuple(_op(op, names) for op in plan.ops[does : does + member.ops]),
        outputs=tuple(_output(item, names) for item in own_outputs),
        guards=(),
        sites=(),
        prediction=None,
        backward_plan=None,
    )


def _part_site(plan: FusionPlan, site: Site, number: int) -> Site:
    member, sizes = plan.members[number], site.members[number]
    reads, writes = first_inputs(plan)[number], first_outputs(plan)[number]
    read, written = slice(reads, reads + member.inputs), slice(writes, writes + member.outputs)
    strided = any(output.strided for output in plan.outputs[written])
    return msgspec.structs.replace(
        site,
        inputs=site.inputs[read],
        outputs=site.outputs[written],
        row_sizes=sizes.row_sizes,
        columns=sizes.columns,
        column_sizes=(),
        input_strides=site.input_strides[read],
        output_strides=site.output_strides[written] if strided else (),
        members=(),
    )


def _renamed(item: PlanInput, names: Mapping[str, str]) -> PlanInput:
    return msgspec.structs.replace(item, name=names[item.name])


def _op(op: PlanOp, names: Mapping[str, str]) -> PlanOp:
    args = tuple(_arg(arg, names) for arg in op.args)
    return msgspec.structs.replace(op, name=names[op.name], args=args)


def _arg(arg: Arg, names: Mapping[str, str]) -> Arg:
    """A value of another member becomes a name that no value has."""
    if isinstance(arg, str) and _GENERATED.fullmatch(arg):
        return names.get(arg, _NOBODYS)
    return arg


def _output(output: PlanOutput, names: Mapping[str, str]) -> PlanOutput:
    return msgspec.structs.replace(output, value=names.get(output.value, _NOBODYS))
