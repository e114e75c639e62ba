"""Which actions and kernels to keep: each tried beside the best so far, then all of them judged.

The order is that of worth for the time it takes: what changes the graphs (library calls, layouts),
CUDA graphs, generated kernels on what is left, and last what takes longest (tuned matrix kernels).
Kernels are compared without CUDA graphs: what they save of the GPU's time is the same. Of a job of
several ranks all do the same in step: whatever decides what runs next is decided together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from advisor.apply.graph.records import Rewritten
from advisor.apply.judge import Judgement, judge_action, judge_memory, judge_region
from advisor.apply.recipe import ON_GRAPH, ON_RUNNING, UNCHANGED, Recipe
from advisor.errors import AbortedError, AdvisorError, IllegalFusionError
from advisor.hardware.gpu import Gpu
from advisor.model.actions import FOR_MEMORY, ON_COMPILER, REPLACES, ActionKind, facts_of
from advisor.model.applied import NO_TIME, SetVerdict
from advisor.model.run import Emit
from advisor.pipeline.budget import Budget
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.curing import cured
from advisor.pipeline.graph_programs import NO_SITE, why_no_site
from advisor.pipeline.graph_sites import (
    became,
    nothing_in,
    nothing_rewritten,
    places_in,
    rewritten_by,
)
from advisor.pipeline.journal import Journal, Unwritten
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Alone, Peers, any_says, hear, together
from advisor.pipeline.sets import Sets, disagreement
from advisor.pipeline.trials import (
    KEPT_BEFORE,
    Trial,
    beside,
    by_finding,
    of_actions,
    take_up,
)
from advisor.pipeline.votes import same_sites, vote
from advisor.pipeline.worth import worth_by_finding
from advisor.report.text import counted
from advisor.verify.statistics import compare

# What takes longest comes after the kernels.
LONGEST: tuple[ActionKind, ...] = ("unfuse", "retune", "autotune")
OF_RANKS = "the compiler's own kernels are changed in jobs of one rank only"
NOT_TRIED = Judgement(False, NO_TIME, tried=False)
T = TypeVar("T")
Seen = Mapping[ActionKind, Sequence[Rewritten]]


def nothing_to_make(plan_ids: Sequence[str]) -> None:
    """The candidates are ready."""


def unlimited() -> Budget:
    """A search that takes as long as it takes."""
    return Budget(None, time.monotonic())


@dataclass
class Search:
    """One search: the candidates by plan id, what to try, and the best recipe found so far.

    Trials that have a judgement already are not tried again; those that pay count as winners.
    `make_ready` is called with the plans of a finding before its first trial. `seen` is what the
    actions on graphs would do to those of the step, where somebody looked: what has no site is not
    built. `gpu` is what kernels are compiled for to see what they need.
    """

    bench: Bench
    found: Mapping[str, Candidate]
    trials: Sequence[Trial]
    folder: Path
    emit: Emit
    budget: Budget = field(default_factory=unlimited)
    peers: Peers = field(default_factory=Alone)
    journal: Journal = field(default_factory=Unwritten)
    make_ready: Callable[[Sequence[str]], None] = nothing_to_make
    seen: Seen = field(default_factory=dict)
    gpu: Gpu | None = None
    recipe: Recipe = UNCHANGED
    winners: list[Trial] = field(default_factory=list)

    def run(self) -> tuple[Variant | None, SetVerdict]:
        """Try everything, then judge what won together; (the variant kept or judged, verdict)."""
        actions = of_actions(self.trials)
        for trial in actions:
            if trial.action not in LONGEST:
                self._action(trial)
        self._kernels()
        for trial in actions:
            if trial.action in LONGEST:
                self._with_more(trial)
        self.emit("measure", "running", message="step time: eager, compiled, with what won")
        sets = Sets(self.bench, self._recipe_of, self.emit, self.peers, self.journal, self.budget)
        if not self.winners:
            return None, sets.nothing_kept(self._why_nothing())
        return sets.judge(self.winners)

    # --- any trial --------------------------------------------------------------------------------

    def _attempt(self, trial: Trial, work: Callable[[Trial], Judgement], expected_s: float) -> None:
        """Judge a trial, unless there is no time; one that fails is lost, no other."""
        if any_says(self.peers, f"late for {trial.label}", self._late(trial, expected_s)):
            trial.judgement = NOT_TRIED
            return
        limit_s = self.budget.limit_s(expected_s)
        try:
            self._all(f"begin {trial.label}", lambda: self.journal.begin(trial.label, limit_s))
            trial.judgement = work(trial)
        except AbortedError as error:
            self.journal.aborted(error)
            raise
        except IllegalFusionError as error:
            trial.judgement = Judgement(False, error.what, applies=False)
        except AdvisorError as error:  # when it was built, or at any later step
            self.journal.failed(error)
            trial.judgement = Judgement(False, error.line())
            self.emit("rewrite", "running", plan=_name(trial), message=error.line())
        finally:
            self.journal.end()
        self.journal.judged(trial)

    def _late(self, trial: Trial, expected_s: float) -> bool:
        """Whether time is used up; what was kept before is nothing new: it is not lost to time."""
        return trial.finding != KEPT_BEFORE and self.budget.late(expected_s)

    def _all(self, topic: str, work: Callable[[], T]) -> T:
        return together(self.peers, topic, work)

    # --- actions ----------------------------------------------------------------------------------

    def _action(self, trial: Trial) -> None:
        """Try one more action on the best step so far, and take it if it pays."""
        kind = trial.action
        assert kind is not None
        if trial.judgement is None:
            self.emit("rewrite", "running", plan=kind, message=facts_of(kind).title)
            self._attempt(trial, self._with_one_more, self.budget.action_s(kind))
        if trial.pays:
            self.recipe = with_action(self.recipe, trial)
            self.winners = [w for w in self.winners if not _excludes(kind, w)] + [trial]

    def _with_more(self, first: Trial) -> None:
        """Try an action and what else is asked for of its kind, which begins with what it chose."""
        before, winners = self.recipe, list(self.winners)
        self._action(first)
        for more in beside(self.trials, first):
            so_far = self.recipe, self.winners
            self.recipe, self.winners = before, list(winners)
            if first.pays and more.judgement is None:
                more.splits, more.retuned = first.splits, first.retuned
            self._action(more)
            take_up(first, more)
            if more.pays:
                self.winners[-1] = first
            else:
                self.recipe, self.winners = so_far

    def _with_one_more(self, trial: Trial) -> Judgement:
        """Build the step with it and compare it with the best step so far."""
        kind = trial.action
        assert kind is not None
        if kind in self.seen:
            self._look(trial, kind)
        if kind in ON_COMPILER and not self._chosen(trial, kind):
            return Judgement(False, trial.details[0] if trial.details else "nothing is faster")
        best = self._all("build the best so far", self._best)
        recipe = with_action(self.recipe, trial)
        variant = self._all(f"build {recipe.name()}", lambda: self.bench.build(recipe))
        trial.pool_bytes = variant.pool_bytes
        if kind in ON_GRAPH:
            trial.details = tuple(became(x, trial.with_loss) for x in variant.log.rewritten)
            trial.swapped = {kind: places_in(variant.log.rewritten)}
        same_sites(self.peers, trial.swapped)
        if trial.swapped and not trial.swapped[kind]:
            return Judgement(False, nothing_rewritten(kind, trial.details), applies=False)
        judgement = self._all(f"measure {kind}", lambda: self._compare_action(trial, best, variant))
        judgement, trial.votes = vote(
            self.peers, f"judge {kind}", judgement, trial.comparison, trial.step
        )
        gain = trial.step.gain_mid_ns if trial.step is not None else None
        self.emit("measure", "running", plan=kind, value=gain, message=judgement.reason)
        if judgement.keep:
            differs = disagreement(self.peers, self.bench, variant, best)[0]
            if differs:
                return Judgement(False, differs)
        return judgement

    def _look(self, trial: Trial, kind: ActionKind) -> None:
        """Raises `IllegalFusionError` if an action on graphs has no site in those of the step."""
        found = self.seen[kind]
        trial.details = tuple(became(item) for item in found)
        trial.with_loss = any(item.with_loss for item in found)
        same_sites(self.peers, {kind: places_in(found)})
        if why := nothing_in(kind, found):
            raise IllegalFusionError(why)

    def _chosen(self, trial: Trial, kind: ActionKind) -> bool:
        """Whether something is to be changed in the compiler's own kernels, which `trial` says.

        What was kept before is known; any other trial looks for more than it begins with.
        """
        begun = bool(trial.splits or trial.retuned)
        if begun and trial.finding == KEPT_BEFORE:
            return True
        if self.peers.count > 1:
            raise IllegalFusionError(OF_RANKS)
        found = cured(
            self.bench,
            with_action(self._as_tried, trial) if begun else self._as_tried,
            kind,
            only=trial.kernel,
            gpu=self.gpu,
            emit=self.emit,
            late=lambda: self.budget.late(self.budget.kernels_s()),
        )
        trial.splits, trial.retuned = trial.splits + found.splits, trial.retuned + found.retuned
        trial.details = tuple(found.details)
        return bool(found.splits or found.retuned)

    def _compare_action(self, trial: Trial, best: Variant, variant: Variant) -> Judgement:
        times = self.bench.step_time([best, variant])
        trial.step = compare(times[best.name], times[variant.name], "step")
        trial.comparison = self.bench.gpu_time(best, variant)
        before, after = self.bench.peak_memory(best), self.bench.peak_memory(variant)
        judgement = judge_action(trial.comparison, trial.step)
        if before is None or after is None:
            return judgement
        trial.peak_bytes = before, after
        if trial.action not in FOR_MEMORY:
            return judgement
        return judge_memory(judgement, trial.step, before, after)

    def _best(self) -> Variant:
        """The best step so far, as its user compiles it."""
        if self.recipe == UNCHANGED:
            return self.bench.compiled
        return self.bench.build(self.recipe)

    # --- kernels ----------------------------------------------------------------------------------

    def _kernels(self) -> None:
        """Of every finding the trial that saves most GPU time, beside the winners before it."""
        base = _Base(self.bench)
        for group in self._by_worth(by_finding(self.trials), base):
            started = time.monotonic()
            made: dict[str, Variant] = {}
            if self._is_ready(group):
                for trial in group:
                    if trial.judgement is None:
                        self._plans(trial, base, made)
                self.budget.longest_s = max(self.budget.longest_s, time.monotonic() - started)
            paying = [trial for trial in group if trial.pays]
            if paying:
                chosen = max(paying, key=lambda trial: trial.gain_ns)
                self.winners.append(chosen)
                self.recipe = self._with_plans(self.recipe, self._usable(chosen))
                base.variant = made.get(chosen.label)

    def _by_worth(self, groups: list[list[Trial]], base: _Base) -> list[list[Trial]]:
        """Findings by the most that they may gain in the step as it is compiled now.

        A run ranks them by what they save beside what ran then, op by op perhaps; within a budget
        those that can gain nothing are better left. What was kept before comes first; what nobody
        can tell of comes before what can only lose.
        """
        waiting = [group for group in groups if any(trial.judgement is None for trial in group)]
        new = [group for group in waiting if group[0].finding != KEPT_BEFORE]
        late = self.budget.late(self.budget.kernels_s())
        if len(new) < 2 or any_says(self.peers, "late for kernels", late):
            return groups
        worth = partial(worth_by_finding, new, self.found, self.bench, self._as_tried, self.emit)
        try:
            gains = self._all("worth of kernels", lambda: worth(base.of(self._as_tried)))
        except AbortedError:
            raise
        except AdvisorError:  # what failed here fails for each trial, with its reason
            return groups
        # On all ranks in the order of the lead.
        gains = hear(self.peers, "order of kernels", gains, list[int | None])[0]
        ranks = {id(group): gain or 0 for group, gain in zip(new, gains, strict=True)}
        return sorted(groups, key=lambda group: -ranks.get(id(group), sys.maxsize))

    def _is_ready(self, group: Sequence[Trial]) -> bool:
        """Make the plans of a finding ready, one finding after the other: each that is has its
        trial while there is time. False where there is nothing to try, or no time for it."""
        waiting = [trial for trial in group if trial.judgement is None]
        if not waiting:
            return False
        expected_s = self.budget.kernels_s()
        late = any(self._late(trial, expected_s) for trial in waiting)
        if any_says(self.peers, f"late for {waiting[0].label}", late):
            for trial in waiting:
                trial.judgement = NOT_TRIED
            return False
        self.make_ready(list(dict.fromkeys(i for trial in waiting for i in trial.plan_ids)))
        return True

    def _plans(self, trial: Trial, base: _Base, made: dict[str, Variant]) -> None:
        """Swap a trial's plans in beside those already kept; `made` holds what was built."""
        items = [self.found[name] for name in trial.plan_ids]
        if all(item.refused is not None for item in items):
            trial.judgement = Judgement(False, items[0].refused or "refused")
            return
        if any(item.postponed for item in items):
            trial.judgement = NOT_TRIED
            return

        def swap(trial: Trial) -> Judgement:
            current = self._all("build without it", lambda: base.of(self._as_tried))
            return self._swapped(current, trial, made)

        self._attempt(trial, swap, self.budget.kernels_s())

    def _swapped(self, current: Variant, trial: Trial, made: dict[str, Variant]) -> Judgement:
        """The step with these plans beside those already kept, compared in GPU time."""
        usable = self._usable(trial)
        recipe = self._with_plans(self._as_tried, usable)
        variant = self._all(f"build {recipe.name()}", lambda: self.bench.trial(recipe))
        trial.swapped = {name: variant.log.swapped(name) for name in usable}
        same_sites(self.peers, trial.swapped)
        count = sum(trial.swapped.values())
        message = f"{counted(count, 'site')} swapped"
        self.emit("rewrite", "running", plan=usable[0], value=count, message=message)
        trial.absent = self._absent(trial.swapped, variant)
        if not count:
            return Judgement(False, next(iter(trial.absent.values())))
        gained = self._all("measure", lambda: self.bench.gpu_time(current, variant))
        trial.comparison = gained
        judgement, trial.votes = vote(self.peers, "judge", judge_region(gained), gained)
        gain = gained.gain_mid_ns
        self.emit("measure", "running", plan=usable[0], value=gain, message=judgement.reason)
        made[trial.label] = variant
        return judgement

    def _absent(self, swapped: Mapping[str, int], variant: Variant) -> dict[str, str]:
        """Why plans that were put in have no site in the step, by their ids."""
        found = {}
        for name in (name for name, sites in swapped.items() if not sites):
            refusals = variant.log.refusals(name)
            found[name] = refusals[0] if refusals else self._no_site(name, variant.recipe)
            self.emit("rewrite", "running", plan=name, value=0, message=found[name])
        return found

    def _no_site(self, name: str, recipe: Recipe) -> str:
        why = why_no_site(self.found[name].plan, self.bench.programs(recipe))
        return rewritten_by(recipe) if why == NO_SITE else why

    @property
    def _as_tried(self) -> Recipe:
        """The recipe so far as trials of kernels run it."""
        return self.recipe.without(ON_RUNNING)

    def _usable(self, trial: Trial) -> list[str]:
        left = [name for name in trial.plan_ids if name not in trial.absent]
        return [name for name in left if self.found[name].refused is None]

    def _with_plans(self, recipe: Recipe, names: Sequence[str]) -> Recipe:
        """The recipe with the kernels of more plans, which claim their sites last."""
        kept = [kernel.plan.id for kernel in recipe.kernels]
        new = [self.found[name].ready(self.folder) for name in names if name not in kept]
        return recipe.with_kernels((*recipe.kernels, *new))

    # --- the end ----------------------------------------------------------------------------------

    def _recipe_of(self, winners: Sequence[Trial]) -> Recipe:
        """The actions and kernels of some winners, in the order in which they won."""
        recipe = UNCHANGED
        for trial in winners:
            if trial.action is not None:
                recipe = with_action(recipe, trial)
            else:
                recipe = self._with_plans(recipe, self._usable(trial))
        return recipe

    def _why_nothing(self) -> str:
        """What was compared and lost, and what time did not allow to compare."""
        compared = any(trial.comparison is not None for trial in self.trials)
        told = "nothing beat what it was compared with" if compared else "nothing could be compared"
        left = sum(trial.judgement is NOT_TRIED for trial in self.trials)
        return f"{told}; {counted(left, 'trial')} not tried: time was used up" if left else told


@dataclass
class _Base:
    """What trials of kernels are compared with, made when it is first needed."""

    bench: Bench
    variant: Variant | None = None
    lost: AdvisorError | None = None

    def of(self, recipe: Recipe) -> Variant:
        """The step after a recipe as trials run it; a step that cannot be made stays so."""
        if self.lost is not None:
            raise self.lost
        if self.variant is None:
            try:
                made = self.bench.trial if recipe.kernels else self.bench.unswapped
                self.variant = made(recipe)
            except AdvisorError as error:
                self.lost = error
                raise
        return self.variant


def with_action(recipe: Recipe, trial: Trial) -> Recipe:
    """The recipe and the action of a trial, with what it chose of the compiler's own kernels."""
    assert trial.action is not None
    done = recipe.with_action(trial.action).with_cures(trial.splits, trial.retuned)
    return done.compiled_with_loss(trial.with_loss)


def _name(trial: Trial) -> str | None:
    return trial.action or next(iter(trial.plan_ids), None)


def _excludes(kind: ActionKind, winner: Trial) -> bool:
    return winner.action is not None and winner.action == REPLACES.get(kind)
