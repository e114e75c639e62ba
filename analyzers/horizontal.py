"""Horizontal groups: small programs that wait for nothing of each other, as one launch.

What is saved is the floor of every launch but one, and the tails: one wave of all programs in place
of as many waves, each partly empty, as there are kernels. Inside a CUDA graph the floors are the
gaps on the device and stay to be saved. Only programs whose time is mostly floor are taken: for
larger ones a launch is nothing, and they would only wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from advisor.hardware.learned import recalibrated
from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding, finding_id
from advisor.model.joining import join
from advisor.model.members import split
from advisor.model.plan import FusionPlan, Site, plan_id
from advisor.units import counted, format_bytes, format_ns, runs_text
from analyzers.dataflow import Dataflow
from analyzers.exposure import Situation, judged
from analyzers.independent import NOBODY, Candidate, candidates, independent_sets
from analyzers.naming import describe
from analyzers.prediction import (
    Claimed,
    PricedFlow,
    claimed_nodes,
    predicted,
    present_members,
)
from analyzers.pricing import Price
from analyzers.program_cost import program_time, source_ops
from analyzers.replay_changes import Change, distinct
from analyzers.row_plans import module_pattern
from analyzers.row_programs import RowPrograms

RULE = "horizontal-group"
# Beyond the floor of a launch, a member takes at most this many floors of its own.
MOST_FLOORS = 2.0
MAX_REASONS = 8


@dataclass(frozen=True)
class GroupPlace:
    """One set of a graph: its plan, by itself, and what its nodes cost today.

    `alone_ns` is predicted as the set's own time is: a generated kernel each, in one step.
    """

    facts: PricedFlow
    plan: FusionPlan
    price: Price
    alone_ns: int

    @property
    def site(self) -> Site:
        """Where its plan stands."""
        return self.plan.sites[0]


def group_places(
    facts: PricedFlow, found: RowPrograms, situation: Situation
) -> tuple[list[GroupPlace], dict[str, str]]:
    """The sets of one graph; why small programs are in none, counted by reason elsewhere."""
    gpu, calibration = situation.gpu, situation.calibration
    small, out = candidates(found, facts.phase)
    most = (1 + MOST_FLOORS) * calibration.kernel_floor_ns

    def alone(item: Candidate) -> Range:
        once = msgspec.structs.replace(item.plan.sites[0], executions=1.0)
        return program_time(item.plan, once, gpu, calibration)

    # In eager an op of the user's program is one kernel: what takes a part of it saves no launch.
    taken_whole = _whole_ops(facts.flow, small) if situation.eager else small
    sets = independent_sets(found, [item for item in taken_whole if alone(item).mid <= most])
    places = []
    for taken in sets.taken:
        made = join([item.plan for item in taken], NOBODY, "")
        price = facts.prices.price(facts.flow, made.sites[0].nodes)
        times = sum(recalibrated(alone(item), situation.residuals).mid for item in taken)
        places.append(GroupPlace(facts, made, price, round(times * made.sites[0].executions)))
    return places, {**out, **sets.misses}


def _whole_ops(flow: Dataflow, small: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that hold every op of the user's program whole, or nothing of it."""
    every = source_ops(flow, flow.index)
    whole = {name: frozenset(nodes) for nodes in every for name in nodes}
    return [item for item in small if all(whole[name] <= item.members for name in item.members)]


def group_findings(
    places: Sequence[GroupPlace], misses: Sequence[str], situation: Situation
) -> list[tuple[FusionPlan, Finding, Change]]:
    """A finding for every kind of set that saves kernel time, with its plan and its change."""
    kinds: dict[tuple[str, str], list[GroupPlace]] = {}
    for place in places:
        kinds.setdefault((place.facts.phase, place.plan.signature()), []).append(place)
    built = [_built(same, misses, situation) for same in kinds.values()]
    return [item for item in built if item[1].kernel_saving_ns]


def _built(
    places: Sequence[GroupPlace], misses: Sequence[str], situation: Situation
) -> tuple[FusionPlan, Finding, Change]:
    first = places[0]
    sites = tuple(place.site for place in places)
    patterns = sorted({module_pattern(site.location.module) for site in sites})
    identity = plan_id(f"{RULE}/{first.facts.phase}", "|".join(patterns), first.plan.signature())
    kernels = [(place.plan, place.site) for place in places]
    prediction = predicted(_claimed(places), kernels, situation)
    plan = msgspec.structs.replace(
        first.plan,
        id=identity,
        rule=RULE,
        title=title_of(first.plan),
        sites=sites,
        prediction=prediction,
    )
    plan.check()
    today = [rows for place in places for rows in place.price.rows()]
    change = Change(sites=distinct(today), saved_ns=prediction.saving_ns)
    return plan, _finding(plan, places, misses, change, situation), change


def title_of(plan: FusionPlan) -> str:
    """`8 × RMS norm` or `2 × softmax, 3 × pointwise chain` and so on."""
    names = Counter(describe(part) for part in split(plan))
    return ", ".join(f"{count} × {name}" for name, count in names.most_common())[:160]


def _claimed(places: Sequence[GroupPlace]) -> list[Claimed]:
    return claimed_nodes((place.facts, place.site) for place in places)


def _finding(
    plan: FusionPlan,
    places: Sequence[GroupPlace],
    misses: Sequence[str],
    change: Change,
    situation: Situation,
) -> Finding:
    saving, exposure = judged(situation.exposure, change)
    members = len(plan.members)
    kernels = len({row for site in change.sites for row in site})
    today = f"{counted(kernels, 'kernel')} today" if kernels else "a kernel each at least today"
    return Finding(
        id=finding_id(RULE, plan.id),
        rule=RULE,
        kind="opportunity",
        title=f"{counted(members, 'small program')} in one launch: {plan.title}",
        exposed_saving_ns=saving,
        evidence=(*_evidence(plan, places, situation), exposure, *_reasons(misses)),
        members=present_members(_claimed(places), [(place.plan, place.site) for place in places]),
        provenance="exact",
        action=(
            f"launch the {members} programs as one kernel at "
            f"{counted(len(places), 'place')} ({today}); apply proves and times it first"
        ),
        alternatives=_alternatives(plan, situation),
        plan_id=plan.id,
        locations=tuple(dict.fromkeys(place.site.location for place in places)),
    )


def _evidence(
    plan: FusionPlan, places: Sequence[GroupPlace], situation: Situation
) -> list[Evidence]:
    prediction = plan.prediction
    assert prediction is not None
    alone = sum(place.alone_ns for place in places)
    members = len(plan.members)
    runs = [round(site.executions) for site in plan.sites]
    launches = max(sum(runs), 1)
    return [
        Evidence(
            kind="dataflow",
            text=(
                f"no path leads from one of the {members} programs to another; none writes what "
                "another reads, and all run on one stream"
            ),
            values={"members": members, "sites": len(places)},
        ),
        Evidence(
            kind="traffic",
            text=(
                f"{format_bytes(prediction.bytes_after)} moved per step in one launch a place: "
                f"{format_bytes(prediction.bytes_after // (members * launches))} a member, "
                f"mostly launch and tail{runs_text(max(runs))}"
            ),
            values={
                "bytes_before": prediction.bytes_before,
                "bytes_after": prediction.bytes_after,
            },
        ),
        Evidence(
            kind="time",
            text=(
                f"kernel time per step {format_ns(prediction.before_ns.mid)} now "
                f"({prediction.basis}), {format_ns(alone)} as one generated kernel each, "
                f"{format_ns(prediction.after_ns.mid)} in one launch ({situation.model})"
            ),
            values={
                "before_ns": prediction.before_ns.mid,
                "apart_ns": alone,
                "after_ns": prediction.after_ns.mid,
                "kernel_saving_ns": prediction.saving_ns.mid,
            },
        ),
    ]


def _reasons(misses: Sequence[str]) -> list[Evidence]:
    """Why other programs of these graphs are in no set, the commonest reasons first."""
    ranked = Counter(misses).most_common(MAX_REASONS)
    return [
        Evidence(kind="legality", text=f"stays out: {text}", values={"programs": count})
        for text, count in ranked
    ]


def _alternatives(plan: FusionPlan, situation: Situation) -> tuple[Alternative, ...]:
    saving = plan.prediction.saving_ns if plan.prediction is not None else None
    return (
        Alternative(
            route="generated_kernel",
            text=f"{plan.title} at {counted(len(plan.sites), 'site')}",
            saving_ns=saving,
            plan_ids=(plan.id,),
        ),
        Alternative(
            route="compile_region",
            text=(
                "torch.compile with torch._inductor.config.combo_kernels = True joins independent "
                "kernels too; "
                + ("it also fuses each of them" if situation.eager else "compare both")
            ),
        ),
        Alternative(
            route="cuda_graph",
            text="a CUDA graph takes the host's launches away; gaps and tails on the GPU stay",
        ),
    )


def with_rest(finding: Finding, rest: Sequence[str], rest_saving: Range) -> Finding:
    """The finding with the row programs that serve the places its own plan leaves.

    `rest` are their ids, `rest_saving` is what they save there: all are tried together.
    """
    own, *others = finding.alternatives
    if not rest or own.saving_ns is None:
        return finding
    together = msgspec.structs.replace(
        own,
        text=f"{own.text}; {counted(len(rest), 'row program')} elsewhere",
        saving_ns=own.saving_ns.plus(rest_saving),
        plan_ids=(*own.plan_ids, *rest),
    )
    return msgspec.structs.replace(finding, alternatives=(together, *others))
