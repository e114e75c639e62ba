"""What a search keeps, given what each recipe measures (scripted: the timings need a GPU)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch

from advisor.apply.graph.records import Rewritten
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import IllegalFusionError, WorkloadError
from advisor.model.actions import ActionKind
from advisor.model.applied import NO_TIME, Comparison, SetVerdict
from advisor.model.base import Location
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog
from advisor.pipeline.budget import Budget
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.graph_sites import NO_FLEX, rewritten_by
from advisor.pipeline.likeness import Agreement, Results
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.search import Search, unlimited
from advisor.pipeline.switch import OwnKernels
from advisor.pipeline.training import LossCurves
from advisor.pipeline.trials import KEPT_BEFORE, KINDS, Trial, of_actions
from advisor.pipeline.verdicts import action_verdicts
from advisor.verify.statistics import compare

US = 1_000


@dataclass
class Scripted:
    """A bench whose variants take what a function of the recipe says (step, GPU: ns)."""

    step_ns: Callable[[Recipe], int]
    gpu_ns: Callable[[Recipe], int]
    differs: Callable[[Recipe], bool] = lambda _: False
    refuses: dict[ActionKind, Exception] = field(default_factory=dict)
    built: list[tuple[ActionKind, ...]] = field(default_factory=list)
    curves: LossCurves | str | None = None
    rewritten: dict[ActionKind, tuple[Rewritten, ...]] = field(default_factory=dict)
    peak_bytes: Callable[[Recipe], int] = lambda _: 1_000

    def __post_init__(self) -> None:
        self.eager = Variant("eager", lambda: None, list, len)
        self.compiled = Variant("compiled", lambda: None, list, len, compile_ns=1)

    def build(self, recipe: Recipe) -> Variant:
        for kind in recipe.actions:
            if kind in self.refuses:
                raise self.refuses[kind]
        if recipe.actions not in self.built:
            self.built.append(recipe.actions)
        log = SwapLog(
            rewritten=[x for kind in recipe.actions for x in self.rewritten.get(kind, ())]
        )
        return Variant(recipe.name(), lambda: None, list, len, recipe, log, 1)

    def unswapped(self, recipe: Recipe) -> Variant:
        return self.build(recipe)

    def own_kernels(self, recipe: Recipe) -> list[OwnKernels]:
        return []

    def kernel_times(self, variant: Variant) -> dict[str, int]:
        return {}

    def step_time(self, variants: Sequence[Variant]) -> dict[str, list[int]]:
        return {v.name: spread(self.step_ns(v.recipe)) for v in variants}

    def gpu_time(self, before: Variant, after: Variant) -> Comparison:
        old, new = (spread(self.gpu_ns(v.recipe)) for v in (before, after))
        return compare(old, new, "gpu_busy")

    def results(self, variant: Variant) -> Results:
        ours = torch.full((1,), 2.0 if self.differs(variant.recipe) else 1.0)
        return Results([torch.ones(1)], [torch.ones(1)], [ours])

    def agreement(self, results: Results, comparable: bool) -> Agreement:
        assert comparable
        return Agreement("eager", float(results.ours[0] - results.eager[0]), 0.01, 1e-3)

    def loss_curves(self, recipe: Recipe, resolution: float) -> LossCurves | str | None:
        return self.curves

    def peak_memory(self, variant: Variant) -> int:
        return self.peak_bytes(variant.recipe)


def spread(middle: int) -> list[int]:
    """Forty measurements within a ten-thousandth of each other."""
    return [middle + middle * (i % 5 - 2) // 40_000 for i in range(40)]


def saving(**gains: int) -> Callable[[Recipe], int]:
    """1 ms less what the recipe's actions save (µs)."""
    return lambda recipe: 1_000 * US - sum(gains.get(kind, 0) * US for kind in recipe.actions)


def quiet(*_: object, **__: object) -> None:
    """Progress nobody reads."""


def search(bench: Scripted, *kinds: ActionKind, budget: Budget | None = None) -> Search:
    trials = [Trial("asked", action=kind) for kind in kinds]
    return Search(
        cast(Bench, bench), {}, trials, Path(), quiet, budget or unlimited(), seen=bench.rewritten
    )


def used_up() -> Budget:
    """A budget of a second that began ten ago."""
    return Budget(1.0, time.monotonic() - 10.0)


def reasons(found: Search, result: SetVerdict) -> dict[str, tuple[str, str]]:
    return {v.kind: (v.verdict, v.reason) for v in action_verdicts(found.trials, result)}


def test_what_pays_is_kept_each_beside_those_before_it() -> None:
    times = saving(channels_last=100, fused_optimizer=-50, cuda_graph=200)
    bench = Scripted(times, times)
    found = search(bench, "cuda_graph", "channels_last", "fused_optimizer")
    best, result = found.run()
    assert result.verdict == "kept"
    assert result.actions == ("channels_last", "cuda_graph")
    assert best is not None
    assert best.recipe.actions == result.actions
    # In the order of worth, whatever the order of the trials.
    assert bench.built[:3] == [
        ("channels_last",), ("channels_last", "fused_optimizer"), ("channels_last", "cuda_graph"),
    ]  # fmt: skip
    verdicts = reasons(found, result)
    assert verdicts["fused_optimizer"][0] == "reverted"
    assert "takes 50 µs more" in verdicts["fused_optimizer"][1]
    assert result.against_compiled is not None
    assert result.against_compiled.gain_mid_ns == pytest.approx(300 * US, rel=0.01)


def test_gpu_time_alone_pays_where_the_host_hides_it() -> None:
    bench = Scripted(saving(), saving(channels_last=100))
    _, result = search(bench, "channels_last").run()
    assert result.actions == ("channels_last",)


def test_a_gain_with_other_results_is_none() -> None:
    times = saving(fold_batch_norm=100)
    bench = Scripted(times, times, differs=lambda r: "fold_batch_norm" in r.actions)
    found = search(bench, "fold_batch_norm")
    _, result = found.run()
    assert result.verdict == "reverted"
    assert "results differ from eager's" in reasons(found, result)["fold_batch_norm"][1]


def test_a_set_whose_losses_drift_away_is_taken_out() -> None:
    times = saving(fused_optimizer=100)
    reference = (4.0, 3.0, 2.0)
    drifted = LossCurves((4.0, 3.001, 2.001), (4.0, 3.2, 2.9), reference)
    _, result = search(Scripted(times, times, curves=drifted), "fused_optimizer").run()
    assert result.verdict == "reverted"
    assert "losses of 3 steps diverge from a float32 run by 2.2e-01" in result.reason
    followed = LossCurves((4.0, 3.001, 2.001), (4.0, 3.002, 2.001), reference)
    _, result = search(Scripted(times, times, curves=followed), "fused_optimizer").run()
    assert result.verdict == "kept"
    assert result.loss_divergence == pytest.approx(0.0005)
    _, result = search(Scripted(times, times, curves="it draws"), "fused_optimizer").run()
    assert (result.verdict, result.loss_note) == ("kept", "it draws")


def test_a_graph_of_the_whole_step_takes_the_place_of_graphs_of_its_parts() -> None:
    times = saving(cuda_graph=100, step_graph=300)
    bench = Scripted(times, times)
    found = search(bench, "cuda_graph", "step_graph")
    _, result = found.run()
    assert result.actions == ("step_graph",)
    taken = ("reverted", "the whole step as one CUDA graph took its place")
    assert reasons(found, result)["cuda_graph"] == taken


def test_what_does_not_apply_or_fails_says_so_and_the_rest_goes_on() -> None:
    times = saving(fused_optimizer=100)
    bench = Scripted(
        times,
        times,
        refuses={
            "channels_last": IllegalFusionError("the module has no 2-D convolution"),
            "step_graph": WorkloadError("the step cannot be one CUDA graph", why="it calls item()"),
        },
    )
    found = search(bench, "channels_last", "fused_optimizer", "step_graph")
    _, result = found.run()
    assert result.actions == ("fused_optimizer",)
    verdicts = reasons(found, result)
    assert verdicts["channels_last"] == ("refused", "the module has no 2-D convolution")
    assert verdicts["step_graph"][0] == "refused"
    assert "it calls item()" in verdicts["step_graph"][1]


def test_a_set_that_loses_together_is_halved() -> None:
    def together(recipe: Recipe) -> int:
        return saving(channels_last=100, fused_optimizer=60)(recipe)

    bench = Scripted(
        together,
        together,
        differs=lambda r: {"channels_last", "fused_optimizer"} <= set(r.actions) and late(),
    )
    calls = iter(range(100))

    def late() -> bool:
        """Alone beside the other each agreed; the set as a whole, compiled again, does not."""
        return next(calls) > 0

    found = search(bench, "channels_last", "fused_optimizer")
    _, result = found.run()
    assert result.verdict == "kept"
    assert result.actions == ("channels_last",)
    verdict, reason = reasons(found, result)["fused_optimizer"]
    assert verdict == "reverted"
    assert "the set kept is without it" in reason


def test_after_the_deadline_nothing_new_is_tried() -> None:
    times = saving(channels_last=100)
    found = search(Scripted(times, times), "channels_last", budget=used_up())
    _, result = found.run()
    assert result.reason == "nothing could be compared; 1 trial not tried: time was used up"
    assert reasons(found, result)["channels_last"] == ("not_measured", NO_TIME)


def test_what_lost_is_told_from_what_was_not_compared() -> None:
    times = saving(channels_last=-50)
    _, result = search(Scripted(times, times), "channels_last").run()
    assert result.reason == "nothing beat what it was compared with"


def test_what_was_kept_before_is_not_lost_to_the_time() -> None:
    times = saving(channels_last=100, fused_optimizer=100)
    trials = [Trial(KEPT_BEFORE, action="channels_last"), Trial("new", action="fused_optimizer")]
    bench = cast(Bench, Scripted(times, times))
    found = Search(bench, {}, trials, Path(), quiet, used_up())
    _, result = found.run()
    assert result.verdict == "kept"
    assert result.actions == ("channels_last",)


def test_a_step_that_fails_while_it_is_measured_is_lost_alone() -> None:
    def flaky(recipe: Recipe) -> int:
        if "channels_last" in recipe.actions:
            raise WorkloadError("the step failed", why="out of memory at its tenth run")
        return saving(fused_optimizer=100)(recipe)

    found = search(Scripted(flaky, flaky), "channels_last", "fused_optimizer")
    _, result = found.run()
    assert result.actions == ("fused_optimizer",)
    assert "out of memory" in reasons(found, result)["channels_last"][1]


def test_a_set_that_fails_while_it_is_measured_is_not_kept() -> None:
    def together(recipe: Recipe) -> int:
        if recipe.actions == ("channels_last",) and next(calls) > 1:
            raise WorkloadError("the step failed", why="its last run")
        return saving(channels_last=100)(recipe)

    calls = iter(range(100))
    _, result = search(Scripted(together, together), "channels_last").run()
    assert result.verdict == "reverted"
    assert "its last run" in result.reason


def test_actions_that_do_not_apply_are_on_record_with_their_reason() -> None:
    trials = [Trial("channels_last", action="channels_last"), Trial("f", action="fold_batch_norm")]
    refused = IllegalFusionError("no")
    bench = Scripted(
        saving(), saving(), refuses={"channels_last": refused, "fold_batch_norm": refused}
    )
    found = Search(cast(Bench, bench), {}, trials, Path(), quiet)
    _, result = found.run()
    assert reasons(found, result) == {
        "fold_batch_norm": ("refused", "no"), "channels_last": ("refused", "no"),
    }  # fmt: skip
    records = action_verdicts(found.trials, result)
    assert [record.applies for record in records] == [False, False]
    assert {record.kind: record.finding for record in records}["fold_batch_norm"] == "f"


def test_each_action_is_tried_once_in_its_order() -> None:
    trials = [Trial("a", action="step_graph"), Trial("b", action="attention"),
              Trial("c", action="step_graph")]  # fmt: skip
    assert [(t.finding, t.action) for t in of_actions(trials)] == [
        ("b", "attention"), ("a", "step_graph"),
    ]  # fmt: skip


def test_names_tell_recipes_apart() -> None:
    assert UNCHANGED.name() != UNCHANGED.with_action("autotune").name()
    assert UNCHANGED.with_action("cuda_graph").settings == {"triton.cudagraphs": True}


def test_settings_are_options_of_the_compiler() -> None:
    known = torch._inductor.config.get_config_copy()
    for kind in KINDS:
        assert UNCHANGED.with_action(kind).settings.keys() <= known.keys()


def test_a_plan_whose_sites_an_action_took_says_which() -> None:
    assert rewritten_by(UNCHANGED.with_action("channels_last")) == (
        "no site of it is in the compiled graph"
    )
    assert rewritten_by(UNCHANGED.with_action("attention")) == (
        "no site of it is left in the graph after attention as one library call"
    )


def site(*, or_flex: bool = False) -> Rewritten:
    why = "" if or_flex else "its bias is trained"
    return Rewritten(what="a site", location=Location(), or_flex=or_flex, not_flex=why)


def with_attention(step_ns: Callable[[Recipe], int], *, or_flex: bool) -> Scripted:
    sites = (site(or_flex=or_flex),)
    return Scripted(step_ns, step_ns, rewritten={"attention": sites, "flex_attention": sites})


@pytest.mark.parametrize(("gain", "kept"), [(300, "flex_attention"), (150, "attention")])
def test_the_faster_of_two_ways_to_attention_is_kept(gain: int, kept: str) -> None:
    bench = with_attention(saving(attention=200, flex_attention=gain), or_flex=True)
    found = search(bench, "attention", "flex_attention")
    _, result = found.run()
    assert result.actions == (kept,)
    assert bench.built[:2] == [("attention",), ("flex_attention",)]
    if kept == "flex_attention":
        replaced = "attention by FlexAttention where there is a mask or a bias took its place"
        assert reasons(found, result)["attention"] == ("reverted", replaced)
    else:
        assert "takes 50 µs more" in reasons(found, result)["flex_attention"][1]


def test_an_action_without_a_site_in_the_graphs_is_not_built() -> None:
    times = saving(attention=200)
    bench = Scripted(times, times, rewritten={"attention": ()})
    found = search(bench, "attention")
    _, result = found.run()
    assert bench.built == []
    assert reasons(found, result)["attention"] == ("refused", "no site of it is in the graphs")


def test_tuning_comes_last_and_graphs_before_kernels() -> None:
    order: list[str] = []
    bench = Scripted(saving(), saving())
    plan = Trial("kernels", ("a" * 16,))
    found = search(bench, "autotune", "cuda_graph", "attention")
    found.trials = [*found.trials, plan]
    found.found = {"a" * 16: Candidate(cast(FusionPlan, None), refused="slow")}
    found.make_ready = lambda _: order.append(str(bench.built))
    found.run()
    assert order == ["[('attention',), ('cuda_graph',)]"]
    assert bench.built == [("attention",), ("cuda_graph",), ("autotune",)]


def test_plans_are_made_ready_finding_by_finding_while_there_is_time() -> None:
    """Making all ready first would leave no time to try any of them."""
    names = ["a" * 16, "b" * 16, "c" * 16]
    clock = [0.0]
    made: list[Sequence[str]] = []

    def make_ready(plan_ids: Sequence[str]) -> None:
        made.append(plan_ids)
        clock[0] += 40.0

    found = search(Scripted(saving(), saving()), budget=Budget(60.0, 0.0, clock=lambda: clock[0]))
    found.trials = [Trial(f"of {name[0]}", (name,)) for name in names]
    found.found = {n: Candidate(cast(FusionPlan, None), refused="slow") for n in names}
    found.make_ready = make_ready
    found.run()
    assert made == [[names[0]], [names[1]]]
    judged = [trial.judgement for trial in found.trials]
    assert [one is not None and one.tried for one in judged] == [True, True, False]


def test_where_flex_takes_no_attention_it_is_not_built_and_says_why() -> None:
    bench = with_attention(saving(attention=200, flex_attention=300), or_flex=False)
    found = search(bench, "attention", "flex_attention")
    _, result = found.run()
    assert result.actions == ("attention",)
    assert ("flex_attention",) not in bench.built
    assert reasons(found, result)["flex_attention"] == (
        "refused",
        f"{NO_FLEX}: its bias is trained",
    )


@pytest.mark.parametrize(
    ("cost", "bytes_after", "verdict", "reason"),
    [
        (0, 600, "kept", "peak memory falls by 400 B, and the step gets no slower"),
        (50, 600, "reverted", "the step takes 50 µs more"),
        (0, 990, "reverted", "no gain beyond noise"),
        (-50, 600, "kept", "the step takes 50 µs less"),
    ],
)
def test_what_is_done_for_memory_is_kept_where_it_costs_no_time(
    cost: int, bytes_after: int, verdict: str, reason: str
) -> None:
    times = saving(chunked_loss=-cost)
    bench = Scripted(
        times,
        times,
        rewritten={"chunked_loss": (site(),)},
        peak_bytes=lambda recipe: bytes_after if recipe.actions else 1_000,
    )
    found = search(bench, "chunked_loss")
    _, result = found.run()
    (action,) = action_verdicts(found.trials, result)
    assert (action.verdict, result.verdict) == (verdict, verdict)
    assert reason in action.reason
    assert (action.peak_memory_before_bytes, action.peak_memory_after_bytes) == (1_000, bytes_after)
    if bytes_after == 600:
        assert "peak memory falls by 400 B" in action.reason


def test_a_loss_beside_its_model_is_compiled_with_it_in_that_action_alone() -> None:
    recipes: list[Recipe] = []
    here = Rewritten(what="a loss", location=Location(), with_loss=True)
    times = saving(chunked_loss=50, fused_optimizer=20)
    bench = Scripted(times, times, rewritten={"chunked_loss": (site(),)})
    build = bench.build

    def noting(recipe: Recipe) -> Variant:
        recipes.append(recipe)
        return build(recipe)

    bench.build = noting  # type: ignore[method-assign]
    found = search(bench, "chunked_loss", "fused_optimizer")
    found.seen = {"chunked_loss": (here,)}
    _, result = found.run()
    action = next(a for a in action_verdicts(found.trials, result) if a.kind == "chunked_loss")
    assert action.with_loss
    assert "model and loss are compiled as one function" in action.details[0]
    assert all(recipe.with_loss == ("chunked_loss" in recipe.actions) for recipe in recipes)
    assert result.actions == ("chunked_loss", "fused_optimizer")
