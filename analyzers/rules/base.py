"""What a rule is, and the parts rules share: sites, their cost, and the finding made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from advisor.hardware.roofline import bandwidth_of
from advisor.model.base import Location, Range
from advisor.model.findings import (
    Alternative,
    AlternativeRoute,
    Evidence,
    Finding,
    Member,
    finding_id,
)
from advisor.model.optable import spec_of
from advisor.units import (
    NS_PER_S,
    UNKNOWN,
    format_bytes,
    format_fraction,
    format_ns,
    runs_text,
)
from analyzers.exposure import judged
from analyzers.program_cost import modelled_before, nodes_bytes, source_ops
from analyzers.replay_changes import Change, distinct
from analyzers.subject import GraphFacts, NodeKey, Subject

# A group whose saving is below this share of the step's kernel time is noise, not advice.
WORTH_SHARE = 0.005
_FLOOR_NS = 1_000


@dataclass(frozen=True)
class Match:
    """A finding and the nodes it speaks for: no later rule proposes them again.

    `saved_ns` is the kernel time it saves, and `route` the way it takes, should a better finding
    about the same nodes hold it as an alternative. `change` is what it does to the recorded step.
    A `bet` may lose as well: what is sure stands before it, and later rules look at its nodes too.
    """

    finding: Finding
    nodes: frozenset[NodeKey] = frozenset()
    saved_ns: Range | None = None
    route: AlternativeRoute = "compile_region"
    change: Change | None = None
    bet: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule and its documentation; `find` is pure; `bad` shows what fires, `good` what not."""

    id: str
    title: str
    explanation: str
    bad: str
    good: str
    find: Callable[[Subject], tuple[Match, ...]]


@dataclass(frozen=True)
class Place:
    """One site of a pattern: `fused` nodes become one kernel, `kept` ones (GEMMs) stay beside it.

    `gone` nodes vanish altogether, as a folded BatchNorm does.
    """

    facts: GraphFacts
    fused: frozenset[str]
    kept: frozenset[str] = frozenset()
    gone: bool = False

    @property
    def nodes(self) -> frozenset[NodeKey]:
        """The nodes that the site speaks for."""
        return frozenset((self.facts.graph.id, name) for name in self.fused | self.kept)

    def location(self) -> Location:
        """The place in the program that most of the fused nodes come from."""
        counted: dict[Location, int] = {}
        for name in sorted(self.fused, key=lambda n: self.facts.flow.index.get(n, 0)):
            place = self.facts.flow.nodes[name].location
            if place.module or place.file:
                counted[place] = counted.get(place, 0) + 1
        return max(counted, key=lambda place: counted[place], default=Location())


@dataclass(frozen=True)
class Cost:
    """What places cost in a step and what of it goes: kernel time, traffic, host time.

    `executions` are those of the place that runs most often.
    """

    time_ns: int
    bytes_before: int
    bytes_after: int
    saved_ns: Range
    host_saved_ns: int
    basis: str
    executions: int = 1


def cost_of(subject: Subject, places: Sequence[Place]) -> Cost:
    """The cost of all places.

    The fused kernel is taken to reach the bandwidth that the kernels it replaces reach today, on
    the traffic that is left: external inputs once + escaping outputs once. The upper bound takes
    the bandwidth of the device instead, where it is known.
    """
    time = before = after = host = host_left = 0
    measured = guessed = False
    fastest = 0
    for place in places:
        flow, facts = place.facts.flow, place.facts
        price = facts.prices.price(flow, place.fused)
        spent = price.time_ns
        moved, left = _traffic(place)
        executions = place.facts.graph.executions
        measured |= bool(price.units)
        if price.unpriced and subject.gpu is not None and subject.calibration is not None:
            modelled, _ = modelled_before(
                flow, place.fused, subject.gpu, subject.calibration, only=price.unpriced
            )
            spent += modelled.mid
            guessed = True
        time += spent
        before, after = before + moved * executions, after + left * executions
        spans = [facts.host_ns[name] for name in place.fused if name in facts.host_ns]
        host += sum(spans)
        host_left += 0 if place.gone else max(spans, default=0)
        if left:
            ideal = left * NS_PER_S // bandwidth_of(subject.gpu) if subject.gpu else 0
            fastest += max(ideal, _FLOOR_NS) * executions
    kept = after / before if before else 0.0
    gone = round(time * (1 - kept))
    high = max(time - fastest, gone) if subject.gpu is not None else gone
    if not after:
        gone = high = time
    return Cost(
        time_ns=time,
        bytes_before=before,
        bytes_after=after,
        saved_ns=Range(low=0, mid=gone, high=high),
        host_saved_ns=max(host - host_left, 0),
        basis=basis_text(measured=measured, modelled=guessed),
        executions=max((place.facts.graph.executions for place in places), default=1),
    )


def _traffic(place: Place) -> tuple[int, int]:
    """Bytes that move for a place now, and with its nodes in one kernel.

    In eager each op is a kernel. A compiler's kernels compute other nodes too: what is fused
    already moves nothing more, and what a kernel does besides is left.
    """
    flow, prices = place.facts.flow, place.facts.prices
    if prices.fused:
        units = prices.price(flow, place.fused).units
        kernels = [{name for name in unit.nodes if name in flow.index} for unit in units]
        moved = sum(nodes_bytes(flow, nodes) for nodes in kernels)
        if place.gone:
            left = sum(nodes_bytes(flow, nodes - place.fused) for nodes in kernels)
        else:
            left = nodes_bytes(flow, set(place.fused | place.kept).union(*kernels))
    else:
        moved = sum(nodes_bytes(flow, op) for op in source_ops(flow, place.fused, again=True))
        left = 0 if place.gone else nodes_bytes(flow, set(place.fused | place.kept))
    return moved, min(left, moved)


def basis_text(*, measured: bool, modelled: bool) -> str:
    """What a time rests on, in words."""
    found = [word for word, holds in (("measured", measured), ("modelled", modelled)) if holds]
    return " and ".join(found) or UNKNOWN


def is_worth(subject: Subject, cost: Cost) -> bool:
    """Whether a saving is large enough to be advice."""
    busy = subject.balance.device_ns if subject.balance else 0
    span = subject.balance.span_ns if subject.balance else 0
    return cost.saved_ns.mid > max(WORTH_SHARE * busy, 0) or (
        cost.saved_ns.mid > 0 and cost.host_saved_ns > 4 * WORTH_SHARE * span > 0
    )


def change_of(places: Sequence[Place], saved: Range) -> Change:
    """The kernels of the places: one is left of each, none where nodes vanish."""
    sites = []
    for place in places:
        price = place.facts.prices.price(place.facts.flow, place.fused)
        sites += price.rows()
    gone = bool(places) and all(place.gone for place in places)
    return Change(sites=distinct(sites), saved_ns=saved, gone=gone)


def exposure(subject: Subject, change: Change) -> tuple[Range | None, Evidence]:
    """The saving on the critical path with the evidence for it, or why it cannot be told."""
    return judged(subject.exposure, change, subject.doubt)


def opportunity(
    rule_id: str,
    subject: Subject,
    places: Sequence[Place],
    cost: Cost,
    *,
    title: str,
    action: str,
    dataflow: str,
    values: dict[str, float | int | str | None] | None = None,
    alternatives: Iterable[Alternative] = (),
    route: AlternativeRoute = "compile_region",
    key: str = "",
) -> Match:
    """The finding of some places, priced."""
    change = change_of(places, cost.saved_ns)
    exposed, host = exposure(subject, change)
    evidence = [
        Evidence(kind="dataflow", text=dataflow, values={"sites": len(places), **(values or {})}),
        traffic_evidence(subject, cost),
        time_evidence(subject, cost),
        host,
    ]
    finding = Finding(
        id=finding_id(rule_id, key or title),
        rule=rule_id,
        kind="opportunity",
        title=title,
        exposed_saving_ns=exposed,
        evidence=tuple(evidence),
        members=members_of(places),
        provenance=subject.provenance,
        action=action,
        alternatives=tuple(alternatives),
        locations=locations_of(places),
    )
    nodes = frozenset(key for place in places for key in place.nodes)
    return Match(finding, nodes, cost.saved_ns, route, change)


def traffic_evidence(subject: Subject, cost: Cost) -> Evidence:
    """Bytes before and after: of an inferred graph the least, since some readers are not seen."""
    least = "at least " if subject.provenance == "inferred" else ""
    return Evidence(
        kind="traffic",
        text=(
            f"{format_bytes(cost.bytes_before)} moved {subject.when} by these ops, "
            f"{least}{format_bytes(cost.bytes_after)} once fused{runs_text(cost.executions)}"
        ),
        values={"bytes_before": cost.bytes_before, "bytes_after": cost.bytes_after},
    )


def time_evidence(subject: Subject, cost: Cost) -> Evidence:
    """Kernel time now and what of it goes."""
    share = cost.saved_ns.mid / cost.time_ns if cost.time_ns else None
    most = "up to " if subject.provenance == "inferred" else ""
    return Evidence(
        kind="time",
        text=(
            f"kernel time {subject.when} {format_ns(cost.time_ns)} now ({cost.basis}); "
            f"{most}{format_fraction(share)} of it goes at the bandwidth these kernels reach today"
        ),
        values={"before_ns": cost.time_ns, "kernel_saving_ns": cost.saved_ns.mid},
    )


def note(
    rule_id: str,
    subject: Subject,
    *,
    identity: str = "",
    title: str,
    action: str,
    evidence: Sequence[Evidence],
    members: tuple[Member, ...] = (),
    locations: tuple[Location, ...] = (),
) -> Match:
    """A finding that asks for nothing by itself; `identity` is its id if not the rule's."""
    finding = Finding(
        id=identity or rule_id,
        rule=rule_id,
        kind="note",
        title=title,
        exposed_saving_ns=None,
        evidence=tuple(evidence),
        members=members,
        provenance=subject.provenance,
        action=action,
        locations=locations,
    )
    return Match(finding)


def locations_of(places: Sequence[Place]) -> tuple[Location, ...]:
    """Where the sites are, one each, as far as it is known."""
    found = (place.location() for place in places)
    return tuple(place for place in found if place.module or place.file)


def members_of(places: Sequence[Place]) -> tuple[Member, ...]:
    """The ops that take part by name, most expensive first."""
    found: dict[str, list[int]] = {}
    for place in places:
        for member in place.facts.prices.price(place.facts.flow, place.fused).members():
            held = found.setdefault(member.name, [0, 0])
            held[0] += member.count
            held[1] += member.time_ns or 0
    rows = [Member(name=n, count=c, time_ns=t) for n, (c, t) in found.items()]
    return tuple(sorted(rows, key=lambda row: (-(row.time_ns or 0), row.name)))


def is_pointwise(facts: GraphFacts, name: str) -> bool:
    """Whether a node is a pure pointwise op of the table."""
    node = facts.flow.nodes[name]
    return (
        spec_of(node.op).kind == "pointwise"
        and len(node.outputs) == 1
        and not node.mutates
        and not node.has_side_effect
    )
