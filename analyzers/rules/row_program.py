"""Norms in pieces, written-out softmaxes and every other chain around a row reduction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.plan import FusionPlan
from advisor.units import format_ns
from analyzers.exposure import Situation
from analyzers.horizontal import RULE as HORIZONTAL
from analyzers.opportunities import Advice, PricedGraph, advise
from analyzers.rules.base import (
    Match,
    Place,
    Rule,
    change_of,
    cost_of,
    exposure,
    is_worth,
    locations_of,
    members_of,
    time_evidence,
    traffic_evidence,
)
from analyzers.subject import GraphFacts, Subject

# Sites and programs do not depend on the GPU; where it is unknown, its prices are not used either.
_STAND_IN = "h200"


def find(subject: Subject) -> tuple[Match, ...]:
    """The row-program findings; a bare trace prices them by its kernels' times, without plans."""
    advice = subject.advice or row_programs(subject)
    plans = {plan.id: plan for plan in advice.plans}
    found = []
    for finding in advice.findings:
        if finding.rule == HORIZONTAL:
            continue
        places = _places(subject, finding, plans)
        if subject.provenance == "exact":
            nodes = frozenset(k for p in places for k in p.nodes)
            saved = finding.alternatives[0].saving_ns if finding.alternatives else None
            change = advice.changes.get(finding.id)
            found.append(Match(finding, nodes, saved, "generated_kernel", change))
        elif places:
            match = _inferred(subject, finding, places)
            found += [match] if match is not None else []
    return tuple(found)


def row_programs(subject: Subject) -> Advice:
    """All row programs of the subject's graphs, with plans."""
    gpu = subject.gpu or gpu_by_key(_STAND_IN)
    balance = subject.balance if subject.balance is not None and subject.balance.clean else None
    situation = Situation(
        gpu,
        subject.calibration or default_calibration(gpu),
        subject.eager,
        step_ns=balance.span_ns if balance else None,
        busy_ns=balance.device_ns if balance else None,
        exposure=subject.exposure if balance else None,
    )
    graphs = [PricedGraph(facts.graph, facts.prices) for facts in subject.graphs]
    return advise(graphs, situation, horizontal=False)


def _places(subject: Subject, finding: Finding, plans: dict[str, FusionPlan]) -> list[Place]:
    """The sites of the best way to fuse, each place once, those of earlier plans first.

    Exact ones stand whatever an earlier rule claims: `overlaps` decides between the two. Inferred
    ones are left out where nodes are spoken for.
    """
    exact = subject.provenance == "exact"
    chosen = _best(finding, plans)
    facts_of = {facts.graph.id: facts for facts in subject.graphs}
    taken: set[tuple[str, str]] = set()
    found = []
    for plan in chosen:
        for site in plan.sites:
            keys = {(site.graph, name) for name in site.nodes}
            facts: GraphFacts | None = facts_of.get(site.graph)
            if facts is not None and not keys & taken:
                taken |= keys
                if exact or all(subject.free(facts, name) for name in site.nodes):
                    found.append(Place(facts, frozenset(site.nodes)))
    return found


def _best(finding: Finding, plans: dict[str, FusionPlan]) -> list[FusionPlan]:
    """The plans of the variant that covers most: its longer programs claim places first."""
    variants = [a.plan_ids for a in finding.alternatives if a.plan_ids]
    listed = max(
        variants, key=lambda ids: sum(len(s.nodes) for i in ids for s in plans[i].sites), default=()
    )
    return [plans[i] for i in listed]


# Whether a sum is also the next residual is past the products in between (`inferred_values`).
_BEYOND = ", besides what is read behind the next library call: a trace does not tell"


def _inferred(subject: Subject, finding: Finding, places: Sequence[Place]) -> Match | None:
    cost = cost_of(subject, places)
    if not is_worth(subject, cost):
        return None
    change = change_of(places, cost.saved_ns)
    exposed, host = exposure(subject, change)
    dataflow = [
        msgspec.structs.replace(
            item, text=item.text + _BEYOND, values={**item.values, "sites": len(places)}
        )
        for item in finding.evidence
        if item.kind == "dataflow"
    ]
    ways = [
        Alternative(
            route=other.route,
            text="torch.compile of the module fuses the same ops"
            if other.route == "compile_region"
            else other.text,
        )
        for other in finding.alternatives
    ]
    figures = (traffic_evidence(subject, cost), time_evidence(subject, cost), host)
    evidence: tuple[Evidence, ...] = (*dataflow, *figures)
    return Match(
        msgspec.structs.replace(
            finding,
            rule=RULE.id,
            exposed_saving_ns=exposed,
            evidence=evidence,
            members=members_of(places),
            provenance="inferred",
            action=(
                "compile the module (torch.compile) or use a fused kernel; `fusion-advisor "
                f"profile` of the model generates and proves one ({format_ns(cost.time_ns)} of "
                "kernels now)"
            ),
            alternatives=tuple(ways),
            plan_id=None,
            locations=locations_of(places),
        ),
        frozenset(key for place in places for key in place.nodes),
        cost.saved_ns,
        change=change,
    )


RULE = Rule(
    id="row_program",
    title="A norm, softmax or other row computation in pieces",
    explanation=(
        "Ops that share rows (a norm with its casts, residual and weight; a softmax with scale and "
        "mask; their gradients) can hold a row in registers from its first read to its last "
        "write, and add it to sums over all rows in the same pass (the gradients of a norm's "
        "weights, of a bias). In pieces, each op makes a round trip to memory. Found by dataflow "
        "alone: names play no part."
    ),
    bad=(
        "to(float32), pow(2), mean, add, rsqrt, mul, to(bfloat16), mul: eight kernels for one "
        "RMSNorm"
    ),
    good="one kernel that reads the row once and writes it once",
    find=find,
)
