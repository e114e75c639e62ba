"""Which of the compiler's own kernels to cut in two or launch otherwise: each way runs in the step.

A kernel that takes little of the step is left, unless it is asked for by name. Ways are compared
in GPU time with the step as it is so far, the best is taken, the next kernel is looked at in that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from advisor.apply.compiler.cuts import cuts_of
from advisor.apply.compiler.generated import GeneratedKernel, configs_of
from advisor.apply.judge import judge_region
from advisor.apply.recipe import Recipe
from advisor.errors import AbortedError, AdvisorError, IllegalFusionError
from advisor.hardware.gpu import Gpu
from advisor.model.actions import ActionKind
from advisor.model.applied import Comparison
from advisor.model.cures import Retuned, Split
from advisor.model.run import Emit
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.sizing import spills
from advisor.pipeline.switch import Seen
from advisor.report.text import counted
from advisor.units import format_ns
from advisor.verify.resources import resources_of

# Of the GPU time of a step: less cannot be told from noise once it is halved.
LEAST_SHARE = 0.02
MOST_KERNELS = 6
# Launches that are compiled to see whether they spill, and those of them that are timed.
MOST_SIZED, MOST_TIMED = 10, 5
# What a thread best has to do: enough loads at once for the latency, few enough registers.
ELEMENTS_A_THREAD, THREADS = 8, 256

Late = Callable[[], bool]


@dataclass(frozen=True)
class Way:
    """One change to one kernel, at all its calls; `words` say what it is."""

    kernel: str
    words: str
    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()


# A way's comparison with the step without, the step with it, and that step's recipe.
_Measured = tuple[Comparison, Way, Variant, Recipe]


@dataclass
class Cured:
    """What was chosen, what became of every kernel in words, and how many ways were timed."""

    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()
    details: list[str] = field(default_factory=list)
    tried: int = 0


def cured(
    bench: Bench,
    recipe: Recipe,
    kind: ActionKind,
    *,
    only: str,
    gpu: Gpu | None,
    emit: Emit,
    late: Late,
) -> Cured:
    """Look for what is faster than the step of a recipe as trials run it.

    Raises `IllegalFusionError` if no kernel of the step has another way.
    """
    base = bench.as_tried(recipe)
    times, seen = bench.kernel_times(base), bench.seen(recipe)
    find = cuts_by_kernel if kind == "unfuse" else lambda s: launches_by_kernel(s, gpu)
    names = worth_a_look(seen, times, only)
    # Graphs number their kernels each for itself: one name may be two kernels.
    places = [place for name in names for place in _of(seen, name)]
    groups = [ways for ways in (find([place]) for place in places) if ways]
    if not groups:
        raise IllegalFusionError(_nothing(only, kind))
    found = Cured()
    for ways in groups:
        if late():
            found.details.append(f"{ways[0].kernel}: not tried, time was used up")
            continue
        base, recipe = _best(bench, recipe, base, ways, found, emit)
    return found


def worth_a_look(seen: Sequence[Seen], times: Mapping[str, int], only: str) -> list[str]:
    """Names of the compiler's kernels that take most of the step, or have `only` in their name."""
    ours = {kernel.name for one in seen for kernel in one.kernels}
    if only:
        return sorted(name for name in ours if only in name)
    least = LEAST_SHARE * sum(times.values())
    large = [name for name in ours if times.get(name, 0) >= max(least, 1)]
    return sorted(large, key=lambda name: (-times[name], name))[:MOST_KERNELS]


def _of(seen: Sequence[Seen], name: str) -> list[tuple[Seen, str]]:
    return [(one, name) for one in seen if any(kernel.name == name for kernel in one.kernels)]


def _nothing(only: str, kind: ActionKind) -> str:
    where = f"called {only[:60]!r} " if only else "that takes much of the step "
    what = "can be cut" if kind == "unfuse" else "has other blocks to launch it with"
    return f"no kernel of the compiler {where}{what}"


def cuts_by_kernel(places: Sequence[tuple[Seen, str]]) -> list[Way]:
    """The ways to cut a kernel, each at all places where it is called."""
    sites = [
        cuts_of(seen.graph, kernel, seen.kernels)
        for seen, name in places
        for kernel in seen.kernels
        if kernel.name == name
    ]
    most = max(map(len, sites), default=0)
    ways = []
    for number in range(most):
        splits = tuple(cuts[number] for cuts in sites if len(cuts) > number)
        ways.append(Way(splits[0].kernel, splits[0].words, splits=splits))
    return ways


def launches_by_kernel(places: Sequence[tuple[Seen, str]], gpu: Gpu | None) -> list[Way]:
    """Other launches of a kernel, of which compiling shows that they spill nothing."""
    kernels = [k for seen, name in places for k in seen.generated if k.name == name]
    if not kernels:
        return []
    return [
        Way(kernels[0].name, config.label, retuned=(config,))
        for config in proved(kernels[0], gpu)[:MOST_TIMED]
    ]


def proved(kernel: GeneratedKernel, gpu: Gpu | None) -> list[Retuned]:
    """The likeliest launches of a kernel without those that spill on the GPU."""
    likely = sorted(configs_of(kernel), key=lambda one: _distance(kernel, one))[:MOST_SIZED]
    if gpu is None or not likely:
        return likely
    rows = resources_of([kernel.request(one) for one in likely], [gpu])
    return [one for one, (row,) in zip(likely, rows, strict=True) if not spills(row)]


def _distance(kernel: GeneratedKernel, config: Retuned) -> float:
    """Doublings between a launch and what usually is best: elements a thread, threads a program."""
    held = kernel.size_hints.get("r0_", 1) if kernel.heuristic == "persistent_reduction" else 1
    elements = held * math.prod(config.blocks.values())
    threads = 32 * config.num_warps
    a_thread = elements / threads
    return abs(math.log2(a_thread / ELEMENTS_A_THREAD)) + abs(math.log2(threads / THREADS))


def _measured(
    bench: Bench, recipe: Recipe, base: Variant, ways: Sequence[Way], emit: Emit
) -> tuple[list[_Measured], str]:
    """Every way that changes the step, and why the last one failed that did; "" if none."""
    found: list[_Measured] = []
    failed = ""
    for way in ways:
        told = recipe.with_cures(way.splits, way.retuned)
        try:
            variant = bench.trial(told)
        except AbortedError:
            raise
        except AdvisorError as error:  # a launch that the device refuses, say
            failed = error.line()
            continue
        if way.splits and not variant.log.cuts:
            continue
        comparison = bench.gpu_time(base, variant)
        found.append((comparison, way, variant, told))
        gain = comparison.gain_mid_ns
        emit("measure", "running", value=gain, message=f"{way.kernel}: {way.words}")
    return found, failed


def _best(
    bench: Bench,
    recipe: Recipe,
    base: Variant,
    ways: Sequence[Way],
    found: Cured,
    emit: Emit,
) -> tuple[Variant, Recipe]:
    """Run the step with every way of one kernel, keep the fastest that is faster than without."""
    measured, failed = _measured(bench, recipe, base, ways, emit)
    found.tried += len(measured)
    name = ways[0].kernel
    if not measured:
        found.details.append(f"{name}: stays, {failed or 'nothing of it was found again'}")
        return base, recipe
    comparison, way, variant, told = max(measured, key=lambda item: item[0].gain_mid_ns)
    if not judge_region(comparison).keep:
        gain = comparison.gain_mid_ns
        worse = f"takes {format_ns(-gain)} more" if gain < 0 else "saves nothing beyond noise"
        best = f"the best of {counted(len(measured), 'other way')} {worse}"
        found.details.append(f"{name}: stays, {best}")
        return base, recipe
    found.splits, found.retuned = found.splits + way.splits, found.retuned + way.retuned
    saved = format_ns(comparison.gain_mid_ns)
    found.details.append(f"{name}: {way.words}; {saved} of GPU time less")
    return variant, told
