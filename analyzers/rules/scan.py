"""Recurrences along an axis that run as a loop of the program, step after step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from advisor.model.findings import Alternative, Evidence, finding_id
from advisor.model.graph import Node
from advisor.model.optable import spec_of
from advisor.units import counted, format_bytes, format_ns
from analyzers.reads import passes
from analyzers.recurrence import FEWEST_STEPS, recurrences
from analyzers.replay_changes import Change
from analyzers.rules.base import (
    WORTH_SHARE,
    Cost,
    Match,
    Place,
    Rule,
    cost_of,
    is_worth,
    locations_of,
    members_of,
    note,
    opportunity,
    time_evidence,
)
from analyzers.rules.chains import is_recomputed, whole_ops
from analyzers.rules.scan_cost import Site, in_parallel, saved, site_cost
from analyzers.rules.scan_plan import planned, plans_for, refusals
from analyzers.rules.walk import is_gemm
from analyzers.scan_form import form_of, scanned_nodes
from analyzers.subject import GraphFacts, Subject

_LIBRARIES = "mamba_ssm's selective_scan, flash-linear-attention, or a kernel of your own"


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for each kind of loop that is worth it."""
    groups: dict[tuple[str, ...], list[Site]] = {}
    for facts in subject.graphs:
        for site in _sites(subject, facts):
            groups.setdefault(site.signature(), []).append(site)
    found = []
    for key, sites in groups.items():
        cost = site_cost(subject, sites)
        if sites[0].form.network:
            found += _network(subject, sites, cost, "|".join(key))
        elif is_worth(subject, cost):
            found.append(_match(subject, sites, cost, "|".join(key)))
    return tuple(found)


def _sites(subject: Subject, facts: GraphFacts) -> Iterator[Site]:
    """The loops of a graph that still run step by step."""

    def wanted(node: Node) -> bool:
        plain = spec_of(node.op).kind in ("pointwise", "reduction") and not node.mutates
        again = subject.eager and is_recomputed(facts, node)
        return plain and not node.has_side_effect and subject.free(facts, node.id) and not again

    for loop in recurrences(facts.flow, wanted, is_gemm):
        form = form_of(facts.flow, loop)
        if form is None:
            continue
        nodes = loop.nodes if form.network else scanned_nodes(facts.flow, loop)
        between = [facts.flow.nodes[name] for name in facts.flow.between(nodes)]
        # The first steps may compute what the others do in ops of their own.
        nodes |= {node.id for node in between if wanted(node)}
        place = Place(facts, whole_ops(facts, nodes))
        kernels = facts.prices.price(facts.flow, place.fused).units
        step_by_step = not facts.prices.fused or len(kernels) >= FEWEST_STEPS
        if step_by_step and all(wanted(node) or passes(node) for node in between):
            yield Site(loop, form, place)


def _match(subject: Subject, sites: Sequence[Site], cost: Cost, key: str) -> Match:
    form = sites[0].form
    match = opportunity(
        RULE.id,
        subject,
        [site.place for site in sites],
        cost,
        title=f"A {form.what} written as a loop, {_size(sites)}",
        action=_action(sites),
        dataflow=(
            f"{_steps(sites)} that do the same on the next part of the same tensors, each with the "
            f"state that the one before left: {_why_apart(sites)}"
        ),
        values=_values(sites),
        alternatives=_alternatives(subject, sites, cost),
        route="library",
        key=key,
    )
    texts = {"traffic": _traffic(cost), "time": _time(subject, cost)}
    evidence = tuple(
        msgspec.structs.replace(item, text=texts.get(item.kind, item.text))
        for item in match.finding.evidence
    )
    evidence += refusals(subject, sites)
    told = replace(match, finding=msgspec.structs.replace(match.finding, evidence=evidence))
    return planned(subject, told, plans_for(subject, sites))


def _network(subject: Subject, sites: Sequence[Site], cost: Cost, key: str) -> list[Match]:
    """A note on loops with a matrix product in them: no scan computes these."""
    busy = subject.balance.device_ns if subject.balance else 0
    if cost.time_ns <= WORTH_SHARE * busy:
        return []
    places = [site.place for site in sites]
    why = (
        f"{_steps(sites)}: each multiplies the state of the one before by the same matrix, so the "
        "steps cannot be joined to a scan, nor the products to one"
    )
    return [
        note(
            RULE.id,
            subject,
            identity=finding_id(f"{RULE.id}-network", key),
            title=f"A recurrent network written as a loop, {_size(sites)}: no scan",
            action=(
                "use torch.nn.LSTM, GRU or RNN (cuDNN keeps the loop on the GPU), take products "
                "with the inputs out of the loop as one, or replay the loop as a CUDA graph"
            ),
            evidence=(
                Evidence(kind="legality", text=why, values=_values(sites)),
                time_evidence(subject, cost),
            ),
            members=members_of(places),
            locations=locations_of(places),
        )
    ]


# --- words ----------------------------------------------------------------------------------------


def _size(sites: Sequence[Site]) -> str:
    step = counted(sites[0].ops(), sites[0].piece)
    return f"{_steps(sites)} of {step}, {counted(len(sites), 'site')}"


def _steps(sites: Sequence[Site]) -> str:
    most = max(site.loop.steps for site in sites)
    fewest = min(site.loop.steps for site in sites)
    return counted(most, "step") if most == fewest else f"{fewest} to {most} steps"


def _values(sites: Sequence[Site]) -> dict[str, float | int | str | None]:
    return {
        "steps": max(site.loop.steps for site in sites),
        "ops_per_step": sites[0].ops(),
        "kernels": sum(site.launches() for site in sites) or None,
    }


def _why_apart(sites: Sequence[Site]) -> str:
    form = sites[0].form
    if form.call:
        return f"{form.call} computes all of them at once"
    if form.parallel:
        return "linear in the state, so that steps can be joined in any order (a parallel scan)"
    return "one kernel can hold the state in registers from the first step to the last"


def _traffic(cost: Cost) -> str:
    return (
        f"{format_bytes(cost.bytes_before)} moved in one run of the workload, since every step of "
        f"the loop reads and writes its state; {format_bytes(cost.bytes_after)} if the state stays "
        "in registers"
    )


def _time(subject: Subject, cost: Cost) -> str:
    now = f"kernel time of the loops {format_ns(cost.time_ns)} now ({cost.basis})"
    if subject.gpu is None or subject.calibration is None:
        return f"{now}; one kernel is taken to reach the bandwidth that these reach today"
    low, high = (max(cost.time_ns - end, 0) for end in (cost.saved_ns.high, cost.saved_ns.low))
    return (
        f"{now}; as one kernel each between {format_ns(low)} (the time of its traffic) and "
        f"{format_ns(high)} (a trip to memory in every step), modelled"
    )


def _action(sites: Sequence[Site]) -> str:
    form = sites[0].form
    apart = any(not site.loop.nodes <= site.place.fused for site in sites)
    graph = "if the loop stays, replay it as a CUDA graph"
    if apart:
        graph = f"the matrix products in it become one, in front of or behind it; {graph}"
    if form.call:
        return f"call {form.call} once instead of the loop; {graph}"
    if form.parallel:
        return (
            "replace the loop by one scan: a kernel that holds the state in registers "
            f"({_LIBRARIES}), or torch's associative_scan (a prototype, in "
            f"torch._higher_order_ops); {graph}"
        )
    return (
        "replace the loop by one kernel that holds the state in registers (what a step does to the "
        f"state is not linear, so no parallel scan computes it); {graph}"
    )


# --- other ways -----------------------------------------------------------------------------------


def _alternatives(subject: Subject, sites: Sequence[Site], cost: Cost) -> tuple[Alternative, ...]:
    form = sites[0].form
    whole = form.call or f"one scan kernel for each site ({_LIBRARIES})"
    found = [Alternative(route="library", text=whole, saving_ns=cost.saved_ns)]
    if form.parallel and not form.call:
        then = in_parallel(subject, sites)
        found.append(
            Alternative(
                route="graph_rewrite",
                text=(
                    "associative_scan: all steps at once; it writes every state, and sums in "
                    "another order, so that last bits differ"
                ),
                saving_ns=None if then is None else saved(cost.time_ns, then),
            )
        )
    if subject.eager:
        found.append(_compiled(subject, sites))
    found.append(_graphed(subject))
    text = "few steps, or a loop that ends early: a scan computes every step"
    return (*found, Alternative(route="do_not_fuse", text=text))


def _compiled(subject: Subject, sites: Sequence[Site]) -> Alternative:
    cost = cost_of(subject, [place for site in sites for place in site.step_places()])
    text = (
        "torch.compile unrolls the loop: one kernel a step where nothing else stands between, at "
        "a compile time that grows with the steps"
    )
    return Alternative(route="compile_region", text=text, saving_ns=cost.saved_ns)


def _graphed(subject: Subject) -> Alternative:
    exposure = subject.exposure
    known = exposure is not None and not exposure.doubt and not subject.doubt
    return Alternative(
        route="cuda_graph",
        text="the loop as it is, all its kernels in one graph launch: of the whole step's time",
        saving_ns=exposure.saved(Change(graph="step")) if known and exposure is not None else None,
    )


RULE = Rule(
    id="scan-written-out",
    title="A recurrence over an axis written as a loop",
    explanation=(
        "h[t] = a[t] * h[t-1] + b[t] in a Python loop launches every op of every step by itself: "
        "each reads the state from memory and writes it back, and waits for its launch. One kernel "
        "keeps the state in registers; where a step is linear in the state, all steps can even be "
        "computed at once (an associative scan). Found by dataflow: a chain of alike steps, each "
        "reading the state of the one before and the next part of the same tensors. A matrix "
        "product in the loop makes it a recurrent network, which no scan computes."
    ),
    bad="for t in range(64): h = a[:, t] * h + b[:, t]; y.append(h @ c[:, t]): 256 kernels",
    good="torch.cumsum, a selective-scan kernel, or a loop whose steps differ",
    find=find,
)
