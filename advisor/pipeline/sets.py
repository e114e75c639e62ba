"""What won one by one, judged together as its user will run it; a set that loses is halved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from advisor.apply.judge import Judgement, judge_action, judge_memory, judge_set
from advisor.apply.recipe import ON_RUNNING, Recipe
from advisor.errors import AbortedError, AdvisorError
from advisor.model.actions import FOR_MEMORY
from advisor.model.applied import SetVerdict
from advisor.model.run import Emit
from advisor.pipeline.budget import Budget
from advisor.pipeline.exactness import may_be_rounding
from advisor.pipeline.graph_programs import NO_SITE
from advisor.pipeline.journal import Journal
from advisor.pipeline.likeness import Agreement, Results
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Peers, all_say, together
from advisor.pipeline.training import LossCurves
from advisor.pipeline.trials import Trial
from advisor.pipeline.votes import objection, vote
from advisor.verify.statistics import compare

T = TypeVar("T")


@dataclass(frozen=True)
class Sets:
    """Judges sets of winners; `recipe_of` puts the changes of some of them together."""

    bench: Bench
    recipe_of: Callable[[Sequence[Trial]], Recipe]
    emit: Emit
    peers: Peers
    journal: Journal
    budget: Budget

    def judge(self, winners: Sequence[Trial]) -> tuple[Variant | None, SetVerdict]:
        """The largest set that pays, found by halving one that does not.

        What wins alone may lose with others: by the step's time, or by rounding that adds up.
        """
        judged = self._one(winners)
        if judged[1].verdict == "kept" or len(winners) == 1:
            return judged
        middle = len(winners) // 2
        found = [self.judge(half) for half in (winners[:middle], winners[middle:])]
        paying = [pair for pair in found if pair[1].verdict == "kept"]
        return max(paying, key=lambda pair: _gain(pair[1]), default=judged)

    def nothing_kept(self, why: str) -> SetVerdict:
        """The verdict where nothing won: the compiled step beside eager."""
        eager, compiled = self.bench.eager, self.bench.compiled
        times = together(self.peers, "time", lambda: self.bench.step_time([eager, compiled]))
        return SetVerdict(
            verdict="reverted",
            reason=why,
            plans=(),
            against_eager=compare(times["eager"], times["compiled"], "step"),
        )

    def _one(self, winners: Sequence[Trial]) -> tuple[Variant | None, SetVerdict]:
        """The step with all of a set as its user will compile it."""
        recipe = self.recipe_of(winners)
        label = f"the set {recipe.name()}"
        limit_s = self.budget.limit_s(self.budget.reserved_s)
        try:
            self._all(f"begin {label}", lambda: self.journal.begin(label, limit_s))
            best = self._all(f"build {label}", lambda: self.bench.build(recipe))
            if why := objection(self.peers, f"sites of {label}", _without_site(best)):
                return best, SetVerdict(verdict="reverted", reason=why, plans=())
            verdict = self._all(f"measure {label}", lambda: self._measured(best))
            return best, self._judged(best, verdict)
        except AbortedError as error:
            self.journal.aborted(error)
            raise
        except AdvisorError as error:  # when it was built, or at any later step
            self.journal.failed(error)
            return None, SetVerdict(verdict="reverted", reason=error.line(), plans=())
        finally:
            self.journal.end()

    def _all(self, topic: str, work: Callable[[], T]) -> T:
        return together(self.peers, topic, work)

    def _measured(self, best: Variant) -> SetVerdict:
        """Times and memory of a set, not judged yet."""
        bench = self.bench
        times = bench.step_time([bench.eager, bench.compiled, best])
        return SetVerdict(
            verdict="reverted",
            reason="",
            plans=(),
            against_eager=compare(times["eager"], times[best.name], "step"),
            against_compiled=compare(times["compiled"], times[best.name], "step"),
            gpu_time=bench.gpu_time(bench.compiled, best),
            peak_memory_before_bytes=bench.peak_memory(bench.compiled),
            peak_memory_after_bytes=bench.peak_memory(best),
            compile_before_ns=bench.compiled.compile_ns,
            compile_after_ns=best.compile_ns,
        )

    def _judged(self, best: Variant, measured: SetVerdict) -> SetVerdict:
        """The verdict on a set by its step time, its results and, if it trains, its losses."""
        gpu, step = measured.gpu_time, measured.against_compiled
        assert gpu is not None
        assert step is not None
        own = (judge_action if _says_how_it_runs(best.recipe) else judge_set)(gpu, step)
        before, after = measured.peak_memory_before_bytes, measured.peak_memory_after_bytes
        saves = any(kind in FOR_MEMORY for kind in best.recipe.actions)
        if saves and before is not None and after is not None:
            own = judge_memory(own, step, before, after)
        judgement, votes = vote(self.peers, "judge the set", own, gpu, step)
        differs, found = disagreement(self.peers, self.bench, best)
        if differs:
            judgement = Judgement(False, differs)
        curves: LossCurves | str | None = None
        if judgement.keep:
            curves = self.bench.loss_curves(best.recipe, found.epsilon if found else 0.0)
            away = objection(self.peers, "losses", _drift(curves, found))
            judgement = Judgement(False, away) if away else judgement
        losses = curves if isinstance(curves, LossCurves) else None
        self.emit("decide", "running", value=step.gain_mid_ns, message=judgement.reason)
        kept = judgement.keep
        return replace(
            measured,
            verdict="kept" if kept else "reverted",
            reason=judgement.reason,
            plans=tuple(kernel.plan.id for kernel in best.recipe.kernels) if kept else (),
            actions=best.recipe.actions if kept else (),
            outputs_agree=None if found is None or found.note else not differs,
            output_error=found and found.error,
            baseline_error=found and found.baseline,
            loss_divergence=losses.divergence if losses is not None else None,
            eager_divergence=losses.eager_divergence if losses is not None else None,
            compiled_divergence=losses.compiled_divergence if losses is not None else None,
            loss_reference=losses.exact_type if losses is not None else None,
            dropout_off=losses is not None and losses.dropout_off,
            loss_note=curves if isinstance(curves, str) else "",
            votes=votes,
        )


def _without_site(best: Variant) -> str:
    """Which plan has no site in a set that was compiled anew; "" if all have."""
    for kernel in best.recipe.kernels:
        if not best.log.swapped(kernel.plan.id):
            why = next(iter(best.log.refusals(kernel.plan.id)), NO_SITE)
            return f"{kernel.plan.title}, compiled as its user compiles it: {why}"
    return ""


def _says_how_it_runs(recipe: Recipe) -> bool:
    return any(kind in ON_RUNNING for kind in recipe.actions)


def disagreement(
    peers: Peers, bench: Bench, variant: Variant, proven: Variant | None = None
) -> tuple[str, Agreement | None]:
    """Why a variant's results are not good enough on some rank, "" if they are; own figures.

    Where one is further from eager's than the compiler's is, an exacter run decides. Where there is
    none, what each may be off by rounding does; beyond, the figures prove nothing. Where random
    numbers make them others than the compiler's, they may be those of a variant that is `proven`
    already, or agree with eager's once nothing is dropped in either.
    """
    results = together(peers, "results", lambda: bench.results(variant))
    comparable = all_say(peers, "comparable", results.comparable)
    found = together(peers, "compare", lambda: bench.agreement(results, comparable))
    why = objection(peers, "results agree", _difference(found))
    near = all_say(peers, "results are near", found is not None and found.is_near)
    if not why and (near or not comparable):
        return why, found
    if comparable:
        return _decided_exactly(peers, bench, results, why, found)
    if proven is not None and proven is not bench.compiled:
        alike = together(peers, "compare again", lambda: bench.likeness(results, proven))
        if not objection(peers, "results agree still", _difference(alike)):
            return "", alike
    try:
        undropped = together(peers, "dropout off", bench.without_dropout)
        if not all_say(peers, "there is dropout", undropped is not None) or undropped is None:
            return why, found
        twin = together(peers, "build without dropout", lambda: undropped.build(variant.recipe))
        return disagreement(peers, undropped, twin)
    except AbortedError:
        raise
    except AdvisorError as error:
        return f"{why}; without dropout the step cannot be compared: {error.line()}", found


def _decided_exactly(
    peers: Peers, bench: Bench, results: Results, why: str, found: Agreement | None
) -> tuple[str, Agreement | None]:
    """Whether results that are not eager's are as near to the exact ones; if nobody knows, `why`,
    and why nobody does: "" where each is within what it may be off.
    """
    near = together(peers, "is it near", lambda: may_be_rounding(found, results))
    if not all_say(peers, "it may be rounding", near):
        return why, found
    exact = bench.against_exact(results)
    if isinstance(exact, str) and not why:
        return why, found
    if isinstance(exact, str):
        why = f"{why}; whether that is rounding, no exacter run can decide: {exact}"
        return why, found and found._replace(note=why)
    return objection(peers, "results agree exactly", _difference(exact)), exact


def _drift(curves: LossCurves | str | None, found: Agreement | None) -> str:
    """Why a training run is not as near to an exacter one as eager's; "" if it is, or nobody can
    tell.
    """
    if not isinstance(curves, LossCurves):
        return ""
    return "" if curves.agree(found.epsilon if found is not None else 0.0) else _diverged(curves)


def _difference(found: Agreement | None) -> str:
    """Why a variant's results are not good enough; "" if they are."""
    if found is None:
        return "the step returns no tensor: nothing shows that results agree"
    if found.note or found.agrees:
        return found.note
    return (
        f"results differ from {found.reference}'s by {found.error:.2e}, "
        f"without it by {found.baseline:.2e}" + (f" ({found.result})" if found.result else "")
    )


def _diverged(curves: LossCurves) -> str:
    own = curves.compiled_divergence
    return (
        f"losses of {len(curves.reference)} steps diverge from a {curves.exact_type} run by "
        f"{curves.divergence:.1e}, eager's own by {curves.eager_divergence:.1e}"
        + (f", the compiler's by {own:.1e}" if own is not None else "")
    )


def _gain(result: SetVerdict) -> int:
    """What a set saves of the step, on the rank where it saves least."""
    steps = [vote.step for vote in result.votes] or [result.against_compiled]
    return min(step.gain_mid_ns if step is not None else 0 for step in steps)
