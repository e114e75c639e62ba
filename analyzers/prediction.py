"""What new kernels are predicted to save: what nodes cost today against one kernel a site.

Present cost is the workload's own kernels where they are known, modelled for the rest; a kernel
that serves two sites of a graph counts once. What a replaced kernel did beside the nodes is left to
do, and is added to the new kernels' time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.hardware.learned import AS_MODELLED, recalibrated
from advisor.model.base import Location, Phase, Range
from advisor.model.findings import Member
from advisor.model.guards import Prediction
from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import site_bytes
from analyzers.dataflow import Dataflow
from analyzers.exposure import Situation
from analyzers.pricing import Price, PriceList
from analyzers.program_cost import modelled_before, program_time, residual_time, sum_of

_KERNEL_TIMES = " kernel times"
# The basis of a price that rests on the workload's own kernels alone.
MEASURED_BASIS = "measured" + _KERNEL_TIMES


@dataclass(frozen=True)
class PricedFlow:
    """A graph as its places see it; an empty price list prices nothing."""

    flow: Dataflow
    prices: PriceList
    phase: Phase


@dataclass(frozen=True)
class Claimed:
    """All claimed nodes of one graph, and what they cost today."""

    facts: PricedFlow
    nodes: frozenset[str]
    price: Price


def claimed_nodes(sites: Iterable[tuple[PricedFlow, Site]]) -> list[Claimed]:
    """The nodes of sites by graph, in the order in which graphs first occur."""
    facts: dict[str, PricedFlow] = {}
    nodes: dict[str, set[str]] = {}
    for held, site in sites:
        facts.setdefault(site.graph, held)
        nodes.setdefault(site.graph, set()).update(site.nodes)
    return [
        Claimed(held, frozenset(nodes[graph]), held.prices.price(held.flow, nodes[graph]))
        for graph, held in facts.items()
    ]


def predicted(
    claimed: Sequence[Claimed], kernels: Sequence[tuple[FusionPlan, Site]], situation: Situation
) -> Prediction:
    """The prediction for claimed nodes that these kernels, each at its site, take the place of.

    Times are of one step, in ns, saving = before - after with the interval of both, where after is
    modelled and then corrected as earlier plans on this GPU taught; `basis` says whether present
    times were measured, modelled, or both.
    """
    gpu, calibration, learned = situation.gpu, situation.calibration, situation.residuals
    before, moved, basis = _before(claimed, situation)
    residuals = [
        residual_time(item.facts.flow, item.price.shared, item.nodes, gpu, calibration)
        for item in claimed
    ]
    modelled = sum_of(
        [
            *_kernel_times(kernels, gpu, calibration),
            *(left for left in residuals if left is not None),
        ]
    )
    after = recalibrated(modelled, learned)
    return Prediction(
        before_ns=before,
        after_ns=after,
        saving_ns=_saving(before, after),
        bytes_before=moved,
        bytes_after=round(sum(site_bytes(plan, site) * site.executions for plan, site in kernels)),
        basis=basis,
        modelled_saving_ns=None if learned == AS_MODELLED else _saving(before, modelled),
    )


def _saving(before: Range, after: Range) -> Range:
    return Range(
        low=before.low - after.high,
        mid=before.mid - after.mid,
        high=before.high - after.low,
        coverage=after.coverage,
    )


def _kernel_times(
    kernels: Sequence[tuple[FusionPlan, Site]], gpu: Gpu, calibration: Calibration
) -> Iterator[Range]:
    """The time of each kernel; the layers of a model are alike, so equal ones are modelled once."""
    known: dict[tuple[int, Site], Range] = {}
    for plan, site in kernels:
        anywhere = replace(site, graph="", nodes=(), inputs=(), outputs=(), location=Location())
        key = id(plan), anywhere
        if key not in known:
            known[key] = program_time(plan, site, gpu, calibration)
        yield known[key]


def _before(claimed: Sequence[Claimed], situation: Situation) -> tuple[Range, int, str]:
    """(present kernel time, bytes that the ops move one by one, what the time rests on)."""
    times: list[Range] = []
    bases: set[str] = set()
    moved = 0
    for item in claimed:
        modelled, size = modelled_before(
            item.facts.flow,
            item.nodes,
            situation.gpu,
            situation.calibration,
            only=item.price.unpriced,
            again=not item.facts.prices.fused,
        )
        measured = item.price.time_ns
        times += [Range(low=measured, mid=measured, high=measured), modelled]
        moved += size
        if item.price.units:
            bases.add("measured")
        if item.price.unpriced:
            bases.add("modelled")
    return sum_of(times), moved, " and ".join(sorted(bases)) + _KERNEL_TIMES


def present_members(
    claimed: Sequence[Claimed], kernels: Sequence[tuple[FusionPlan, Site]]
) -> tuple[Member, ...]:
    """The kernels that run today, most expensive first; the plans' ops where none is known."""
    times: dict[str, Member] = {}
    for item in claimed:
        for member in item.price.members():
            known = times.get(member.name, Member(name=member.name, count=0, time_ns=0))
            times[member.name] = Member(
                name=member.name,
                count=known.count + member.count,
                time_ns=(known.time_ns or 0) + (member.time_ns or 0),
            )
    if times:
        return tuple(sorted(times.values(), key=lambda row: -(row.time_ns or 0)))
    counts: Counter[str] = Counter()
    for plan, site in kernels:
        for op in plan.ops:
            counts[op.op] += round(site.executions)
    return tuple(Member(name=name, count=count) for name, count in counts.items())
