"""Small programs with no dataflow between them: which can share one launch.

Physics: a kernel of a few microseconds is launch and tail: its few programs leave most of the GPU
idle, and the next kernel waits for the last of them. Programs that wait for nothing of each other
can be one launch. Each must be convex alone; a set of them is convex as a whole if no path leads
from one to another, through whatever lies between. Other kernels are single steps, too: a path
through one counts, so that sets and kernels never wait for each other in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from advisor.errors import IllegalFusionError
from advisor.model.base import Phase
from advisor.model.gathers import gathers
from advisor.model.graph import node_of
from advisor.model.joining import join, member_key
from advisor.model.members import MAX_MEMBER_TENSORS, MAX_MEMBERS, MAX_WIDTH, split
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from analyzers.dataflow import Dataflow
from analyzers.growth import Group, grow
from analyzers.kernel_order import KernelOrder
from analyzers.row_plans import Program, canonical_program
from analyzers.row_programs import RowPrograms

# What a GPU moves in some microseconds: a kernel that moves more is no matter of its launch.
MOST_BYTES = 16 << 20
NOBODY = "0" * 16
WAITS = "it waits for a program that it could share a launch with, or that one for it"
SUMS_ROWS = "it sums over the rows, which takes a kernel of its own"


@dataclass(frozen=True)
class Candidate:
    """A program that may be a member: its nodes, its plan with its one site, its place in depth.

    `place` is the stream and the device that it runs on.
    """

    members: frozenset[str]
    plan: FusionPlan
    depth: int
    place: tuple[object, ...] = ()

    @property
    def runs(self) -> tuple[object, ...]:
        """Where and how often it runs: a launch has one of each."""
        return *self.place, self.plan.sites[0].executions

    @cached_property
    def key(self) -> tuple[str, int]:
        """Equal for two candidates that one body serves."""
        return member_key(self.plan, self.plan.sites[0])


@dataclass(frozen=True)
class Sets:
    """Sets of independent candidates, and why small programs are in none, by their first node."""

    taken: tuple[tuple[Candidate, ...], ...]
    misses: Mapping[str, str] = field(default_factory=dict)


def candidates(found: RowPrograms, phase: Phase) -> tuple[list[Candidate], dict[str, str]]:
    """The small programs of a graph, in order of depth; why others of its programs are none."""
    flow = found.flow
    depths = _depths(flow)
    kept: list[Candidate] = []
    out: dict[str, str] = {}
    for group in (*found.whole, *_pointwise(found)):
        program = canonical_program(flow, group)
        why = _unfit(program)
        plan = program.as_plan(NOBODY, "", phase)
        if why is None and site_bytes(plan, plan.sites[0]) <= MOST_BYTES:
            depth = max(depths[name] for name in group.members)
            node = flow.nodes[group.seed]
            place = node.stream, node.outputs[0].device
            kept.append(Candidate(frozenset(group.members), plan, depth, place))
        elif why is not None:
            out[group.members[0]] = why
    kept.sort(key=lambda item: (item.depth, min(flow.index[name] for name in item.members)))
    return kept, out


def independent_sets(found: RowPrograms, small: Sequence[Candidate]) -> Sets:
    """Disjoint sets of two members or more, each as large as it gets, nearest in depth first."""
    gathering = _Gathering(found, small)
    left, taken = list(range(len(small))), []
    misses: dict[str, str] = {}
    while left:
        chosen, left = gathering.first_of(left, {})
        if len(chosen) > 1:
            gathering.order.join(chosen)
            taken.append(tuple(small[number] for number in chosen))
        else:
            misses[_first(found.flow, small[chosen[0]])] = WAITS
    return Sets(tuple(taken), misses)


def matching_sets(
    found: RowPrograms, small: Sequence[Candidate], plan: FusionPlan, used: frozenset[str]
) -> list[FusionPlan]:
    """Sets of a graph that are the very members of a horizontal plan, each as one with its site.

    Nodes in `used` belong to other kernels.
    """
    wanted = Counter(_keys(plan))
    gathering = _Gathering(found, small)
    left = [n for n, item in enumerate(small) if item.key in wanted and not item.members & used]
    sets: list[FusionPlan] = []
    while len(left) >= len(plan.members):
        chosen, rest = gathering.first_of(left, wanted)
        if Counter(small[number].key for number in chosen) == wanted:
            gathering.order.join(chosen)
            made = join([small[number].plan for number in chosen], plan.id, plan.title)
            if made.signature() == plan.signature():
                sets.append(made)
        else:  # the first one has no set of this kind
            rest = left[1:]
        left = rest
    return sets


def _keys(plan: FusionPlan) -> list[tuple[str, int]]:
    members = zip(split(plan), plan.members, strict=True)
    return [(part.signature(), member.width) for part, member in members]


class _Gathering:
    """Candidates by number, and the order of them and of all other row programs."""

    def __init__(self, found: RowPrograms, small: Sequence[Candidate]) -> None:
        self.small = small
        known = {item.members for item in small}
        kernels = [frozenset(group.members) for group in found.whole]
        others = [group for group in kernels if group not in known]
        self.order = KernelOrder(found.flow, [*(item.members for item in small), *others])

    def first_of(
        self, left: Sequence[int], wanted: Mapping[tuple[str, int], int]
    ) -> tuple[list[int], list[int]]:
        """(the first candidate with all that may join it, the rest); as many as are `wanted`."""
        chosen: list[int] = []
        counts: Counter[tuple[str, int]] = Counter()
        tensors = 0
        free = sum(1 << number for number in left)
        while free:
            number = (free & -free).bit_length() - 1
            free &= free - 1
            item = self.small[number]
            size = len(item.plan.inputs) + len(item.plan.outputs)
            room = len(chosen) < MAX_MEMBERS and tensors + size <= MAX_MEMBER_TENSORS
            asked = not wanted or counts[item.key] < wanted[item.key]
            alike = not chosen or self.small[chosen[0]].runs == item.runs
            if room and asked and alike:
                chosen.append(number)
                counts[item.key] += 1
                tensors += size
                free &= ~self.order.related(number)
        return chosen, [number for number in left if number not in chosen]


def _unfit(program: Program) -> str | None:
    """Why a program can be no member of a launch, whatever its size."""
    plan = program.as_plan(NOBODY, "", "inference")
    reduces = any(spec_of(op.op).kind == "reduction" for op in plan.ops)
    if plan.late_values():
        return SUMS_ROWS
    if gathers(plan):
        return "it reads rows of a table"
    if plan.drawn_values():
        return "it draws random numbers"
    if plan.column_axes > 1:
        return "its columns are several axes"
    if not plan.row_axes or not program.site.rows or not program.site.columns:
        return "it has no rows"
    if reduces and program.site.columns > MAX_WIDTH:
        return f"its rows of {program.site.columns:,} columns are too long to share a kernel"
    return None


def _pointwise(found: RowPrograms) -> list[Group]:
    """Groups of pointwise ops that are in no row program, of tensors small enough for members."""
    flow = found.flow
    claimed = {name: "part of a row program" for group in found.whole for name in group.members}
    groups = []
    for name in flow.index:
        if name in claimed or not _is_small_pointwise(flow, name):
            continue
        group = grow(flow, name, claimed).group
        if group is not None and _is_pointwise(flow, group):
            claimed.update(dict.fromkeys(group.members, "part of another group"))
            groups.append(group)
    return groups


def _is_small_pointwise(flow: Dataflow, name: str) -> bool:
    node = flow.nodes[name]
    if spec_of(node.op).kind != "pointwise" or len(node.outputs) != 1 or not node.value_args:
        return False
    try:
        return flow.elements(node.outputs[0].shape) <= MOST_BYTES
    except IllegalFusionError:
        return False


def _is_pointwise(flow: Dataflow, group: Group) -> bool:
    return all(spec_of(flow.nodes[name].op).kind == "pointwise" for name in group.members)


def _depths(flow: Dataflow) -> dict[str, int]:
    """How many nodes are on the longest path to each node, itself included."""
    depths: dict[str, int] = {}
    for name in flow.index:
        before = (node_of(flow.base(value))[0] for value in flow.nodes[name].value_args)
        depths[name] = 1 + max((depths.get(other, 0) for other in before), default=0)
    return depths


def _first(flow: Dataflow, item: Candidate) -> str:
    return min(item.members, key=flow.index.__getitem__)
