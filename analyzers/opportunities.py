"""Row-program opportunities: candidates become plans, plans get prices, sharing places one finding.

A finding is a set of places in the model with one or more ways to fuse them: the shorter program
that serves every site with one kernel, or the longer ones that also absorb a prologue (`variants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.model.findings import Finding
from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan
from advisor.model.report import PlanSummary
from analyzers.exposure import Situation
from analyzers.pricing import PriceList, price_list
from analyzers.recommendation import rank
from analyzers.row_plans import canonical_program
from analyzers.row_programs import RowPrograms, find_row_programs
from analyzers.variants import FindingVariants, PricedFlow, ProgramPlace


@dataclass(frozen=True)
class PricedGraph:
    """A captured graph and what its nodes cost today (None: nothing was timed)."""

    graph: Graph
    prices: PriceList | None = None


@dataclass(frozen=True)
class Advice:
    """Everything found: plans with predictions, and findings."""

    plans: tuple[FusionPlan, ...]
    findings: tuple[Finding, ...]

    def summaries(self) -> tuple[PlanSummary, ...]:
        """The plans as a report lists them."""
        return tuple(
            PlanSummary(
                id=plan.id,
                title=plan.title,
                rule=plan.rule,
                family=plan.family,
                phase=plan.phase,
                sites=len(plan.sites),
                saving_ns=plan.prediction.saving_ns if plan.prediction else None,
            )
            for plan in self.plans
        )


def advise(graphs: Sequence[PricedGraph], situation: Situation) -> Advice:
    """All row-program findings of a step, best first."""
    places: list[ProgramPlace] = []
    misses: dict[tuple[str, str], list[str]] = {}
    for item in graphs:
        found = find_row_programs(item.graph)
        facts = PricedFlow(found.flow, item.prices or price_list(()), item.graph.phase)
        places += _places(facts, found)
        _collect_reasons(found, misses)
    found_variants = [FindingVariants(group, situation, misses) for group in _overlapping(places)]
    # One op is one kernel in eager: a library's own, not to be replaced without a measurement.
    least = 2 if situation.eager else 1
    built = [item.result() for item in found_variants if item.source_op_count >= least]
    built.sort(key=lambda pair: -rank(pair[1]))
    plans = {plan.id: plan for own, _ in built for plan in own}
    findings = tuple(finding for _, finding in built)
    return Advice(tuple(plans.values()), findings)


def _places(facts: PricedFlow, found: RowPrograms) -> list[ProgramPlace]:
    places = (
        ProgramPlace(
            facts,
            canonical_program(facts.flow, whole),
            canonical_program(facts.flow, core) if core else None,
        )
        for whole, core in zip(found.whole, found.cores, strict=True)
    )
    return [place for place in places if _is_run(place)]


def _is_run(place: ProgramPlace) -> bool:
    """Whether some kernel is known to compute the place, where the compiler says what they do."""
    facts = place.facts
    nodes = place.whole.site.nodes
    return not facts.prices.fused or bool(facts.prices.price(facts.flow, nodes).units)


def _overlapping(places: Sequence[ProgramPlace]) -> list[list[ProgramPlace]]:
    """Places that share a signature, through wholes or cores, belong to one finding."""
    parent = list(range(len(places)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    owner: dict[tuple[str, str], int] = {}
    for index, place in enumerate(places):
        for program in place.programs():
            first = owner.setdefault((place.facts.phase, program.signature()), index)
            parent[root(index)] = root(first)
    groups: dict[int, list[ProgramPlace]] = {}
    for index, place in enumerate(places):
        groups.setdefault(root(index), []).append(place)
    return list(groups.values())


def _collect_reasons(found: RowPrograms, reasons: dict[tuple[str, str], list[str]]) -> None:
    for miss in found.near_misses:
        node = found.flow.nodes[miss.node]
        if node.args and miss.node != miss.seed:
            text = f"{node.label or node.target}: {miss.reason}"
            reasons.setdefault((found.flow.graph.id, miss.seed), []).append(text)
