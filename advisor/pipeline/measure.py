"""Compiled variants of one step side by side in one process, and what they cost."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch._dynamo.pgo import reset_code_state

from advisor.apply.model.step_graph import ModuleGraph, StepGraph, on_host
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import AbortedError, IllegalFusionError, WorkloadError
from advisor.folders import written_by_compilers
from advisor.model.actions import ON_COMPILER, ActionKind
from advisor.model.applied import Comparison
from advisor.model.report import Metric
from advisor.pipeline.backend import SwapLog, Told, recipe_backend, rewrites_of
from advisor.pipeline.exactness import against_exact
from advisor.pipeline.graph_programs import GraphPrograms
from advisor.pipeline.instances import Instances
from advisor.pipeline.likeness import (
    Agreement,
    Results,
    agreement,
    difference,
    differences,
    held,
    noise_of,
)
from advisor.pipeline.peers import Alone, Peers
from advisor.pipeline.references import undropped, without_dropout
from advisor.pipeline.switch import PLAIN, GraphSwitch, OwnKernels, Seen, Selection
from advisor.pipeline.training import LossCurves, loss_curves
from advisor.store.writable import blame_storage
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import compare
from advisor.verify.timing import time_steps
from analyzers.metrics import trace_metrics
from collectors import read_trace
from collectors.live.capture import no_compile_caches
from collectors.live.failures import first_line
from collectors.live.loss_calls import WithLoss
from collectors.live.recorder import TRACED_STEPS, record_steps, synchronize
from collectors.live.workload import Part, Step, Workload, tensors

REGION_ROUNDS, STEP_ROUNDS, WARMUP_STEPS = 16, 40, 3
# A step whose own results differ by more from run to run is no measure of ours.
REPEATABLE = 1e-4
# Every compiled variant is one more cache entry on the same code objects.
RECOMPILE_LIMIT = 256
# Built variants that are kept, newest first: the best so far, and what a trial makes of it.
KEPT_VARIANTS = 3
T = TypeVar("T")
# What of a recipe a compiled part is of: its actions, and whether the loss is compiled with it.
_Compiling = tuple[tuple[ActionKind, ...], bool]


@dataclass
class Variant:
    """One way to run the step: eager, or compiled after a recipe."""

    name: str
    step: Step
    results: Callable[[], list[torch.Tensor]]
    part: Part
    recipe: Recipe = UNCHANGED
    log: SwapLog = field(default_factory=SwapLog)
    compile_ns: int = 0
    step_ns: int = 0
    pool_bytes: int | None = None


class Bench:
    """Builds variants of one workload and compares them, always interleaved.

    `reload` makes the workload anew from the same seed: changes to the model are made to such a
    twin, so that both can be run in turn. Of several `peers` all make the same calls in step. One
    that stands `beside` another leaves what that compiled alone.
    """

    def __init__(
        self,
        workload: Workload,
        reload: Callable[[], Workload],
        peers: Peers | None = None,
        beside: bool = False,
    ) -> None:
        self._instances = Instances(workload, reload)
        self._peers = peers if peers is not None else Alone()
        self._beside = beside
        self._undropped: Bench | None = None
        self._switches: dict[_Compiling, tuple[GraphSwitch, Part]] = {}
        self._built: dict[str, Variant] = {}
        if not beside:
            torch.compiler.reset()
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        self.eager = Variant("eager", workload.step_of(), workload.results_of, workload.part)
        self.compiled = self._compile(workload, UNCHANGED, "inductor", SwapLog(), "compiled")

    def build(self, recipe: Recipe) -> Variant:
        """The step after a recipe, compiled as its user compiles it; the last few are kept.

        Raises `IllegalFusionError` if an action does not apply to it, `WorkloadError` if it cannot
        be compiled or run so.
        """
        if recipe == UNCHANGED:
            return self.compiled
        name = recipe.name()
        variant = self._built.pop(name, None) or self._new(recipe)
        self._built[name] = variant
        for oldest in list(self._built)[:-KEPT_VARIANTS]:
            del self._built[oldest]
        return variant

    def _new(self, recipe: Recipe) -> Variant:
        instance = self._instances.of(recipe)
        if recipe.whole_step_graph and instance.kind == "inference":
            # The graph holds what is compiled without it.
            variant = self.build(recipe.without(("step_graph",)))
            return self._graphed(instance, replace(variant, name=recipe.name(), recipe=recipe))
        log = SwapLog()
        variant = self._compile(instance, recipe, recipe_backend(recipe, log), log)
        return self._graphed(instance, variant) if recipe.whole_step_graph else variant

    def unswapped(self, recipe: Recipe) -> Variant:
        """What trials of kernels are compared with: compiled as theirs is, nothing swapped."""
        return self._selected(recipe.with_kernels(()), PLAIN, SwapLog())

    def as_tried(self, recipe: Recipe) -> Variant:
        """The step after a recipe as trials run it."""
        changed = recipe.kernels or recipe.splits or recipe.retuned
        return self.trial(recipe) if changed else self.unswapped(recipe)

    def seen(self, recipe: Recipe) -> tuple[Seen, ...]:
        """The compiler's own kernels in the graphs of a step with these actions."""
        return tuple(own.seen for own in self.own_kernels(recipe))

    def programs(self, recipe: Recipe) -> list[GraphPrograms]:
        """What plans may be for in the graphs of a step with these actions."""
        return self._switch(recipe)[0].programs()

    def own_kernels(self, recipe: Recipe) -> list[OwnKernels]:
        """The same, with what plans may be for in each graph."""
        try:
            return self._switch(recipe)[0].own_kernels()
        except Exception as error:  # the compiler may raise anything
            raise _not_compiled(error) from error

    def kernel_times(self, variant: Variant) -> dict[str, int]:
        """GPU time of every kernel of one step by name, ns."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            record_steps(variant.step, path, steps=TRACED_STEPS)
            kernels = read_trace(path).kernels
        found = kernels.groupby("name", observed=True)["duration_ns"].sum()
        return {str(name): int(total) // TRACED_STEPS for name, total in found.items()}

    def trial(self, recipe: Recipe) -> Variant:
        """The step with the sites of the recipe's kernels swapped, its cuts and launches made.

        Only graphs that have one are compiled. Raises `WorkloadError` if it cannot be compiled
        or run so.
        """
        log = SwapLog()
        switch, _ = self._switch(recipe)
        started = time.perf_counter_ns()
        try:
            told = Told(recipe.splits, recipe.retuned)
            selection = switch.with_kernels(recipe.kernels, log, told)
        except Exception as error:  # the compiler may raise anything
            raise _not_compiled(error) from error
        variant = self._selected(recipe, selection, log)
        self._warm(variant, started)
        return variant

    def _switch(self, recipe: Recipe) -> tuple[GraphSwitch, Part]:
        """The switch and the compiled part of all recipes with these actions, compiled once."""
        key = recipe.without(ON_COMPILER).actions, recipe.with_loss
        if key not in self._switches:
            instance = self._instances.of(recipe)
            on_gpu = instance.device.type == "cuda"
            switch = GraphSwitch(rewrites_of(recipe.actions), on_gpu=on_gpu, **recipe.settings)
            part = compiled_part(instance, recipe, switch.backend())
            step = instance.step_of(lambda _: part)
            self._warm(Variant("switched", step, list, part), time.perf_counter_ns())
            self._switches[key] = switch, part
        return self._switches[key]

    def _selected(self, recipe: Recipe, selection: Selection, log: SwapLog) -> Variant:
        instance = self._instances.of(recipe)
        switch, part = self._switch(recipe)

        def selected(run: Callable[[], T]) -> Callable[[], T]:
            def call() -> T:
                switch.select(selection)
                return run()

            return call

        step = selected(instance.step_of(lambda _: part))
        results = selected(self._instances.results_of(instance, part))
        return Variant(recipe.name(), step, results, part, recipe, log)

    def _compile(
        self, instance: Workload, recipe: Recipe, backend: Any, log: SwapLog, name: str = ""
    ) -> Variant:
        part = compiled_part(instance, recipe, backend)
        variant = Variant(
            name or recipe.name(),
            marked(instance.step_of(lambda _: part)),
            self._instances.results_of(instance, part),
            part,
            recipe,
            log,
        )
        try:
            self._warm(variant, time.perf_counter_ns())
        except WorkloadError:
            raise
        except Exception as error:  # the compiler may raise anything
            raise _not_compiled(error) from error
        return variant

    def _graphed(self, instance: Workload, variant: Variant) -> Variant:
        """The whole step of a variant as one CUDA graph; of an inference step, its module."""
        if why := on_host(instance.part, tensors(instance.inputs)):
            raise IllegalFusionError(why)
        if instance.kind == "inference" and not isinstance(variant.part, WithLoss):
            graphed = ModuleGraph(variant.part, *instance.arguments())
            step = instance.step_of(lambda _: graphed)
            results = self._instances.results_of(instance, graphed)
            return replace(variant, step=step, results=results, pool_bytes=graphed.pool_bytes)
        graph = StepGraph(variant.step)
        results = self._instances.replayed_results_of(instance, graph)
        return replace(variant, step=graph, results=results, pool_bytes=graph.pool_bytes)

    def _warm(self, variant: Variant, started: int) -> None:
        """Compile by a first step, which ends the compilation that began at `started` (ns)."""
        # A graph from a cache has run no pass: its swaps could not be counted.
        with no_compile_caches():
            try:
                variant.step()
            except WorkloadError as error:  # it may be the compiler's
                blame_storage(error.line(), written_by_compilers(os.environ, direct=False))
                raise
        synchronize()
        variant.compile_ns = time.perf_counter_ns() - started
        for _ in range(WARMUP_STEPS):
            began = time.perf_counter_ns()
            variant.step()
            synchronize()
            variant.step_ns = time.perf_counter_ns() - began

    def loss_curves(self, recipe: Recipe, resolution: float) -> LossCurves | str | None:
        """Losses of a training run after a recipe, beside eager's and an exacter run's.

        They need not agree by more than `resolution`. None for what does not train; a text says why
        the losses say nothing.
        """
        if not self.trains:
            return None

        def ours() -> tuple[Workload, Part]:
            twin = self._instances.fresh(recipe)
            return twin, compiled_part(twin, recipe, recipe_backend(recipe, SwapLog()))

        def plain() -> tuple[Workload, Part]:
            twin = self._instances.fresh()
            return twin, compiled_part(twin, UNCHANGED, "inductor")

        with no_compile_caches():
            return loss_curves(self._instances.fresh, ours, self._peers, plain, resolution)

    @property
    def trains(self) -> bool:
        """Whether the step is one of training."""
        return self._instances.base.kind == "training"

    def gpu_time(self, before: Variant, after: Variant) -> Comparison:
        """GPU-busy time of the step, one variant against another."""
        measured = gpu_recorder({"before": before.step, "after": after.step}, REGION_ROUNDS)
        return compare(measured["before"], measured["after"], "gpu_busy")

    def step_time(self, variants: Sequence[Variant]) -> dict[str, list[int]]:
        """Wall-clock step time of several variants in one interleaved run."""
        return time_steps({v.name: v.step for v in variants}, STEP_ROUNDS)

    def results(self, variant: Variant) -> Results:
        """What must agree: all three from the same state.

        Of a training step that reads other data each time, new copies begin at the same.
        """
        found = Results(self.eager.results(), self.compiled.results(), variant.results())
        if found.comparable or not self.trains or self._peers.count > 1:
            return found
        again = differences(self.eager.results(), found.eager)
        return found if noise_of(again) is not None else self._fresh_results(variant.recipe)

    def _fresh_results(self, recipe: Recipe) -> Results:
        backend = recipe_backend(recipe, SwapLog())
        with no_compile_caches():
            eager = self._instances.fresh().results_of()
            alone = self._instances.fresh()
            plain = alone.results_of(lambda _: compiled_part(alone, UNCHANGED, "inductor"))
            twin = self._instances.fresh(recipe)
            ours = twin.results_of(lambda _: compiled_part(twin, recipe, backend))
            return Results(eager, plain, ours)

    def draws_alike(self) -> bool:
        """Whether the compiler draws the random numbers of the step as eager does, or none."""
        return Results(self.eager.results(), self.compiled.results(), []).comparable

    def agreement(self, results: Results, comparable: bool) -> Agreement | None:
        """How far ours are from eager's; None if the step returns no tensor.

        Where the compiler's are not `comparable` with eager's, on any rank, ours are compared with
        them.
        """
        found = agreement(*results, self.compiled.results, comparable)
        if found is None or self._instances.base.kind != "step":
            return found
        # Of a step of unknown content nothing can be put back: it may train.
        drift = difference(self.eager.results(), results.eager)
        if drift <= max(2.0 * found.epsilon, REPEATABLE):
            return found
        return found._replace(
            note=f"the step's own results change by {drift:.1e} when it is run "
            "again: nothing shows that ours agree"
        )

    def against_exact(self, results: Results) -> Agreement | str:
        """How far ours are from those of a copy that computes more exactly, beside eager's.

        A text says why there is no such copy.
        """
        return against_exact(self._instances, results, self._peers)

    def likeness(self, results: Results, proven: Variant) -> Agreement:
        """How far ours are from those of another variant, beside its own from run to run."""
        first, again = proven.results(), proven.results()
        return held("the best so far", results.ours, first, again, same=True)

    def without_dropout(self) -> Bench | None:
        """The same of a training step that drops nothing, made once; None if it trains no module.

        It judges the results of what draws its random numbers otherwise than the compiler.
        """
        if self._undropped is None and self._beside:
            return None
        if self._undropped is None:
            reload = self._instances.fresh
            twin = without_dropout(reload())
            if twin is None:
                return None
            self._undropped = Bench(twin, undropped(reload), self._peers, beside=True)
        return self._undropped

    def peak_memory(self, variant: Variant) -> int | None:
        """Bytes allocated at the peak of one step; None where there is no GPU.

        What twins of the workload hold that other variants run on is none of the variant's.
        """
        if not torch.cuda.is_available():
            variant.step()
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        variant.step()
        torch.cuda.synchronize()
        others = self._instances.held_beside(variant.recipe)
        if self._undropped is not None:
            others += self._undropped._instances.held_beside()
        return torch.cuda.max_memory_allocated() - others

    def metrics(self, variant: Variant, path: Path) -> dict[str, Metric]:
        """Trace the variant and return the metrics of its step; the trace stays at `path`."""
        record_steps(variant.step, path, steps=TRACED_STEPS)
        return trace_metrics(read_trace(path))


def compiled_part(instance: Workload, recipe: Recipe, backend: Any) -> Part:
    """What a workload compiles, after a recipe: its module or step, or the model with its loss.

    It is compiled at its first call, as in a process of its own: Dynamo keeps the sizes and strides
    that it saw by the code, which all twins share, and makes symbols of those that differ. Behind a
    step in another memory format each strided input would have them, and no plan a site.
    """
    reset_code_state()
    if recipe.with_loss and isinstance(instance.part, nn.Module):
        return WithLoss(instance.part, backend)
    part: Callable[..., Any] = torch.compile(instance.part, backend=backend)
    return part


def marked(step: Step) -> Step:
    """The step, told to CUDA graphs as one: what an earlier step returned may be overwritten."""

    def begun() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return step()

    return begun


def _not_compiled(error: BaseException) -> WorkloadError:
    """The error of a step that does not compile; raises `StorageError` for want of a disk."""
    if isinstance(error, AbortedError):
        raise error
    blame_storage(str(error), written_by_compilers(os.environ, direct=False))
    return WorkloadError("the step cannot be compiled with it", why=first_line(error))
