"""Matrix products whose result one more kernel reads: a candidate that must win its measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from advisor.model.findings import Alternative, Evidence, Member, finding_id
from advisor.model.gemm import arithmetic_of, product_text, products_text
from advisor.model.plan import FusionPlan
from advisor.units import counted, format_fraction, format_ns
from analyzers.gemm_advice import GemmPlan, Left, none_saved, unlikely
from analyzers.gemm_cost import GemmPlace
from analyzers.pricing import Price, Unit
from analyzers.replay_changes import Change, distinct
from analyzers.rules.base import (
    Cost,
    Match,
    Place,
    Rule,
    basis_text,
    exposure,
    locations_of,
    note,
    traffic_evidence,
)
from analyzers.subject import Subject

MOST_REASONS = 6


def find(subject: Subject) -> tuple[Match, ...]:
    """A finding for each plan that may well win; one note on what stays with the library."""
    if subject.advice is None:
        return ()
    gemms = subject.advice.gemms
    found = [_match(subject, item) for item in gemms.plans if item.likely]
    losing = [item for item in gemms.plans if not item.likely]
    return (*found, *_stay(subject, losing, gemms.left))


def _match(subject: Subject, item: GemmPlan) -> Match:
    plan, worth = item.plan, item.worth
    facts = {held.graph.id: held for held in subject.graphs}
    places = [Place(facts[site.graph], frozenset(site.nodes)) for site in plan.sites]
    change = _change(item)
    exposed, host = exposure(subject, change)
    prediction = plan.prediction
    assert prediction is not None
    cost = Cost(
        time_ns=prediction.before_ns.mid,
        bytes_before=prediction.bytes_before,
        bytes_after=prediction.bytes_after,
        saved_ns=worth.saving,
        host_saved_ns=0,
        basis=prediction.basis,
        executions=round(max(site.executions for site in plan.sites)),
    )
    finding = note(
        RULE.id,
        subject,
        identity=finding_id(RULE.id, plan.id),
        title=f"A {plan.title}, {_sizes(plan)}, {counted(len(places), 'site')}",
        action=(
            "try the product and what follows it as one generated kernel; apply measures it in the "
            "step and takes it out where the library and a kernel after it are faster. By hand: "
            "torch.compile with mode='max-autotune' tries Triton's own products as well"
        ),
        evidence=(
            _dataflow(item),
            traffic_evidence(subject, cost),
            _both_sides(item),
            host,
            *_out(item),
        ),
        members=_members(item),
        locations=locations_of(places),
    ).finding
    finding = msgspec.structs.replace(
        finding,
        kind="opportunity",
        plan_id=plan.id,
        exposed_saving_ns=exposed,
        alternatives=_ways(item),
    )
    nodes = frozenset(key for place in places for key in place.nodes)
    return Match(finding, nodes, worth.saving, "generated_kernel", change, bet=True)


def _out(item: GemmPlan) -> tuple[Evidence, ...]:
    """What might have been taken along, and why it was not."""
    return (Evidence(kind="legality", text=item.why),) if item.why else ()


def _change(item: GemmPlan) -> Change:
    """The kernels of both, of which one is left; what loses is taken out, so nothing is lost."""
    sites = []
    for place in item.places:
        sites += replace(place.following(), units=tuple(_units(place))).rows()
    return Change(sites=distinct(sites), saved_ns=none_saved(item.worth.saving))


def _members(item: GemmPlan) -> tuple[Member, ...]:
    """The kernels that run today, most expensive first."""
    units = tuple(unit for place in item.places for unit in _units(place))
    return Price(units, (), frozenset()).members()


def _units(place: GemmPlace) -> list[Unit]:
    own = place.unit()
    return [*((own,) if own is not None else ()), *place.following().units]


def _sizes(plan: FusionPlan) -> str:
    return products_text(product_text(site) for site in plan.sites)


def _dataflow(item: GemmPlan) -> Evidence:
    plan = item.plan
    kind = arithmetic_of(plan)
    return Evidence(
        kind="dataflow",
        text=(
            f"a {kind} product of {_sizes(plan)} whose result goes to "
            f"{counted(len(item.places[0].after), 'pointwise op')} that nothing else feeds: a "
            "kernel that computes a tile of it can go on with the tile in registers"
        ),
        values={"sites": len(plan.sites), "ops": len(plan.ops), "arithmetic": kind},
    )


def _both_sides(item: GemmPlan) -> Evidence:
    """What goes for certain, and what the product must not lose."""
    worth, share = item.worth, item.share
    product, follows = worth.product.mid, worth.follows.mid
    besides = worth.besides.high
    even = product / (product + follows) if product + follows else None
    more = f", less up to {format_ns(besides)} for what it reads and writes" if besides else ""
    return Evidence(
        kind="time",
        text=(
            f"what follows takes {format_ns(follows)} a step ({_origin(item, 'follows')}) and "
            f"goes{more}; the product takes {format_ns(product)} by the library "
            f"({_origin(item, 'product')}), and pays only if the generated one keeps more "
            f"than {format_fraction(even)} of that speed: {format_fraction(share.least)} to "
            f"{format_fraction(share.best)} is usual for this GPU (estimated). Between "
            f"{format_ns(worth.saving.low)} and {format_ns(worth.saving.high)} are saved, modelled"
        ),
        values={
            "product_ns": product,
            "follows_ns": follows,
            "kernel_saving_ns": worth.saving.mid,
            "share_to_keep": even,
        },
    )


def _origin(item: GemmPlan, what: Literal["product", "follows"]) -> str:
    """Whether today's times were measured, in the workload's own kernels, or are modelled."""
    if what == "product":
        known = [place.unit() is not None for place in item.places]
        return basis_text(measured=any(known), modelled=not all(known))
    prices = [place.following() for place in item.places]
    return basis_text(
        measured=any(price.units for price in prices),
        modelled=any(price.unpriced for price in prices),
    )


def _kernel(item: GemmPlan) -> Alternative:
    return Alternative(
        route="generated_kernel",
        text=item.plan.title,
        saving_ns=item.worth.saving,
        plan_ids=(item.plan.id,),
    )


def _ways(item: GemmPlan) -> tuple[Alternative, ...]:
    return (
        _kernel(item),
        Alternative(
            route="do_not_fuse",
            text=(
                "the library's product and a kernel after it, where the product is most of the "
                "time: a few percent of its speed are more than what follows takes"
            ),
        ),
    )


def _stay(
    subject: Subject, losing: Sequence[GemmPlan], others: Sequence[Left]
) -> tuple[Match, ...]:
    """One note: products with something pointwise behind them that are left alone, by reason.

    Of those that may win, though they are expected not to, it holds the plans.
    """
    left = [
        Left(site.graph, site.nodes[0], product_text(site), unlikely(item))
        for item in losing
        for site in item.plan.sites
    ]
    left += others
    if not left:
        return ()
    counts = Counter(item.why for item in left)
    sizes: dict[str, list[str]] = {}
    for item in left:
        if item.sizes:
            sizes.setdefault(item.why, []).append(item.sizes)
    lines = []
    for why, count in counts.most_common(MOST_REASONS):
        where = f" ({products_text(sizes[why])})" if why in sizes else ""
        lines.append(Evidence(kind="legality", text=f"{counted(count, 'product')}{where}: {why}"))
    told = note(
        RULE.id,
        subject,
        identity=f"{RULE.id}-left",
        title=f"{counted(len(left), 'matrix product')} with what follows left to the library",
        action="nothing: here the product and a kernel after it are expected to be best apart",
        evidence=lines,
    )
    ways = tuple(_kernel(item) for item in losing)
    return (replace(told, finding=msgspec.structs.replace(told.finding, alternatives=ways)),)


RULE = Rule(
    id="gemm-epilogue",
    title="A matrix product whose result one more kernel reads",
    explanation=(
        "A library's product writes its result to memory, and the kernel of what follows (bias, "
        "activation, residual sum, the other half of a gated MLP) reads it again. A generated "
        "product goes on with each tile in registers: that saves a kernel and a round trip, and "
        "risks the library's speed, which generated products reach in part only. It is a candidate "
        "that must win its measurement in the step; where it cannot win by any estimate, a note "
        "says why, and where a compiler's template has what follows in it already, nothing is "
        "proposed."
    ),
    bad="addmm, then a kernel for GELU that takes half as long as the product",
    good="a product so deep that what follows takes two percent of its time",
    find=find,
)
