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


@dataclass(frozen=True)
class GraphPrograms:
    """Every program that a plan may be for: scans, each longest row program and its ways, products
    with what follows them, chains of what is left.
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


def programs_of(graph: Graph) -> GraphPrograms:
    """All programs of a graph."""
    found = find_row_programs(graph)
    scans = [item.program for item in scan_programs(found.flow) if item.program is not None]
    rows = (canonical_program(found.flow, group) for group in found.every_group())
    taken = taken_by(found, *(program.site.nodes for program in scans))
    products = (item.program for item in gemm_programs(found.flow, taken))
    gemms = [program for program in products if program is not None]
    beside = chains_beside(found, [program.site.nodes for program in (*scans, *gemms)])
    chains = (canonical_program(found.flow, group) for group in beside.groups)
    return GraphPrograms(found, graph.phase, (*scans, *rows, *gemms, *chains))
