"""Row-program opportunities: candidates become plans, plans get prices, sharing places one finding.

A finding is a set of places in the model with one or more ways to fuse them: the shorter program
that serves every site with one kernel, or the longer ones that also absorb a prologue (`variants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from advisor.hardware.learned import recalibrated
from advisor.model.base import Range
from advisor.model.findings import Finding
from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan
from advisor.model.report import PlanSummary
from advisor.model.site_work import bytes_share
from analyzers.chain_programs import chains_beside
from analyzers.choice import Worth
from analyzers.dataflow import Dataflow, dataflow
from analyzers.exposure import Situation
from analyzers.fan_out import FanOut
from analyzers.gemm_advice import GemmAdvice, advise_gemms
from analyzers.gemm_programs import taken_by
from analyzers.growth import Group, NearMiss
from analyzers.horizontal import GroupPlace, group_findings, group_places, with_rest
from analyzers.pairing import paired
from analyzers.prediction import PricedFlow
from analyzers.pricing import PriceList, price_list
from analyzers.program_cost import modelled_before, program_time, residual_time, sum_of
from analyzers.recommendation import rank
from analyzers.replay_changes import Change
from analyzers.row_plans import Program, canonical_program
from analyzers.row_programs import RowPrograms, row_programs
from analyzers.scan_advice import ScanAdvice, advise_scans
from analyzers.variants import FindingVariants, ProgramPlace


@dataclass(frozen=True)
class PricedGraph:
    """A captured graph and what its nodes cost today (None: nothing was timed)."""

    graph: Graph
    prices: PriceList | None = None

    @cached_property
    def flow(self) -> Dataflow:
        """Who feeds whom, analysed once for all who ask."""
        return dataflow(self.graph)


# Plans with predictions, their finding, and what that does to the recorded step.
Built: TypeAlias = tuple[Sequence[FusionPlan], Finding, Change]


@dataclass(frozen=True)
class Advice:
    """Everything found: plans with predictions, and findings; by graph, what stays out and why.

    `changes` are what findings do to the recorded step, by their ids. `scans` are those of written-
    out recurrences, whose plans are among `plans`: their findings are the rule's. So of `gemms`.
    `chains` are kernels of pointwise ops alone, for the findings that tell of those ops: their
    plans are among `plans` once one does (`naming`). Those that a product leaves come last, and
    share ops with the chains that stand before them.
    """

    plans: tuple[FusionPlan, ...]
    findings: tuple[Finding, ...]
    near_misses: Mapping[str, tuple[NearMiss, ...]] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    scans: ScanAdvice = field(default_factory=ScanAdvice)
    gemms: GemmAdvice = field(default_factory=GemmAdvice)
    chains: tuple[Built, ...] = ()

    def naming(self, findings: Iterable[Finding]) -> Advice:
        """The same, with the plans of those chains that a finding names."""
        named = {plan_id for f in findings for way in f.alternatives for plan_id in way.plan_ids}
        more = (plan for own, _, _ in self.chains for plan in own if plan.id in named)
        return replace(self, plans=(*self.plans, *more))

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


def advise(
    graphs: Sequence[PricedGraph], situation: Situation, *, horizontal: bool = True
) -> Advice:
    """All row-program findings of a step, best first, then those of `horizontal` groups; plans of
    scans and of products, which rules of their own tell.
    """
    places: list[ProgramPlace] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    fan_outs: dict[tuple[str, str], list[FanOut]] = {}
    near_misses: dict[str, tuple[NearMiss, ...]] = {}
    sets: list[GroupPlace] = []
    outside: list[str] = []
    rows: list[RowPrograms] = []
    priced = [
        PricedFlow(item.flow, item.prices or price_list(()), item.graph.phase) for item in graphs
    ]
    for facts in priced:
        found = row_programs(facts.flow, saved_time(facts, situation))
        places += _places(facts, found)
        _collect_reasons(found.flow, found.near_misses, reasons)
        _collect_fan_outs(found, fan_outs)
        near_misses[facts.flow.graph.id] = found.near_misses
        rows.append(found)
        if horizontal:
            together, alone = group_places(facts, found, situation)
            sets += together
            outside += alone.values() if together else ()
    found_variants = [
        FindingVariants(group, situation, reasons, fan_outs) for group in _overlapping(places)
    ]
    # One op is one kernel in eager: a library's own, not to be replaced without a measurement.
    least = 2 if situation.eager else 1
    scans = advise_scans(priced, situation)
    several = [item.result() for item in found_variants if item.source_op_count >= least]
    built = [item for item in several if not scans.hold(item[0])]
    built.sort(key=lambda item: -rank(item[1]))
    plans = {plan.id: plan for own, _, _ in built for plan in own}
    findings = tuple(finding for _, finding, _ in built)
    changes = {finding.id: change for _, finding, change in built}
    flows = {item.graph.id: item.flow for item in graphs}
    every = paired(tuple(plans.values()), flows)
    for plan, finding, change in group_findings(sets, outside, situation):
        if not scans.hold((plan,)):
            every, changes[finding.id] = (*every, plan), change
            findings = (*findings, with_rest(finding, *_left(plan, built)))
    gemms = advise_gemms(
        [
            (facts, taken_by(found, (n for g, n in scans.nodes if g == facts.flow.graph.id)))
            for facts, found in zip(priced, rows, strict=True)
        ],
        situation,
    )
    every = (*every, *scans.plans, *(item.plan for item in gemms.plans))
    chains = _every_chain(priced, rows, scans, gemms, situation) if horizontal else []
    return Advice(every, findings, near_misses, changes, scans, gemms, tuple(chains))


def _every_chain(
    priced: Sequence[PricedFlow],
    rows: Sequence[RowPrograms],
    scans: ScanAdvice,
    gemms: GemmAdvice,
    situation: Situation,
) -> list[Built]:
    """Chains, and then what is left of them where products take what they are expected to win by.

    A product may lose its bet, so it takes nothing from a chain: both are ways of one finding.
    """
    chains = _chains(priced, rows, scans.plans, situation)
    likely = [item.plan for item in gemms.plans if item.likely]
    if not likely or not chains:
        return chains
    known = {plan.id for own, _, _ in chains for plan in own}
    left = _chains(priced, rows, [*scans.plans, *likely], situation)
    return [*chains, *(item for item in left if known.isdisjoint(plan.id for plan in item[0]))]


def _chains(
    priced: Sequence[PricedFlow],
    rows: Sequence[RowPrograms],
    others: Sequence[FusionPlan],
    situation: Situation,
) -> list[Built]:
    """Findings of pointwise ops that neither row programs nor `others` take, best first; those that
    save something.
    """
    places: list[ProgramPlace] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for facts, found in zip(priced, rows, strict=True):
        graph = facts.flow.graph.id
        beside = [site.nodes for plan in others for site in plan.sites if site.graph == graph]
        chains = chains_beside(found, beside)
        _collect_reasons(facts.flow, chains.misses, reasons)
        programs = (canonical_program(facts.flow, group) for group in chains.groups)
        places += [ProgramPlace(facts, program, None) for program in programs]
    variants = [FindingVariants(group, situation, reasons, {}) for group in _overlapping(places)]
    built = [item.result() for item in variants if item.source_op_count > 1]
    saving = [item for item in built if _saves(item[1])]
    return sorted(saving, key=lambda item: -rank(item[1]))


def _saves(finding: Finding) -> bool:
    saving = finding.alternatives[0].saving_ns
    return saving is not None and saving.mid > 0


def _left(
    plan: FusionPlan, built: Sequence[tuple[Sequence[FusionPlan], Finding, Change]]
) -> tuple[list[str], Range]:
    """Of the row programs that share ops with a horizontal plan: those with sites it has not.

    By id, with what they save there: of what they save at all their sites, their shares by bytes.
    """
    covered = {(site.graph, name) for site in plan.sites for name in site.nodes}
    ids: list[str] = []
    saving = Range(low=0, mid=0, high=0)
    for own, finding, _ in built:
        best = finding.alternatives[0]
        sites = [(p, site) for p in own if p.id in best.plan_ids for site in p.sites]
        free = [
            (p, site) for p, site in sites if not covered & {(site.graph, n) for n in site.nodes}
        ]
        if best.saving_ns is not None and free and len(free) < len(sites):
            ids += dict.fromkeys(p.id for p, _ in free)
            saving = saving.plus(best.saving_ns.scaled(bytes_share(free, sites)))
    return ids, saving


def saved_time(facts: PricedFlow, situation: Situation) -> Worth:
    """What groups are worth together: the kernel time that they save at their own prices, in ns.

    Within one step the exposed saving grows with it, so both order sets of groups alike.
    """
    gpu, calibration = situation.gpu, situation.calibration

    def worth(flow: Dataflow, groups: Sequence[Group]) -> float:
        own = [name for group in groups for name in group.own]
        price = facts.prices.price(flow, own)
        modelled, _ = modelled_before(
            flow, own, gpu, calibration, only=price.unpriced, again=not facts.prices.fused
        )
        left = residual_time(flow, price.shared, frozenset(own), gpu, calibration)
        times = [left] if left is not None else []
        for group in groups:
            program = canonical_program(flow, group)
            plan = program.as_plan("0" * 16, "", facts.phase)
            times.append(program_time(plan, program.site, gpu, calibration))
        after = recalibrated(sum_of(times), situation.residuals)
        return price.time_ns + modelled.mid - after.mid

    return worth


def _places(facts: PricedFlow, found: RowPrograms) -> list[ProgramPlace]:
    def program(group: Group | None) -> Program | None:
        return canonical_program(facts.flow, group) if group is not None else None

    return [
        ProgramPlace(
            facts,
            canonical_program(facts.flow, whole),
            program(core),
            program(plain),
            program(apart),
        )
        for whole, core, plain, apart in zip(
            found.whole, found.cores, found.plain, found.apart, strict=True
        )
    ]


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


def _collect_reasons(
    flow: Dataflow, misses: Iterable[NearMiss], reasons: dict[tuple[str, str], list[str]]
) -> None:
    for miss in misses:
        node = flow.nodes[miss.node]
        if node.args and miss.node != miss.seed:
            name = node.label or node.target
            text = miss.reason if miss.reason.startswith(name) else f"{name}: {miss.reason}"
            reasons.setdefault((flow.graph.id, miss.seed), []).append(text)


def _collect_fan_outs(found: RowPrograms, texts: dict[tuple[str, str], list[FanOut]]) -> None:
    for item in found.fan_outs:
        texts.setdefault((found.flow.graph.id, item.seed), []).append(item)
