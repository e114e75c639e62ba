"""The programs of a graph that is being compiled, and which of them are a plan's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from advisor.model.base import Phase
from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan, Site
from analyzers.chain_programs import chains_beside
from analyzers.gemm_programs import gemm_programs, taken_by
from analyzers.independent import Candidate, candidates, matching_sets
from analyzers.row_plans import Program, canonical_program
from analyzers.row_programs import RowPrograms, find_row_programs
from analyzers.scan_programs import scan_programs

NO_SITE = "no site of it is in the compiled graph"
TAKEN = "the ops of its sites are those of kernels that come first"


@dataclass(frozen=True)
class GraphPrograms:
    """Every program that a plan may be for: scans, each longest row program and its ways, products
    with what follows them, chains of what is left, also where products take nothing.
    """

    found: RowPrograms
    phase: Phase
    programs: tuple[Program, ...]

    @cached_property
    def small(self) -> list[Candidate]:
        """Those that may be members of a horizontal group; looked for when a plan asks."""
        return candidates(self.found, self.phase)[0]

    def sites_of(self, plan: FusionPlan, taken: Set[str]) -> Iterator[Site]:
        """The sites at which a plan is what the graph computes, none with nodes in `taken`.

        `taken` may grow between two of them.
        """
        if plan.members:
            for made in matching_sets(self.found, self.small, plan, frozenset(taken)):
                yield made.sites[0]
            return
        signature = plan.signature()
        for program in self.programs:
            has_work = program.site.columns > 0 and program.site.rows > 0
            if program.signature() == signature and has_work and not taken & {*program.site.nodes}:
                yield program.site


def placed(
    programs: GraphPrograms | None, plans: Sequence[FusionPlan]
) -> Iterator[tuple[int, Site]]:
    """The sites that plans take in a graph, each with the number of its plan; a node is used once,
    earlier plans first.
    """
    taken: set[str] = set()
    if programs is None:
        return
    for number, plan in enumerate(plans):
        for site in programs.sites_of(plan, taken):
            taken.update(site.nodes)
            yield number, site


def why_no_site(plan: FusionPlan, graphs: Sequence[GraphPrograms]) -> str:
    """Why none of its sites in compiled graphs became a plan's."""
    if any(True for programs in graphs for _ in programs.sites_of(plan, frozenset())):
        return TAKEN
    alike = (p for programs in graphs for p in programs.programs if _but_for_layout(plan, p))
    other = next(alike, None)
    if other is not None and plan.sites:
        return f"{NO_SITE}: its ops are there, but {_laid_out(plan.sites[0], other.site)}"
    typed = (_other_type(plan, p) for programs in graphs for p in programs.programs)
    found = next(filter(None, typed), "")
    return f"{NO_SITE}: its ops are there, but {found}" if found else NO_SITE


def _but_for_layout(plan: FusionPlan, program: Program) -> bool:
    """Whether a program computes what a plan does, of tensors that may lie otherwise in memory."""
    return not plan.members and (
        plan.ops == program.ops
        and [(i.dtype, i.counts, i.gathered) for i in plan.inputs]
        == [(i.dtype, i.counts, i.gathered) for i in program.inputs]
        and [(o.value, o.dtype) for o in plan.outputs]
        == [(o.value, o.dtype) for o in program.outputs]
    )


def _other_type(plan: FusionPlan, program: Program) -> str:
    """The first difference in type of inputs, of a program with the ops of a plan but for casts."""
    names = [[op.op for op in ops if op.op != "cast"] for ops in (plan.ops, program.ops)]
    if plan.members or names[0] != names[1] or len(plan.inputs) != len(program.inputs):
        return ""
    types = (
        (one.dtype, other.dtype) for one, other in zip(plan.inputs, program.inputs, strict=True)
    )
    found = next(((one, other) for one, other in types if one != other), None)
    return f"on {found[1]}, not {found[0]}" if found is not None else ""


def _laid_out(captured: Site, compiled: Site) -> str:
    """The first difference in how two sites of the same ops walk memory."""
    both = zip(compiled.inputs, captured.input_strides, compiled.input_strides, strict=False)
    for name, before, now in both:
        if before != now:
            return f"{name} has strides {now}, not {before}"
    return "what they write is laid out otherwise"


def programs_of(graph: Graph) -> GraphPrograms:
    """All programs of a graph."""
    found = find_row_programs(graph)
    scans = [item.program for item in scan_programs(found.flow) if item.program is not None]
    rows = (canonical_program(found.flow, group) for group in found.every_group())
    taken = taken_by(found, *(program.site.nodes for program in scans))
    products = (item.program for item in gemm_programs(found.flow, taken))
    gemms = [program for program in products if program is not None]
    named = [program.site.nodes for program in scans]
    beside = chains_beside(found, [*named, *(program.site.nodes for program in gemms)])
    # A plan of what follows a product that stays with the library: no product has its ops.
    after = chains_beside(found, named) if gemms else beside
    chains = [canonical_program(found.flow, group) for group in beside.groups]
    others = (canonical_program(found.flow, g) for g in after.groups if g not in beside.groups)
    return GraphPrograms(found, graph.phase, (*scans, *rows, *gemms, *chains, *others))
