"""Which actions and kernels to keep: each tried beside the best so far, then all of them judged.

The order is that of worth: what changes the graphs (library calls, layouts), generated kernels on
what is left, then how the result is run (tuned matrix kernels, CUDA graphs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.apply.graph.records import Rewritten
from advisor.apply.judge import Judgement, judge_action, judge_region, judge_set, outputs_agree
from advisor.apply.recipe import ON_GRAPH, UNCHANGED, Recipe
from advisor.errors import AdvisorError, IllegalFusionError
from advisor.model.actions import ActionKind, facts_of
from advisor.model.applied import SetVerdict
from advisor.model.run import Emit
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.measure import Agreement, Bench, Variant
from advisor.pipeline.training import LossCurves
from advisor.pipeline.trials import KEPT_BEFORE, Trial, by_finding, of_actions
from advisor.report.text import counted
from advisor.verify.statistics import compare

# Actions that say how the finished graphs are run; they come after the kernels.
ON_RUNNING: tuple[ActionKind, ...] = ("autotune", "cuda_graph", "step_graph")
NO_TIME = "not tried: the time for this application was used up"
NOT_TRIED = Judgement(False, NO_TIME, tried=False)


@dataclass
class Search:
    """One search: the candidates by plan id, what to try, and the best found so far.

    `deadline` is a reading of `time.monotonic` (s) after which nothing new is tried.
    """

    bench: Bench
    found: Mapping[str, Candidate]
    trials: Sequence[Trial]
    folder: Path
    emit: Emit
    deadline: float | None = None
    best: Variant = field(init=False)
    winners: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = self.bench.compiled

    def run(self) -> tuple[Variant | None, SetVerdict]:
        """Try everything, then judge what won together; (the variant kept or judged, verdict)."""
        actions = of_actions(self.trials)
        for trial in actions:
            if trial.action not in ON_RUNNING:
                self._if_time(trial, self._try_action)
        self._try_kernels()
        for trial in actions:
            if trial.action in ON_RUNNING:
                self._if_time(trial, self._try_action)
        self.emit("measure", "running", message="step time: eager, compiled, with what won")
        if not self.winners:
            return None, self._nothing_kept()
        return self._judge_sets(self.winners)

    def _if_time(self, trial: Trial, attempt: Callable[[Trial], None]) -> None:
        if self._late(trial):
            trial.judgement = NOT_TRIED
            return
        attempt(trial)

    def _late(self, trial: Trial) -> bool:
        """Whether time is used up; what was kept before is nothing new: it is not lost to time."""
        late = self.deadline is not None and time.monotonic() > self.deadline
        return late and trial.finding != KEPT_BEFORE

    # --- actions ----------------------------------------------------------------------------------

    def _try_action(self, trial: Trial) -> None:
        """Try one more action on the best step so far; one that fails is lost, no other."""
        kind = trial.action
        assert kind is not None
        title = facts_of(kind).title
        self.emit("rewrite", "running", plan=kind, message=title)
        try:
            self._with_one_more(trial, kind)
        except IllegalFusionError as error:
            trial.judgement = Judgement(False, error.what, applies=False)
        except AdvisorError as error:  # when it was built, or at any later step
            trial.judgement = Judgement(False, error.line())
            self.emit("rewrite", "running", plan=kind, message=error.line())

    def _with_one_more(self, trial: Trial, kind: ActionKind) -> None:
        """Build it and compare it; keep it if it pays and agrees."""
        variant = self.bench.build(_with_action(self.best.recipe, kind))
        if kind in ON_GRAPH:
            trial.details = tuple(_became(item) for item in variant.log.rewritten)
            trial.swapped = {kind: sum(item.refused is None for item in variant.log.rewritten)}
        trial.pool_bytes = variant.pool_bytes
        if trial.swapped and not trial.swapped[kind]:
            trial.judgement = Judgement(False, _nothing_rewritten(trial), applies=False)
            return
        self._compare_action(trial, variant)
        judgement = trial.judgement
        assert judgement is not None
        gain = trial.step.gain_mid_ns if trial.step is not None else None
        self.emit("measure", "running", plan=kind, value=gain, message=judgement.reason)
        if trial.pays:
            self.best = variant
            self.winners = [w for w in self.winners if not _excludes(kind, w)] + [trial]

    def _compare_action(self, trial: Trial, variant: Variant) -> None:
        times = self.bench.step_time([self.best, variant])
        trial.step = compare(times[self.best.name], times[variant.name], "step")
        trial.comparison = self.bench.gpu_time(self.best, variant)
        trial.judgement = judge_action(trial.comparison, trial.step)
        if trial.pays:
            differs = _difference(self.bench.agreement(variant))
            if differs:
                trial.judgement = Judgement(False, differs)

    # --- kernels ----------------------------------------------------------------------------------

    def _try_kernels(self) -> None:
        """Of every finding the trial that saves most GPU time, beside the winners before it."""
        groups = by_finding(self.trials)
        if not groups:
            return
        structure = self.best.recipe
        try:
            best = self.bench.unswapped(structure)
        except AdvisorError as error:  # the kernels are lost, not what was kept before them
            for trial in (trial for group in groups for trial in group):
                trial.judgement = Judgement(False, error.line())
            return
        for group in groups:
            chosen: tuple[Trial, Variant] | None = None
            for trial in group:
                variant = self._try_plans(best, trial)
                ahead = chosen is None or trial.gain_ns > chosen[0].gain_ns
                if variant is not None and trial.pays and ahead:
                    chosen = trial, variant
            if chosen is not None:
                self.winners.append(chosen[0])
                best = chosen[1]
        if best.recipe.kernels:
            self.best = self.bench.build(best.recipe)

    def _try_plans(self, current: Variant, trial: Trial) -> Variant | None:
        """Swap a trial's plans in beside those already kept, and compare GPU time."""
        usable = [name for name in trial.plan_ids if self.found[name].refused is None]
        if not usable:
            refused = self.found[trial.plan_ids[0]].refused
            trial.judgement = Judgement(False, refused or "refused")
            return None
        if self._late(trial):
            trial.judgement = NOT_TRIED
            return None
        try:
            return self._swapped(current, trial, usable)
        except AdvisorError as error:  # this trial is lost, no other
            trial.judgement = Judgement(False, error.line())
            self.emit("rewrite", "running", plan=usable[0], message=error.line())
            return None

    def _swapped(self, current: Variant, trial: Trial, usable: list[str]) -> Variant | None:
        """The step with these plans beside those already kept, compared; None without a site."""
        variant = self.bench.trial(self._with_plans(current.recipe, usable))
        trial.swapped = {name: variant.log.swapped(name) for name in usable}
        count = sum(trial.swapped.values())
        message = f"{counted(count, 'site')} swapped"
        self.emit("rewrite", "running", plan=usable[0], value=count, message=message)
        if not count:
            reasons = [reason for name in usable for reason in variant.log.refusals(name)]
            absent = no_site_in(current.recipe)
            trial.judgement = Judgement(False, reasons[0] if reasons else absent)
            return None
        trial.comparison = self.bench.gpu_time(current, variant)
        judgement = judge_region(trial.comparison)
        trial.judgement = judgement
        gain = trial.comparison.gain_mid_ns
        self.emit("measure", "running", plan=usable[0], value=gain, message=judgement.reason)
        return variant

    def _with_plans(self, recipe: Recipe, names: Sequence[str]) -> Recipe:
        """The recipe with the kernels of more plans, which claim their sites last."""
        kept = [kernel.plan.id for kernel in recipe.kernels]
        new = [self.found[name].ready(self.folder) for name in names if name not in kept]
        return recipe.with_kernels((*recipe.kernels, *new))

    # --- the set ----------------------------------------------------------------------------------

    def _judge_sets(self, winners: Sequence[Trial]) -> tuple[Variant | None, SetVerdict]:
        """The largest set that pays, found by halving one that does not.

        What wins alone may lose with others: by the step's time, or by rounding that adds up.
        """
        judged = self._judge_set(winners)
        if judged[1].verdict == "kept" or len(winners) == 1:
            return judged
        middle = len(winners) // 2
        halves = (winners[:middle], winners[middle:])
        found = [self._judge_sets(half) for half in halves]
        paying = [pair for pair in found if pair[1].verdict == "kept"]
        return max(paying, key=lambda pair: _gain(pair[1]), default=judged)

    def _judge_set(self, winners: Sequence[Trial]) -> tuple[Variant | None, SetVerdict]:
        """The step with all of a set as its user will compile it."""
        try:
            best = self.bench.build(self._recipe_of(winners))
            return best, self._measured(best, winners)
        except AdvisorError as error:  # when it was built, or at any later step
            lost = SetVerdict(verdict="reverted", reason=error.line(), plans=())
            return None, lost

    def _measured(self, best: Variant, winners: Sequence[Trial]) -> SetVerdict:
        """The verdict on a set by its step time and its results."""
        bench = self.bench
        times = bench.step_time([bench.eager, bench.compiled, best])
        compiled = compare(times["compiled"], times[best.name], "step")
        gpu = bench.gpu_time(bench.compiled, best)
        runs = any(trial.action in ON_RUNNING for trial in winners)
        judgement = judge_action(gpu, compiled) if runs else judge_set(gpu, compiled)
        found = bench.agreement(best)
        differs = _difference(found)
        curves = bench.loss_curves(best.recipe) if judgement.keep and not differs else None
        losses = curves if isinstance(curves, LossCurves) else None
        if differs:
            judgement = Judgement(False, differs)
        elif losses is not None and not losses.agree(found.epsilon if found is not None else 0.0):
            judgement = Judgement(False, _diverged(losses))
        gain = compiled.gain_mid_ns
        self.emit("decide", "running", value=gain, message=judgement.reason)
        kept = judgement.keep
        return SetVerdict(
            verdict="kept" if kept else "reverted",
            reason=judgement.reason,
            plans=tuple(kernel.plan.id for kernel in best.recipe.kernels) if kept else (),
            actions=best.recipe.actions if kept else (),
            against_eager=compare(times["eager"], times[best.name], "step"),
            against_compiled=compiled,
            gpu_time=gpu,
            outputs_agree=None if found is None or found.note else not differs,
            output_error=found and found.error,
            baseline_error=found and found.baseline,
            loss_divergence=losses.divergence if losses is not None else None,
            eager_divergence=losses.eager_divergence if losses is not None else None,
            loss_note=curves if isinstance(curves, str) else "",
            peak_memory_before_bytes=bench.peak_memory(bench.compiled),
            peak_memory_after_bytes=bench.peak_memory(best),
            compile_before_ns=bench.compiled.compile_ns,
            compile_after_ns=best.compile_ns,
        )

    def _recipe_of(self, winners: Sequence[Trial]) -> Recipe:
        """The actions and kernels of some winners, in the order in which they won."""
        recipe = UNCHANGED
        for trial in winners:
            if trial.action is not None:
                recipe = _with_action(recipe, trial.action)
            else:
                usable = [n for n in trial.plan_ids if self.found[n].refused is None]
                recipe = self._with_plans(recipe, usable)
        return recipe

    def _nothing_kept(self) -> SetVerdict:
        times = self.bench.step_time([self.bench.eager, self.bench.compiled])
        return SetVerdict(
            verdict="reverted",
            reason=self._why_nothing(),
            plans=(),
            against_eager=compare(times["eager"], times["compiled"], "step"),
        )

    def _why_nothing(self) -> str:
        """What was compared and lost, and what time did not allow to compare."""
        compared = any(trial.comparison is not None for trial in self.trials)
        told = "nothing beat what it was compared with" if compared else "nothing could be compared"
        left = sum(trial.judgement is NOT_TRIED for trial in self.trials)
        return f"{told}; {counted(left, 'trial')} not tried: time was used up" if left else told


def _difference(found: Agreement | None) -> str:
    """Why a variant's results are not good enough; "" if they are."""
    if found is None:
        return "the step returns no tensor: nothing shows that results agree"
    if found.note:
        return found.note
    if outputs_agree(found.error, found.baseline, found.epsilon):
        return ""
    return (
        f"results differ from {found.reference}'s by {found.error:.2e}, "
        f"without it by {found.baseline:.2e}"
    )


def _became(item: Rewritten) -> str:
    """What became of one site, in a line."""
    if item.refused is not None:
        return f"{item.what}: stays, {item.refused}"
    return "; ".join((f"{item.what}: {item.route}", *item.changes))


def no_site_in(recipe: Recipe) -> str:
    """Why a plan has no site in a graph, which actions kept before it may have rewritten."""
    done = [facts_of(kind).title for kind in recipe.actions if kind in ON_GRAPH]
    if done:
        return f"no site of it is left in the graph after {', '.join(done)}"
    return "no site of it is in the compiled graph"


def _nothing_rewritten(trial: Trial) -> str:
    reasons = list(dict.fromkeys(trial.details))
    return reasons[0] if reasons else "no site of it is in the graphs"


def _diverged(curves: LossCurves) -> str:
    return (
        f"losses of {len(curves.reference)} steps diverge from a float32 run by "
        f"{curves.divergence:.1e}, eager's own by {curves.eager_divergence:.1e}"
    )


def _with_action(recipe: Recipe, kind: ActionKind) -> Recipe:
    """A graph of the whole step takes the place of graphs of its parts."""
    if kind == "step_graph":
        others = tuple(item for item in recipe.actions if item != "cuda_graph")
        recipe = replace(recipe, actions=others)
    return recipe.with_action(kind)


def _excludes(kind: ActionKind, winner: Trial) -> bool:
    return kind == "step_graph" and winner.action == "cuda_graph"


def _gain(result: SetVerdict) -> int:
    step = result.against_compiled
    return step.gain_mid_ns if step is not None else 0
