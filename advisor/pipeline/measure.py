"""Compiled variants of one step side by side in one process, and what they cost."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from advisor.apply.kernels import ReadyKernel
from advisor.errors import WorkloadError
from advisor.model.applied import Comparison
from advisor.model.report import Metric
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.pipeline.switch import PLAIN, GraphSwitch, Selection
from advisor.verify.statistics import compare
from advisor.verify.timing import time_steps
from analyzers.metrics import gpu_busy_by_range, trace_metrics
from collectors import read_trace
from collectors.live.capture import no_compile_caches
from collectors.live.recorder import (
    TRACED_STEPS,
    VARIANT_PREFIX,
    record_steps,
    record_variants,
    synchronize,
)
from collectors.live.workload import Step, Workload

REGION_ROUNDS, STEP_ROUNDS, WARMUP_STEPS = 16, 40, 3
# Beyond this share of eager's norm, the compiler's results are others, not eager's rounded.
COMPARABLE = 0.1
# Every compiled variant is one more cache entry on the same code objects.
RECOMPILE_LIMIT = 256
T = TypeVar("T")


def gpu_recorder(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    before: Callable[[], object] | None = None,
) -> dict[str, list[int]]:
    """Record variants in turn and read back the GPU-busy time of every run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variants.json.gz"
        record_variants(variants, path, rounds, before)
        return gpu_busy_by_range(read_trace(path), VARIANT_PREFIX)


class Agreement(NamedTuple):
    """Difference of our results from those of `reference`, and its own; epsilon of their dtype."""

    reference: str
    error: float
    baseline: float
    epsilon: float


@dataclass
class Variant:
    """One way to run the step: eager, compiled, or compiled with kernels swapped in."""

    name: str
    step: Step
    results: Callable[[], list[torch.Tensor]]
    kernels: tuple[ReadyKernel, ...] = ()
    log: SwapLog = field(default_factory=SwapLog)
    compile_ns: int = 0


class Bench:
    """Builds variants of one workload and compares them, always interleaved."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        torch.compiler.reset()
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        self.eager = Variant("eager", workload.step_of(), workload.results_of)
        self.compiled = self._compile("compiled", (), "inductor")

    @cached_property
    def _switch(self) -> tuple[GraphSwitch, Callable[..., Any]]:
        """The compiled part that trials exchange graphs of, and the switch that does it."""
        switch = GraphSwitch()
        part = torch.compile(self.workload.part, backend=switch.backend())
        step = self.workload.step_of(lambda _: part)
        self._warm(Variant("switched", step, list), time.perf_counter_ns())
        return switch, part

    def unswapped(self) -> Variant:
        """What trials are compared with: the step compiled as theirs is, nothing swapped."""
        return self._selected("unswapped", (), PLAIN, SwapLog())

    def trial(self, name: str, kernels: Sequence[ReadyKernel]) -> Variant:
        """The step with the sites of `kernels` swapped; compiles the graphs that have one only.

        Raises `WorkloadError` if it cannot be compiled or run so.
        """
        log = SwapLog()
        switch, _ = self._switch
        started = time.perf_counter_ns()
        try:
            selection = switch.with_kernels(kernels, log)
        except Exception as error:  # the compiler may raise anything
            lines = str(error).strip().splitlines()
            raise WorkloadError(
                "the step cannot be compiled with it",
                why=f"{type(error).__name__}: {lines[0] if lines else ''}",
            ) from error
        variant = self._selected(name, tuple(kernels), selection, log)
        self._warm(variant, started)
        return variant

    def _selected(
        self, name: str, kernels: tuple[ReadyKernel, ...], selection: Selection, log: SwapLog
    ) -> Variant:
        switch, part = self._switch

        def selected(run: Callable[[], T]) -> Callable[[], T]:
            def call() -> T:
                switch.select(selection)
                return run()

            return call

        step = selected(self.workload.step_of(lambda _: part))
        results = selected(lambda: self.workload.results_of(lambda _: part))
        return Variant(name, step, results, kernels, log)

    def _warm(self, variant: Variant, started: int) -> None:
        """Compile by a first step, which ends the compilation that began at `started` (ns)."""
        # A graph from a cache has run no pass: its swaps could not be counted.
        with no_compile_caches():
            variant.step()
        synchronize()
        variant.compile_ns = time.perf_counter_ns() - started
        for _ in range(WARMUP_STEPS):
            variant.step()

    def with_kernels(self, name: str, kernels: Sequence[ReadyKernel]) -> Variant:
        """The step compiled with the sites of `kernels` swapped, as the user compiles it."""
        log = SwapLog()
        return self._compile(name, tuple(kernels), plan_backend(kernels, log), log)

    def _compile(
        self, name: str, kernels: tuple[ReadyKernel, ...], backend: Any, log: SwapLog | None = None
    ) -> Variant:
        part = torch.compile(self.workload.part, backend=backend)
        variant = Variant(
            name,
            self.workload.step_of(lambda _: part),
            lambda: self.workload.results_of(lambda _: part),
            kernels,
            log or SwapLog(),
        )
        self._warm(variant, time.perf_counter_ns())
        return variant

    def gpu_time(self, before: Variant, after: Variant) -> Comparison:
        """GPU-busy time of the step, one variant against another."""
        measured = gpu_recorder({"before": before.step, "after": after.step}, REGION_ROUNDS)
        return compare(measured["before"], measured["after"], "gpu_busy")

    def step_time(self, variants: Sequence[Variant]) -> dict[str, list[int]]:
        """Wall-clock step time of several variants in one interleaved run."""
        return time_steps({v.name: v.step for v in variants}, STEP_ROUNDS)

    def agreement(self, variant: Variant) -> Agreement | None:
        """How far the variant's results are from eager's; None if the step returns no tensor."""
        eager, plain, ours = self.eager.results(), self.compiled.results(), variant.results()
        return agreement(eager, plain, ours, self.compiled.results)

    def peak_memory(self, variant: Variant) -> int:
        """Bytes allocated at the peak of one step."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        variant.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def metrics(self, variant: Variant, path: Path) -> dict[str, Metric]:
        """Trace the variant and return the metrics of its step; the trace stays at `path`."""
        record_steps(variant.step, path, steps=TRACED_STEPS)
        return trace_metrics(read_trace(path))


def agreement(
    eager: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    ours: Sequence[torch.Tensor],
    again: Callable[[], Sequence[torch.Tensor]],
) -> Agreement | None:
    """Our results against eager's, beside the compiler's own; None where there are none.

    The compiler draws other random numbers than eager: where its results are far from eager's,
    ours, which draw as it does, are compared with them, and it with itself run `again`.
    """
    if not eager:
        return None
    epsilon = max((torch.finfo(t.dtype).eps for t in eager if t.is_floating_point()), default=0.0)
    baseline = difference(plain, eager)
    if baseline <= COMPARABLE:
        return Agreement("eager", difference(ours, eager), baseline, epsilon)
    return Agreement("the compiler", difference(ours, plain), difference(again(), plain), epsilon)


def difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Norm of the difference over the norm, largest of all results; inf if structures differ.

    Infinities and NaN of theirs must be ours too; the norms are of the finite elements. Results
    that are NaN throughout agree with nothing: inf.
    """
    if len(ours) != len(theirs) or all(bool(_wide(t).isnan().all()) for t in theirs):
        return float("inf")
    return max((_distance(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if not ours.is_floating_point() and not ours.is_complex():
        return 0.0 if torch.equal(ours, theirs) else float("inf")
    ours, theirs = _wide(ours), _wide(theirs)
    finite = torch.isfinite(theirs)
    alike = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if not bool((finite | alike).all()):
        return float("inf")
    exact = torch.where(finite, theirs, 0.0)
    gap = float(torch.where(finite, ours - exact, 0.0).norm())
    size = float(exact.norm())
    value = gap / size if size else gap
    return float("inf") if math.isnan(value) else value


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In a type in which everything can be computed: float64, complex numbers as pairs of it."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.double()
