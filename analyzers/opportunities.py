"""Row-program opportunities: candidates become plans, plans get prices, overlapping plans one finding.

A finding is a set of places in the model with one or more ways to fuse them (*variants*): the
shorter program that serves every site with one kernel, or the longer ones that also absorb a
prologue. Every variant is priced on the same kernels; the best one's saving is the finding's, the
others are its alternatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding, Member
from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan, Prediction
from advisor.model.report import PlanSummary, Recommended
from advisor.units import format_bytes, format_ns
from analyzers.dataflow import Dataflow, dataflow
from analyzers.naming import describe
from analyzers.pricing import Price, PriceList, price_list
from analyzers.program_cost import modelled_before, program_time, residual_time, site_bytes
from analyzers.row_plans import Program, canonical_program, cluster, plan_of
from analyzers.row_programs import NearMiss, RowPrograms, find_row_programs

ROUTE_TEXT = "one generated Triton kernel per site, swapped in by the torch.compile backend"
MAX_REASONS = 4


@dataclass(frozen=True)
class Situation:
    """What the prices rest on: the device, its calibration, and the clean step if one was timed.

    `step_ns` and `busy_ns` are None without a GPU: exposure is then unknown.
    """

    gpu: Gpu
    calibration: Calibration
    eager: bool
    step_ns: int | None = None
    busy_ns: int | None = None


@dataclass(frozen=True)
class PricedGraph:
    """A captured graph and what its nodes cost today (None: nothing was timed)."""

    graph: Graph
    prices: PriceList | None = None


@dataclass(frozen=True)
class Place:
    """One group of one graph: its longest program and, if there is one, its core."""

    facts: _Facts
    whole: Program
    core: Program | None


@dataclass(frozen=True)
class _Facts:
    flow: Dataflow
    prices: PriceList
    phase: str


@dataclass(frozen=True)
class Advice:
    """Everything found: plans (with predictions), findings, and what to do first."""

    plans: tuple[FusionPlan, ...]
    findings: tuple[Finding, ...]
    recommended: Recommended

    def summaries(self) -> tuple[PlanSummary, ...]:
        """The plans as a report lists them."""
        return tuple(
            PlanSummary(
                id=p.id,
                title=p.title,
                rule=p.rule,
                family=p.family,
                phase=p.phase,
                sites=len(p.sites),
                saving_ns=p.prediction.saving_ns if p.prediction else None,
            )
            for p in self.plans
        )


def advise(graphs: Sequence[PricedGraph], situation: Situation) -> Advice:
    """All row-program findings of a step, best first."""
    places: list[Place] = []
    misses: dict[str, list[str]] = {}
    for item in graphs:
        flow, found = dataflow(item.graph), find_row_programs(item.graph)
        facts = _Facts(flow, item.prices or price_list(()), item.graph.phase)
        places += _places(facts, found)
        _collect_reasons(flow, found.near_misses, misses)
    families = [_Family(group, situation, misses) for group in _overlapping(places)]
    built = [family.result() for family in families]
    built.sort(key=lambda pair: -_rank(pair[1]))
    plans = tuple({p.id: p for found, _ in built for p in found}.values())
    findings = tuple(finding for _, finding in built)
    worth = [f for f in findings if _rank(f) > 0]
    savings = [f.exposed_saving_ns for f in worth if f.exposed_saving_ns is not None]
    total = None
    for saving in savings:
        total = saving if total is None else total.plus(saving)
    return Advice(
        plans, findings, Recommended(order=tuple(f.id for f in worth), set_saving_ns=total)
    )


def _rank(finding: Finding) -> int:
    """Exposed saving if it is known, else the modelled kernel time saved."""
    if finding.exposed_saving_ns is not None:
        return finding.exposed_saving_ns.mid
    values = [e.values.get("kernel_saving_ns") for e in finding.evidence]
    return next((int(v) for v in values if isinstance(v, (int, float))), 0)


def _places(facts: _Facts, found: RowPrograms) -> list[Place]:
    pairs = zip(found.whole, found.cores, strict=True)
    return [
        Place(
            facts,
            canonical_program(facts.flow, whole),
            canonical_program(facts.flow, core) if core else None,
        )
        for whole, core in pairs
    ]


def _overlapping(places: Sequence[Place]) -> list[list[Place]]:
    """Places that share a signature, through wholes or cores, belong to one finding."""
    parent = list(range(len(places)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    owner: dict[tuple[str, str], int] = {}
    for index, place in enumerate(places):
        for program in (place.whole, place.core):
            if program is None:
                continue
            key = (place.facts.phase, program.signature())
            if key in owner:
                parent[root(index)] = root(owner[key])
            owner.setdefault(key, index)
    groups: dict[int, list[Place]] = {}
    for index, place in enumerate(places):
        groups.setdefault(root(index), []).append(place)
    return list(groups.values())


def _collect_reasons(
    flow: Dataflow, found: Iterable[NearMiss], reasons: dict[str, list[str]]
) -> None:
    for miss in found:
        node = flow.nodes[miss.node]
        if node.args and miss.node != miss.seed:
            reasons.setdefault(miss.seed, []).append(f"{node.label or node.target}: {miss.reason}")


class _Family:
    """The places of one finding, its plans and variants."""

    def __init__(
        self, places: list[Place], situation: Situation, misses: dict[str, list[str]]
    ) -> None:
        self.places, self.situation, self.misses = places, situation, misses
        self.phase = places[0].facts.phase
        wholes = self._plans(p.whole for p in places)
        cores = self._plans(p.core or p.whole for p in places)
        self.cores = [c for c in cores if len(c.sites) > _most_sites(wholes, c)]
        kept = {core.signature() for core in self.cores}
        self.wholes = [plan for plan in wholes if plan.signature() not in kept]

    def _plans(self, programs: Iterable[Program]) -> list[FusionPlan]:
        found = []
        for group in cluster((self.phase, program) for program in programs):
            plan = plan_of(group, self.phase, "")
            found.append(msgspec.structs.replace(plan, title=describe(plan)))
        return sorted(found, key=lambda plan: -len(plan.sites))

    def variants(self) -> list[tuple[FusionPlan, ...]]:
        """Ways to fuse the places, each a list of plans in the order they claim sites."""
        single = [(core,) for core in self.cores]
        return [*single, (*self.wholes, *self.cores)] if self.wholes else single

    def result(self) -> tuple[list[FusionPlan], Finding]:
        """The family's plans with predictions, and its finding."""
        priced = [(variant, self._predict(variant)) for variant in self.variants()]
        priced.sort(key=lambda pair: -pair[1].saving_ns.mid)
        best, prediction = priced[0]
        plans = {
            p.id: msgspec.structs.replace(p, prediction=self._predict((p,)))
            for v, _ in priced
            for p in v
        }
        # The plan a finding shows is the one kernel that serves most of its places.
        main = max(
            plans.values(),
            key=lambda p: (len(p.sites), p.prediction.saving_ns.mid if p.prediction else 0),
        )
        return list(plans.values()), self._finding(main, best, prediction, priced)

    # --- prices -----------------------------------------------------------------------------------

    def _claimed(self, variant: Sequence[FusionPlan]) -> list[tuple[FusionPlan, int, Place]]:
        """(plan, site index, place) of every place, the first plan with a site there claiming it."""
        by_site = {}
        for plan in variant:
            for index, site in enumerate(plan.sites):
                by_site.setdefault((site.graph, site.nodes), (plan, index))
        found = []
        for place in self.places:
            options = [p for p in (place.whole, place.core) if p is not None]
            hits = [by_site.get((o.site.graph, o.site.nodes)) for o in options]
            claims = [hit for hit in hits if hit is not None]
            if claims:
                plan, index = min(claims, key=lambda claim: list(variant).index(claim[0]))
                found.append((plan, index, place))
        return found

    def _predict(self, variant: Sequence[FusionPlan]) -> Prediction:
        claimed = self._claimed(variant)
        situation = self.situation
        after: Range | None = None
        for plan, index, _ in claimed:
            cost = program_time(plan, plan.sites[index], situation.gpu, situation.calibration)
            after = cost if after is None else after.plus(cost)
        assert after is not None
        before, moved, basis = self._before(claimed)
        left = self._residual(claimed)
        after = after.plus(left) if left is not None else after
        saving = Range(
            low=before.low - after.high,
            mid=before.mid - after.mid,
            high=before.high - after.low,
            coverage=after.coverage,
        )
        written = sum(site_bytes(plan, plan.sites[index]) for plan, index, _ in claimed)
        return Prediction(
            before_ns=before,
            after_ns=after,
            saving_ns=saving,
            bytes_before=moved,
            bytes_after=written,
            basis=basis,
        )

    def _prices(
        self, claimed: Sequence[tuple[FusionPlan, int, Place]]
    ) -> list[tuple[Place, Price, frozenset[str]]]:
        """The price of all claimed nodes, once per graph: a kernel that serves two sites counts once."""
        by_graph: dict[int, tuple[Place, set[str]]] = {}
        for plan, index, place in claimed:
            held = by_graph.setdefault(id(place.facts), (place, set()))
            held[1].update(plan.sites[index].nodes)
        return [
            (place, place.facts.prices.price(place.facts.flow, names), frozenset(names))
            for place, names in by_graph.values()
        ]

    def _before(self, claimed: Sequence[tuple[FusionPlan, int, Place]]) -> tuple[Range, int, str]:
        low = mid = high = moved = 0
        bases = set()
        for place, price, names in self._prices(claimed):
            measured = price.time_ns
            modelled, size = modelled_before(
                place.facts.flow,
                names,
                self.situation.gpu,
                self.situation.calibration,
                only=price.unpriced,
            )
            low, mid, high = (
                low + measured + modelled.low,
                mid + measured + modelled.mid,
                high + measured + modelled.high,
            )
            moved += size
            bases |= ({"measured"} if price.units else set()) | (
                {"modelled"} if price.unpriced else set()
            )
        return (
            Range(low=low, mid=mid, high=high),
            moved,
            " and ".join(sorted(bases)) + " kernel times",
        )

    def _residual(self, claimed: Sequence[tuple[FusionPlan, int, Place]]) -> Range | None:
        total: Range | None = None
        for place, price, names in self._prices(claimed):
            left = residual_time(
                place.facts.flow,
                price.shared,
                names,
                self.situation.gpu,
                self.situation.calibration,
            )
            total = left if total is None else (total.plus(left) if left else total)
        return total

    # --- the finding ------------------------------------------------------------------------------

    def _finding(
        self,
        main: FusionPlan,
        best: Sequence[FusionPlan],
        prediction: Prediction,
        priced: Sequence[tuple[Sequence[FusionPlan], Prediction]],
    ) -> Finding:
        count = len(self.places)
        ops = max(len(site.nodes) for plan in best for site in plan.sites)
        exposed, exposure = _exposed(prediction, self._launches_saved(best), self.situation)
        return Finding(
            id=f"row-program-{main.id[:10]}",
            rule=main.rule,
            kind="opportunity",
            title=f"{main.title} in {ops} separate ops, {count} site{'s' if count > 1 else ''}",
            exposed_saving_ns=exposed,
            evidence=(*self._evidence(prediction, best), exposure, *self._reasons()),
            members=self._members(best),
            provenance="exact",
            action=_action(best, count),
            alternatives=_alternatives(best, priced, self.situation),
            plan_id=main.id,
            locations=tuple(dict.fromkeys(p.whole.site.location for p in self.places)),
        )

    def _evidence(self, prediction: Prediction, best: Sequence[FusionPlan]) -> list[Evidence]:
        site = best[0].sites[0]
        inputs, outputs = len(best[0].inputs), len(best[0].outputs)
        return [
            Evidence(
                kind="dataflow",
                text=(
                    f"the ops share one iteration space of {site.rows:,} rows × {site.columns:,} columns; one pass reads"
                    f" {inputs} tensor{'s' if inputs > 1 else ''} and writes {outputs}"
                ),
                values={"rows": site.rows, "columns": site.columns},
            ),
            Evidence(
                kind="traffic",
                text=(
                    f"{format_bytes(prediction.bytes_after)} moved per step after fusing,"
                    f" {format_bytes(prediction.bytes_before)} before"
                ),
                values={
                    "bytes_before": prediction.bytes_before,
                    "bytes_after": prediction.bytes_after,
                },
            ),
            Evidence(
                kind="time",
                text=(
                    f"kernel time per step {format_ns(prediction.before_ns.mid)} now ({prediction.basis}),"
                    f" {format_ns(prediction.after_ns.mid)} fused (modelled on {self.situation.gpu.name},"
                    f" {self.situation.calibration.provenance} calibration)"
                ),
                values={
                    "before_ns": prediction.before_ns.mid,
                    "after_ns": prediction.after_ns.mid,
                    "kernel_saving_ns": prediction.saving_ns.mid,
                },
            ),
        ]

    def _reasons(self) -> list[Evidence]:
        """Why the neighbours stay out, the commonest reasons first."""
        counted: dict[str, int] = {}
        for place in self.places:
            for name in place.whole.site.nodes:
                for reason in dict.fromkeys(self.misses.get(name, ())):
                    counted[reason] = counted.get(reason, 0) + 1
        ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]
        return [
            Evidence(kind="legality", text=f"stays out: {text}", values={"sites": n})
            for text, n in ranked
        ]

    def _members(self, best: Sequence[FusionPlan]) -> tuple[Member, ...]:
        found: dict[str, tuple[int, int]] = {}
        for _, price, _ in self._prices(self._claimed(best)):
            for member in price.members():
                count, time_ns = found.get(member.name, (0, 0))
                found[member.name] = (count + member.count, time_ns + (member.time_ns or 0))
        if found:
            rows = [Member(name=n, count=c, time_ns=t) for n, (c, t) in found.items()]
            return tuple(sorted(rows, key=lambda row: -(row.time_ns or 0)))
        counts: dict[str, int] = {}
        for plan, _, _ in self._claimed(best):
            for op in plan.ops:
                counts[op.op] = counts.get(op.op, 0) + 1
        return tuple(Member(name=name, count=count) for name, count in counts.items())

    def _launches_saved(self, best: Sequence[FusionPlan]) -> int:
        claimed = self._claimed(best)
        launches = sum(
            unit.launches for _, price, _ in self._prices(claimed) for unit in price.units
        )
        return max(launches - len(claimed), 0)


def _most_sites(wholes: Sequence[FusionPlan], core: FusionPlan) -> int:
    """The most sites that one of the longer programs has among this core's places."""
    nodes = {name for site in core.sites for name in site.nodes}
    return max(
        (len(w.sites) for w in wholes if any(nodes & set(s.nodes) for s in w.sites)), default=0
    )


def _exposed(
    prediction: Prediction, launches_saved: int, situation: Situation
) -> tuple[Range | None, Evidence]:
    """The saving on the critical path, bounded by the idle time of the clean step.

    With idle time I in the step, removing S of GPU work shortens it by at least S - I (the host may
    be what is waited for) and at most by S plus the host time of the launches that go away.
    """
    saved = prediction.saving_ns
    if situation.step_ns is None or situation.busy_ns is None:
        text = f"exposed saving: no GPU here, so host time is unknown; kernel time saved is {format_ns(saved.mid)} (modelled)"
        return None, Evidence(kind="cannot_judge", text=text, values={"needs": "a run on the GPU"})
    idle = max(situation.step_ns - situation.busy_ns, 0)
    share = min(situation.busy_ns / situation.step_ns, 1.0) if situation.step_ns else 0.0
    host = launches_saved * situation.calibration.launch_ns if situation.eager else 0
    low, mid, high = saved.low - idle, round(saved.mid * share), saved.high + min(host, idle)
    low = max(min(low, mid), min(0, saved.low))
    text = f"the GPU is busy for {100 * share:.0f} % of the clean step; {launches_saved} launches fewer"
    values: dict[str, float | int | str | None] = {
        "idle_ns": idle,
        "launches_saved": launches_saved,
    }
    return Range(low=low, mid=max(mid, low), high=max(high, mid, low)), Evidence(
        kind="host", text=text, values=values
    )


def _action(best: Sequence[FusionPlan], count: int) -> str:
    kernels = f"{len(best)} generated kernels" if len(best) > 1 else "one generated kernel"
    return (
        f"replace the {count} site{'s' if count > 1 else ''} by {kernels}: fusion-advisor apply RUN"
    )


def _alternatives(
    best: Sequence[FusionPlan],
    priced: Sequence[tuple[Sequence[FusionPlan], Prediction]],
    situation: Situation,
) -> tuple[Alternative, ...]:
    found = []
    for variant, prediction in priced:
        text = "; ".join(
            f"{plan.title} at {len(plan.sites)} site{'s' if len(plan.sites) > 1 else ''}"
            for plan in variant
        )
        found.append(
            Alternative(
                route="generated_kernel",
                text=text,
                saving_ns=prediction.saving_ns,
                plan_ids=tuple(p.id for p in variant),
            )
        )
    if situation.eager:
        found.append(
            Alternative(
                route="compile_region",
                text="torch.compile fuses the same ops; apply measures both against each other",
            )
        )
    return tuple(found)
