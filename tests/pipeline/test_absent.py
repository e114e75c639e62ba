"""A plan that has no site where it was put in says so, and why; nothing is kept in its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch

from advisor.apply.judge import Judgement
from advisor.apply.recipe import Recipe
from advisor.apply.rewrite import Outcome, Swap
from advisor.model.applied import Comparison, SetVerdict
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.graph_programs import (
    NO_SITE,
    TAKEN,
    GraphPrograms,
    programs_of,
    why_no_site,
)
from advisor.pipeline.likeness import Agreement, Results
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.search import Search
from advisor.pipeline.training import LossCurves
from advisor.pipeline.trials import Trial
from advisor.pipeline.verdicts import verdict_of
from advisor.verify.statistics import compare
from tests.builders import captured as models

US = 1_000


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() * y, -1)


def captured(x: torch.Tensor) -> tuple[FusionPlan, GraphPrograms]:
    """The plan of the step, and what plans may be for in its graph."""
    lowered = models.captured(step, x, torch.randn(4, 6, 40)).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    return plan, programs_of(lowered.graph)


@pytest.fixture(scope="module")
def dense() -> tuple[FusionPlan, GraphPrograms]:
    return captured(torch.randn(4, 6, 40))


def test_a_tensor_that_lies_otherwise_is_named(dense: tuple[FusionPlan, GraphPrograms]) -> None:
    cut, programs = captured(torch.randn(4, 6, 80)[..., ::2])
    assert cut.id != dense[0].id
    why = why_no_site(dense[0], [programs])
    assert why.startswith(f"{NO_SITE}: its ops are there, but %arg")
    assert why.endswith("has strides (80, 2), not (40, 1)")


def test_ops_that_are_others_and_ops_that_are_not_there(
    dense: tuple[FusionPlan, GraphPrograms],
) -> None:
    plan, programs = dense
    assert why_no_site(plan, [programs]) == TAKEN
    other = models.captured(models.SoftCap(), torch.randn(2, 4, 16, 72), torch.zeros(16, 72))
    assert why_no_site(plan, [programs_of(other.graphs[0].lowered.graph)]) == NO_SITE
    assert why_no_site(plan, []) == NO_SITE


@dataclass
class Scripted:
    """A bench in whose step `there` have their sites; each plan that is swapped in saves 100 µs.

    Compiled anew for its user the step has the sites of `at_last`.
    """

    there: set[str]
    programs_there: GraphPrograms
    at_last: set[str] | None = None
    built: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.eager = Variant("eager", lambda: None, list, len)
        self.compiled = Variant("compiled", lambda: None, list, len, compile_ns=1)

    def made(self, recipe: Recipe, there: set[str]) -> Variant:
        swaps = [Swap(k, k.plan, k.plan.sites[0]) for k in recipe.kernels if k.plan.id in there]
        log = SwapLog([Outcome(swap, None) for swap in swaps])
        return Variant(recipe.name(), lambda: None, list, len, recipe, log, 1)

    def unswapped(self, recipe: Recipe) -> Variant:
        return self.made(recipe, set())

    def trial(self, recipe: Recipe) -> Variant:
        return self.made(recipe, self.there)

    def build(self, recipe: Recipe) -> Variant:
        self.built.append(tuple(kernel.plan.id for kernel in recipe.kernels))
        return self.made(recipe, self.there if self.at_last is None else self.at_last)

    def programs(self, recipe: Recipe) -> list[GraphPrograms]:
        return [self.programs_there]

    def step_time(self, variants: Sequence[Variant]) -> dict[str, list[int]]:
        return {v.name: self.taken(v) for v in variants}

    def taken(self, variant: Variant) -> list[int]:
        return [1_000 * US - 100 * US * len(variant.log.outcomes) + i % 5 for i in range(40)]

    def gpu_time(self, before: Variant, after: Variant) -> Comparison:
        return compare(self.taken(before), self.taken(after), "gpu_busy")

    def results(self, variant: Variant) -> Results:
        return Results([torch.ones(1)], [torch.ones(1)], [torch.ones(1)])

    def agreement(self, results: Results, comparable: bool) -> Agreement:
        return Agreement("eager", 0.0, 0.01, 1e-3)

    def loss_curves(self, recipe: Recipe, resolution: float) -> LossCurves | str | None:
        return None

    def peak_memory(self, variant: Variant) -> None:
        return None


def quiet(*_: object, **__: object) -> None:
    """Progress nobody reads."""


def searched(
    bench: Scripted, plans: Sequence[FusionPlan], folder: Path
) -> tuple[SetVerdict, dict[str, tuple[str, str, int | None]]]:
    """The set that a search keeps, and verdict, reason and sites of every plan of one trial."""
    found = {plan.id: Candidate(plan, ready_now=True) for plan in plans}
    trial = Trial("f", tuple(found))
    search = Search(cast(Bench, bench), found, [trial], folder, quiet)
    _, result = search.run()
    verdicts = [verdict_of(item, [trial], result, "compile") for item in found.values()]
    return result, {v.plan_id: (v.verdict, v.reason, v.sites_swapped) for v in verdicts}


@pytest.fixture(scope="module")
def cut() -> FusionPlan:
    return captured(torch.randn(4, 6, 80)[..., ::2])[0]


def test_of_two_plans_tried_together_only_the_one_with_a_site_is_kept(
    dense: tuple[FusionPlan, GraphPrograms], cut: FusionPlan, tmp_path: Path
) -> None:
    plan, programs = dense
    bench = Scripted({plan.id}, programs)
    result, told = searched(bench, [plan, cut], tmp_path)
    assert result.verdict == "kept"
    assert result.plans == (plan.id,)
    assert bench.built == [(plan.id,)], "nothing is built with a kernel that has no site"
    assert told[plan.id][0] == "kept"
    assert "together with" not in told[plan.id][1]
    verdict, reason, sites = told[cut.id]
    assert (verdict, sites) == ("refused", 0)
    assert reason.startswith(f"{NO_SITE}: its ops are there, but")


def test_a_trial_without_any_site_is_refused_for_the_true_reason(
    dense: tuple[FusionPlan, GraphPrograms], cut: FusionPlan, tmp_path: Path
) -> None:
    result, told = searched(Scripted(set(), dense[1]), [cut], tmp_path)
    assert result.verdict == "reverted"
    assert told[cut.id][0] == "refused"
    assert "has strides (40, 1), not (80, 2)" in told[cut.id][1]


def test_a_set_is_not_kept_with_a_kernel_that_its_user_would_not_run(
    dense: tuple[FusionPlan, GraphPrograms], tmp_path: Path
) -> None:
    plan, programs = dense
    result, told = searched(Scripted({plan.id}, programs, at_last=set()), [plan], tmp_path)
    assert result.verdict == "reverted"
    assert result.reason == f"{plan.title}, compiled as its user compiles it: {NO_SITE}"
    assert told[plan.id][0] == "reverted"


def test_where_a_plan_had_its_sites_decides_on_it() -> None:
    plan, other = models.plans_of(
        models.captured(models.Chain(), torch.randn(8, 48)).graphs[0].lowered
    )
    faster = compare([1_000] * 9, [900] * 9, "gpu_busy")
    slower = compare([1_000] * 9, [990] * 9, "gpu_busy")
    together = Trial("f", (plan.id, other.id), comparison=faster, absent={plan.id: NO_SITE})
    alone = Trial("f", (plan.id,), comparison=slower)
    for trial in (together, alone):
        trial.judgement = Judgement(True, "it saves")
    kept = SetVerdict(verdict="kept", reason="it pays", plans=(plan.id,))
    found = verdict_of(Candidate(plan), [together, alone], kept, "compile")
    assert (found.verdict, found.reason, found.region) == ("kept", "it saves", slower)
    lost = verdict_of(Candidate(plan), [together], kept, "compile")
    assert (lost.verdict, lost.reason, lost.region) == ("refused", NO_SITE, None)
    assert lost.measured is None
    whole = verdict_of(Candidate(other), [together], kept, "compile")
    assert whole.measured == faster, "what was measured is this plan's alone"
