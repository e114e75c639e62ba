"""What `apply` can do where there is no GPU: everything but time, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.apply.rewrite import rewrite
from advisor.errors import RefusedError
from advisor.model.actions import facts_of
from advisor.model.applied import NO_TIME, ActionVerdict, Applied, PlanVerdict, SetVerdict
from advisor.model.served import sizes_served
from advisor.pipeline.backend import GRAPH_REWRITES, SwapLog, choose_swaps
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.earlier import NO_DEVICE
from advisor.pipeline.facts import now, versions
from advisor.pipeline.graph_programs import programs_of, why_no_site
from advisor.pipeline.trials import Trial
from advisor.pipeline.verdicts import seen_actions
from advisor.store import RunDirectory
from collectors.live.capture import Capture

NOTHING = (
    "nothing to apply without a GPU: the run has no generated kernel, and actions are measured on "
    "a GPU only"
)
NEEDS_GPU = "timing needs a GPU: the kernel was generated, sized and verified, not timed"
ACTION_NEEDS_GPU = "timing needs a GPU: the places are found, nothing is changed in them yet"


def can_be_looked_at(trials: Sequence[Trial]) -> bool:
    """Whether some trial can be made ready or looked for in the graphs without a GPU.

    Of what nobody asks for and no finding calls for, nothing is.
    """
    return any(
        trial.plan_ids or (trial.action in GRAPH_REWRITES and trial.finding != trial.action)
        for trial in trials
    )


def refuse_what_needs_a_gpu(run: RunDirectory, trials: Sequence[Trial]) -> None:
    """Raises `RefusedError` where nothing that was asked for by name can be done here."""
    if any(trial.plan_ids or trial.action in GRAPH_REWRITES for trial in trials):
        return
    titles = dict.fromkeys(facts_of(t.action).title for t in trials if t.action is not None)
    raise RefusedError(
        f"cannot be tried here: {', '.join(titles)}",
        where=run.id,
        why="that is found and measured on a GPU only, and there is none",
        remedy=f"apply on a machine with the GPU that the run names: {run.report().hardware.name}",
    )


def nothing_to_apply(trials: Sequence[Trial]) -> Applied:
    """The record of a run without kernels, and without an action that was looked for."""
    verdict = SetVerdict(verdict="not_measured", reason=NOTHING, plans=())
    return Applied(
        created=now(),
        device=NO_DEVICE,
        versions=versions(),
        plans=(),
        actions=seen_actions(trials, {}, ACTION_NEEDS_GPU),
        set=verdict,
    )


def plan_verdicts(
    found: Mapping[str, Candidate], swapped: Mapping[str, int]
) -> tuple[PlanVerdict, ...]:
    """The records of plans whose kernels were not timed; `swapped` counts their sites."""
    return tuple(
        PlanVerdict(
            plan_id=item.plan.id,
            title=item.plan.title,
            verdict="refused" if item.refused else "not_measured",
            reason=item.refused or (NO_TIME if item.postponed else NEEDS_GPU),
            sites_expected=len(item.plan.sites),
            sites_swapped=swapped.get(item.plan.id),
            serves=sizes_served(item.plan),
            predicted_ns=item.plan.prediction.saving_ns if item.plan.prediction else None,
            numerics=item.numerics,
            resources=item.resources,
        )
        for item in found.values()
    )


def set_verdict(plans: Sequence[PlanVerdict], actions: Sequence[ActionVerdict]) -> SetVerdict:
    """What is left open, of plans or, where none of them is, of actions; else why all is out."""
    every: tuple[PlanVerdict | ActionVerdict, ...] = (*plans, *actions)
    left = [item.reason for item in every if item.verdict == "not_measured"]
    for reason in (NEEDS_GPU, NO_TIME, *left):
        if reason in left:
            return SetVerdict(verdict="not_measured", reason=reason, plans=())
    if plans:
        return SetVerdict(verdict="refused", reason="every plan was refused", plans=())
    reasons = dict.fromkeys(f"{item.title}: {item.reason}" for item in actions)
    return SetVerdict(verdict="refused", reason="; ".join(reasons), plans=())


def swap_in_captured(
    found: Mapping[str, Candidate], folder: Path, captured: Capture
) -> dict[str, int]:
    """Sites that each plan alone would swap, found by rewriting copies of the captured graphs.

    A plan that has none is refused.
    """
    swapped: dict[str, int] = {}
    programs = [programs_of(item.lowered.graph) for item in captured.graphs]
    for plan_id, candidate in found.items():
        if candidate.refused is not None or candidate.postponed:
            continue
        kernel, log = candidate.ready(folder), SwapLog()
        for item, of_graph in zip(captured.graphs, programs, strict=True):
            lowered = item.lowered.copy()
            swaps = choose_swaps(of_graph, [kernel])
            log.outcomes += rewrite(lowered.fx_graph, lowered.fx_node, lowered.fx_aliases, swaps)
        swapped[plan_id] = log.swapped(plan_id)
        if not swapped[plan_id]:
            refusals = log.refusals(plan_id) or (why_no_site(candidate.plan, programs),)
            candidate.refused = refusals[0]
    return swapped
