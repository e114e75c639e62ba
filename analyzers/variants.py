"""One finding: the places that share a program, the ways to fuse them, their prices, the words.

Every way (*variant*) is priced on the same kernels; the best one's saving is the finding's, the
others are its alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.graph import node_of
from advisor.model.guards import Prediction
from advisor.model.plan import FusionPlan, Site
from advisor.units import counted, format_bytes, format_ns, runs_text
from analyzers.exposure import Situation, judged
from analyzers.fan_out import FanOut
from analyzers.naming import describe, op_word
from analyzers.prediction import (
    Claimed,
    PricedFlow,
    claimed_nodes,
    predicted,
    present_members,
)
from analyzers.program_cost import source_ops
from analyzers.program_notes import draws, lookups, walk
from analyzers.replay_changes import Change, distinct
from analyzers.row_plans import Program, cluster, plan_of

# Why neighbours of a group stay out, and what it computes again or reads back, by graph and seed:
# node names repeat from graph to graph.
Misses = Mapping[tuple[str, str], Sequence[str]]
FanOuts = Mapping[tuple[str, str], Sequence[FanOut]]
MAX_REASONS = 16


@dataclass(frozen=True)
class ProgramPlace:
    """One group of one graph: its longest program and, if there are any, its other ways.

    The `core` starts after the prologue; `plain` reads back what `whole` computes again; `apart`
    leaves the reductions over the rows to others.
    """

    facts: PricedFlow
    whole: Program
    core: Program | None
    plain: Program | None = None
    apart: Program | None = None

    def programs(self) -> tuple[Program, ...]:
        """The longest program, then the others."""
        found = (self.whole, self.core, self.plain, self.apart)
        return tuple(program for program in found if program is not None)


@dataclass(frozen=True)
class Claim:
    """The site by which a plan serves a place."""

    plan: FusionPlan
    site: Site
    place: ProgramPlace


@dataclass(frozen=True)
class Variant:
    """One way to fuse the places: plans in the order in which they claim them, and the price."""

    plans: tuple[FusionPlan, ...]
    prediction: Prediction


class FindingVariants:
    """The places of one finding, its plans and variants; `misses` say what stays out."""

    def __init__(
        self,
        places: Sequence[ProgramPlace],
        situation: Situation,
        misses: Misses,
        fan_outs: FanOuts,
    ) -> None:
        self.places, self.situation = places, situation
        self.misses, self.fan_outs = misses, fan_outs
        self.phase = places[0].facts.phase
        wholes = self._plans(place.whole for place in places)
        cores = self._plans(place.core or place.whole for place in places)
        self.cores = [core for core in cores if len(core.sites) > _most_sites(wholes, core)]
        kept = {core.signature() for core in self.cores}
        self.wholes = [plan for plan in wholes if plan.signature() not in kept]
        self.plains = self._plans(place.plain or place.whole for place in places)
        if not any(place.plain for place in places):
            self.plains = []
        self.aparts = self._plans(place.apart or place.whole for place in places)
        if not any(place.apart for place in places):
            self.aparts = []

    def _plans(self, programs: Iterable[Program]) -> list[FusionPlan]:
        found = []
        for group in cluster((self.phase, program) for program in programs):
            plan = plan_of(group, self.phase, "")
            found.append(msgspec.structs.replace(plan, title=describe(plan)))
        return sorted(found, key=lambda plan: -len(plan.sites))

    def result(self) -> tuple[list[FusionPlan], Finding, Change]:
        """The family's plans with predictions, its finding, and what that one changes."""
        variants = [Variant(plans, self._predict(plans)) for plans in self._ways()]
        variants.sort(key=lambda variant: -variant.prediction.saving_ns.mid)
        by_id = {plan.id: plan for variant in variants for plan in variant.plans}
        alone = [Variant((plan,), self._predict((plan,))) for plan in by_id.values()]
        # The plan a finding shows is the one kernel that serves most of its places.
        main = max(alone, key=lambda v: (len(v.plans[0].sites), v.prediction.saving_ns.mid))
        priced = [msgspec.structs.replace(v.plans[0], prediction=v.prediction) for v in alone]
        change = self._change(variants[0])
        return priced, self._finding(main.plans[0], variants, change), change

    def _ways(self) -> list[tuple[FusionPlan, ...]]:
        ways: list[tuple[FusionPlan, ...]] = [(core,) for core in self.cores]
        if self.wholes:
            ways.append((*self.wholes, *self.cores))
        if self.plains:
            ways.append((*self.plains, *self.cores))
        if self.aparts:
            ways.append((*self.aparts, *self.cores))
        return ways

    # --- prices -----------------------------------------------------------------------------------

    def _claims(self, plans: Sequence[FusionPlan]) -> list[Claim]:
        """A claim for every place that some plan serves, by the first plan with a site there."""
        found = []
        for place in self.places:
            own = [(p.site.graph, p.site.nodes) for p in place.programs()]
            claims = (
                Claim(plan, site, place)
                for plan in plans
                for site in plan.sites
                if (site.graph, site.nodes) in own
            )
            first = next(claims, None)
            if first is not None:
                found.append(first)
        return found

    def _predict(self, plans: Sequence[FusionPlan]) -> Prediction:
        claims = self._claims(plans)
        kernels = [(claim.plan, claim.site) for claim in claims]
        return predicted(_claimed(claims), kernels, self.situation)

    @property
    def source_op_count(self) -> int:
        """The most ops of the user's program that one place stands for; one has nothing to fuse."""
        return self._count_ops(again=False)

    def _count_ops(self, *, again: bool) -> int:
        return max(
            len(source_ops(place.facts.flow, place.whole.site.nodes, again=again))
            for place in self.places
        )

    # --- the finding ------------------------------------------------------------------------------

    def _change(self, best: Variant) -> Change:
        """The kernels of each place that become one."""
        sites = []
        for claim in self._claims(best.plans):
            price = claim.place.facts.prices.price(claim.place.facts.flow, claim.site.nodes)
            sites += price.rows()
        return Change(sites=distinct(sites), saved_ns=best.prediction.saving_ns)

    def _finding(self, main: FusionPlan, variants: Sequence[Variant], change: Change) -> Finding:
        best = variants[0]
        claims = self._claims(best.plans)
        saving, exposure = judged(self.situation.exposure, change)
        return Finding(
            id=f"row-program-{main.id[:10]}",
            rule=main.rule,
            kind="opportunity",
            title=f"{main.title}{self._as_it_is(best)}, {counted(len(self.places), 'site')}",
            exposed_saving_ns=saving,
            evidence=(*self._evidence(best), exposure, *self._shared_values(), *self._reasons()),
            members=present_members(
                _claimed(claims), [(claim.plan, claim.site) for claim in claims]
            ),
            provenance="exact",
            action=_action(best, len(self.places)),
            alternatives=_alternatives(
                [(variant, self._claims(variant.plans)) for variant in variants], self.situation
            ),
            plan_id=main.id,
            locations=tuple(dict.fromkeys(place.whole.site.location for place in self.places)),
        )

    def _as_it_is(self, best: Variant) -> str:
        """In how many pieces it runs today: eager ops, or the compiler's kernels where known."""
        ops = self.source_op_count
        if self.situation.eager:
            return f" in {counted(self._count_ops(again=True), 'separate op')}"
        kernels = max(
            len(place.facts.prices.price(place.facts.flow, place.whole.site.nodes).units)
            for place in self.places
        )
        if not kernels:
            return f" in {counted(ops, 'op')} before compilation"
        if kernels > 1:
            return f" in {counted(kernels, 'generated kernel')}"
        faster = best.prediction.saving_ns.mid > 0
        return ": a generated kernel that could be faster" if faster else ": one generated kernel"

    def _evidence(self, best: Variant) -> list[Evidence]:
        plan, prediction = best.plans[0], best.prediction
        traffic = (
            f"{format_bytes(prediction.bytes_after)} moved per step after fusing, "
            f"{format_bytes(prediction.bytes_before)} before"
            f"{runs_text(max(site.executions for site in plan.sites))}"
        )
        time = (
            f"kernel time per step {format_ns(prediction.before_ns.mid)} now "
            f"({prediction.basis}), {format_ns(prediction.after_ns.mid)} fused "
            f"({self.situation.model})"
        )
        return [
            walk(plan, plan.sites[0]),
            *draws(plan),
            *lookups(plan),
            Evidence(
                kind="traffic",
                text=traffic,
                values={
                    "bytes_before": prediction.bytes_before,
                    "bytes_after": prediction.bytes_after,
                },
            ),
            Evidence(
                kind="time",
                text=time,
                values={
                    "before_ns": prediction.before_ns.mid,
                    "after_ns": prediction.after_ns.mid,
                    "kernel_saving_ns": prediction.saving_ns.mid,
                },
            ),
        ]

    def _shared_values(self) -> list[Evidence]:
        """Values that another kernel needs too, with the traffic of both ways of getting them."""
        found: dict[str, Evidence] = {}
        for place in self.places:
            flow, graph = place.facts.flow, place.whole.site.graph
            for name in place.whole.site.nodes:
                for item in self.fan_outs.get((graph, name), ()):
                    node = flow.nodes[node_of(item.value)[0]]
                    found.setdefault(item.value, _shared_value(op_word(node.label), item))
        return list(found.values())[:MAX_REASONS]

    def _reasons(self) -> list[Evidence]:
        """Why the neighbours stay out, the commonest reasons first."""
        counted: dict[str, int] = {}
        for place in self.places:
            for name in place.whole.site.nodes:
                for reason in dict.fromkeys(self.misses.get((place.whole.site.graph, name), ())):
                    counted[reason] = counted.get(reason, 0) + 1
        ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]
        return [
            Evidence(kind="legality", text=f"stays out: {text}", values={"sites": n})
            for text, n in ranked
        ]


def _shared_value(name: str, item: FanOut) -> Evidence:
    text = (
        f"the {name} is needed by another kernel too: computed again here, "
        f"{format_bytes(item.again_bytes)} move; written once and read back, "
        f"{format_bytes(item.written_bytes)}: it is "
        + ("computed again" if item.computed_again else "read back")
    )
    values = {"again_bytes": item.again_bytes, "written_bytes": item.written_bytes}
    return Evidence(kind="traffic", text=text, values=dict(values))


def _most_sites(wholes: Sequence[FusionPlan], core: FusionPlan) -> int:
    """The most sites that one of the longer programs has among this core's places."""
    nodes = _graph_nodes(core)
    return max((len(whole.sites) for whole in wholes if nodes & _graph_nodes(whole)), default=0)


def _graph_nodes(plan: FusionPlan) -> set[tuple[str, str]]:
    """The nodes of all sites; their names repeat from graph to graph."""
    return {(site.graph, name) for site in plan.sites for name in site.nodes}


def _claimed(claims: Sequence[Claim]) -> list[Claimed]:
    return claimed_nodes((claim.place.facts, claim.site) for claim in claims)


def _action(best: Variant, places: int) -> str:
    several = len(best.plans) > 1
    kernels = f"{len(best.plans)} generated kernels" if several else "one generated kernel"
    proof = "apply proves and times " + ("them" if several else "it")
    return f"replace the {counted(places, 'site')} by {kernels}; {proof} on the workload first"


def _places_text(
    plans: Sequence[FusionPlan], claims: Sequence[Claim], *, sized: bool = False
) -> str:
    """How many places each plan takes, beside the others of its variant; `sized`, of how many ops.

    Plans of one title are told apart by their ops.
    """
    places = Counter(claim.plan.id for claim in claims)
    held = [plan for plan in plans if places[plan.id]]
    titles = Counter(plan.title for plan in held)
    told = []
    for plan in held:
        ops = f" ({counted(len(plan.ops), 'op')})" if sized or titles[plan.title] > 1 else ""
        told.append(f"{plan.title}{ops} at {counted(places[plan.id], 'site')}")
    return "; ".join(told)


def _alternatives(
    variants: Sequence[tuple[Variant, Sequence[Claim]]], situation: Situation
) -> tuple[Alternative, ...]:
    texts = [_places_text(variant.plans, claims) for variant, claims in variants]
    often = Counter(texts)
    found = [
        Alternative(
            route="generated_kernel",
            text=_places_text(variant.plans, claims, sized=often[text] > 1),
            saving_ns=variant.prediction.saving_ns,
            plan_ids=tuple(plan.id for plan in variant.plans),
        )
        for text, (variant, claims) in zip(texts, variants, strict=True)
    ]
    if situation.eager:
        text = "torch.compile fuses the same ops; apply measures both against each other"
        found.append(Alternative(route="compile_region", text=text))
    return tuple(found)
