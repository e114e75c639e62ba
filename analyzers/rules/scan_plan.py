"""Loops with a generated kernel: the finding is about what the kernel takes the place of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence
from advisor.model.guards import Prediction
from advisor.model.plan import FusionPlan
from advisor.model.scan import sizes_text
from advisor.units import counted, format_bytes, format_ns
from analyzers.exposure import model_text
from analyzers.program_cost import sum_of
from analyzers.rules.base import Match, Place, change_of, exposure
from analyzers.rules.scan_cost import Site
from analyzers.subject import Subject


def plans_for(subject: Subject, sites: Sequence[Site]) -> tuple[FusionPlan, ...]:
    """The plans, with their prices, whose kernels take the place of these loops."""
    scans = subject.advice.scans.plans if subject.advice is not None else ()
    nodes = {(site.facts.graph.id, name) for site in sites for name in site.loop.nodes}
    return tuple(
        plan
        for plan in scans
        if plan.prediction is not None
        and any((place.graph, name) in nodes for place in plan.sites for name in place.nodes)
    )


def refusals(subject: Subject, sites: Sequence[Site]) -> tuple[Evidence, ...]:
    """Why a loop has no generated kernel, in words."""
    known = subject.advice.scans.refused if subject.advice is not None else {}
    keys = ((site.facts.graph.id, name) for site in sites for name in site.loop.nodes)
    why = dict.fromkeys(known[key] for key in keys if key in known)
    return tuple(
        Evidence(kind="legality", text=f"the loop becomes no kernel: {text}") for text in why
    )


def planned(subject: Subject, match: Match, plans: Sequence[FusionPlan]) -> Match:
    """The finding priced as what kernels do that can be proven here and now, its first way."""
    priced = [(plan, plan.prediction) for plan in plans if plan.prediction is not None]
    if not priced:
        return match
    main = max(plans, key=lambda plan: len(plan.sites))
    saved = sum_of([prediction.saving_ns for _, prediction in priced])
    facts = {item.graph.id: item for item in subject.graphs}
    places = [
        Place(facts[site.graph], frozenset(site.nodes)) for plan in plans for site in plan.sites
    ]
    change = change_of(places, _at_least_nothing(saved))
    exposed, host = exposure(subject, change)
    kept = [item for item in match.finding.evidence if item.kind in ("dataflow", "legality")]
    way = Alternative(
        route="generated_kernel",
        text="; ".join(f"{plan.title}, {sizes_text(plan.sites[0])}" for plan in plans),
        saving_ns=saved,
        plan_ids=tuple(plan.id for plan in plans),
    )
    figures = _figures([prediction for _, prediction in priced], subject)
    finding = msgspec.structs.replace(
        match.finding,
        plan_id=main.id,
        exposed_saving_ns=exposed,
        evidence=(*kept, *figures, host),
        action=(
            f"replace the loop by {counted(len(plans), 'generated kernel')} that keeps the state "
            "in registers; apply proves and times it on the workload first. By hand: "
            f"{match.finding.action}"
        ),
        alternatives=(way, *match.finding.alternatives),
    )
    own = frozenset(key for place in places for key in place.nodes)
    return replace(
        match,
        finding=finding,
        nodes=match.nodes | own,
        saved_ns=saved,
        route="generated_kernel",
        change=change,
    )


def _at_least_nothing(saved: Range) -> Range:
    low, mid, high = (max(ns, 0) for ns in (saved.low, saved.mid, saved.high))
    return Range(low=low, mid=mid, high=high, coverage=saved.coverage)


def _figures(predictions: Sequence[Prediction], subject: Subject) -> tuple[Evidence, Evidence]:
    """Traffic and time of the loops with all that their kernels take along."""
    before_bytes = sum(item.bytes_before for item in predictions)
    after_bytes = sum(item.bytes_after for item in predictions)
    before = sum_of([item.before_ns for item in predictions]).mid
    after = sum_of([item.after_ns for item in predictions]).mid
    bases = " and ".join(dict.fromkeys(item.basis for item in predictions))
    assert subject.gpu is not None, "they were priced for one"
    assert subject.calibration is not None
    corrected = any(item.modelled_saving_ns is not None for item in predictions)
    model = model_text(subject.gpu, subject.calibration, corrected=corrected)
    return (
        Evidence(
            kind="traffic",
            text=(
                f"{format_bytes(before_bytes)} moved in one run of the workload by the loops and "
                "by what the kernels take along with them; the state stays in registers then, and "
                f"{format_bytes(after_bytes)} are left"
            ),
            values={"bytes_before": before_bytes, "bytes_after": after_bytes},
        ),
        Evidence(
            kind="time",
            text=(
                f"kernel time per step {format_ns(before)} now ({bases}), "
                f"{format_ns(after)} as generated kernels ({model})"
            ),
            values={
                "before_ns": before,
                "after_ns": after,
                "kernel_saving_ns": sum(item.saving_ns.mid for item in predictions),
            },
        ),
    )
