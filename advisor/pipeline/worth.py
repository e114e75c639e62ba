"""What kernels could gain in the compiled step, before any of them is made ready.

A plan is priced beside what the workload ran when it was profiled, often op by op. The compiler has
fused much of that already: only its own kernels of these ops are left to gain from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from advisor.apply.recipe import Recipe
from advisor.model.plan import FusionPlan
from advisor.model.run import Emit
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.graph_programs import placed
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.switch import OwnKernels
from advisor.pipeline.trials import Trial
from advisor.units import counted, format_ns


class Worth(NamedTuple):
    """Sites of some plans in the compiled step, what its kernels of them take now, and ours would.

    `now_ns` counts a kernel that computes something else too as a whole: it is the most that can be
    gained. It is None where it is not known, and so is `ours_ns`; `timed_ns` are those of the
    compiler's kernels of which the time is known.
    """

    sites: int
    now_ns: int | None
    ours_ns: int | None
    timed_ns: int = 0

    @property
    def gain_ns(self) -> int | None:
        """The most that the plans may save of a step."""
        return None if self.now_ns is None or self.ours_ns is None else self.now_ns - self.ours_ns

    def told(self) -> str:
        """In a line."""
        if not self.sites:
            return "no site of it is in the compiled graphs"
        now, ours = (
            "not known" if value is None else format_ns(value)
            for value in (self.now_ns, self.ours_ns)
        )
        sites = counted(self.sites, "site")
        most = "" if self.now_ns is None else "at most "
        return (
            f"the compiler's kernels at {sites} take {most}{now} of the step, "
            f"ours would take {ours}"
        )


def worth_by_finding(
    groups: Sequence[Sequence[Trial]],
    found: Mapping[str, Candidate],
    bench: Bench,
    recipe: Recipe,
    emit: Emit,
    base: Variant,
) -> list[int | None]:
    """The most that each finding may gain in a step with a recipe, which `base` runs, ns.

    Where not all of the compiler's time at its sites is known, as that of a library's product, it
    is the part that is, but no more than the run predicts to be saved of what ran when it was
    profiled; None without that, or if nothing of it is left to be tried.
    """
    graphs, times = bench.own_kernels(recipe), bench.kernel_times(base)
    gains = []
    for trials in groups:
        known: list[int] = []
        for trial in trials:
            usable = [name for name in trial.plan_ids if found[name].refused is None]
            if not usable:
                continue
            plans = [found[name].plan for name in usable]
            worth = worth_of(plans, graphs, times)
            gain_ns, most_ns = worth.gain_ns, _predicted_gain_ns(plans)
            if gain_ns is None and most_ns is not None:
                gain_ns = min(worth.timed_ns, most_ns)
            known += [gain_ns] if gain_ns is not None else []
            emit("measure", "running", plan=usable[0], message=worth.told())
        gains.append(max(known, default=None))
    return gains


def _predicted_gain_ns(plans: Sequence[FusionPlan]) -> int | None:
    """What plans together are predicted to save of the profiled step, ns; None if any has none."""
    predictions = [plan.prediction for plan in plans]
    known = [prediction.saving_ns.mid for prediction in predictions if prediction is not None]
    return sum(known) if known and len(known) == len(predictions) else None


def worth_of(
    plans: Sequence[FusionPlan], graphs: Sequence[OwnKernels], times: Mapping[str, int]
) -> Worth:
    """The worth of plans tried together, earlier ones first; `times` are ns a step by kernel.

    The calls of a kernel in a graph share its time. Graphs number their kernels each for itself, so
    one name may be two kernels: then all of its time counts. A graph that runs twice a step has
    what both runs take. What is all zeros was not timed.
    """
    calls = Counter(kernel.name for one in graphs for kernel in one.seen.kernels)
    places = Counter(name for one in graphs for name in {k.name for k in one.seen.kernels})
    replaced: Counter[str] = Counter()
    sites, ours = 0, 0.0
    modelled = True
    for one in graphs:
        found = list(placed(one.programs, plans))
        sites += len(found)
        nodes = {node for _, site in found for node in site.nodes}
        replaced.update(kernel.name for kernel in one.seen.kernels if nodes & set(kernel.nodes))
        for plan in (plans[number] for number, _ in found):
            modelled &= plan.prediction is not None and bool(plan.sites)
            if plan.prediction is not None and plan.sites:
                ours += plan.prediction.after_ns.mid / len(plan.sites)
    shares = {n: 1.0 if places[n] > 1 else count / calls[n] for n, count in replaced.items()}
    now = sum(times.get(name, 0) * share for name, share in shares.items())
    known = replaced.keys() <= times.keys() and (now > 0 or not sites)
    ours_ns = round(ours) if modelled else None
    return Worth(sites, round(now) if known else None, ours_ns, round(now))
