"""Times on the GPU, all interleaved: steps by the host's clock, kernels by the profiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from advisor.model.applied import KernelTiming, Timing
from advisor.model.gathers import table_rows
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.members import parts
from advisor.model.plan import FusionPlan, Site
from advisor.model.scan import steps_of
from advisor.verify.cases import table_shape
from advisor.verify.interpret import evaluate
from advisor.verify.kernel_module import load_module
from advisor.verify.products import allowed_as_planned
from advisor.verify.statistics import timing
from collectors.live.recorder import synchronize

# More than any L2 in the GPU table; writing it between calls leaves nothing of the inputs behind.
FLUSH_BYTES = 256 << 20
# Half is read, half written.
PEAK_COPY_BYTES = 2 << 30
SEARCH_ROUNDS, TIMING_ROUNDS = 5, 30
# The least of many short measurements is a lucky one: those in front are measured once more.
FINALISTS, FINAL_ROUNDS = 4, 15
# Compiling the steps of a scan one by one takes as long as the kernel would save in an hour.
MOST_COMPILED_STEPS = 32


class KernelRecorder(Protocol):
    """Records variants in turn and returns the GPU-busy ns of each run of each."""

    def __call__(
        self,
        variants: Mapping[str, Callable[[], object]],
        rounds: int,
        before: Callable[[], object] | None = None,
    ) -> dict[str, list[int]]: ...


def time_steps(
    variants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 3
) -> dict[str, list[int]]:
    """Wall-clock ns per step of every variant, interleaved, alternating which goes first.

    A timed step follows one of its own, as in a loop: after another variant's, caches of host and
    GPU are cold, which made equal steps differ by 5 %.
    """
    names = list(variants)
    found: dict[str, list[int]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        for name in names if number % 2 == 0 else reversed(names):
            if len(names) > 1:
                variants[name]()
            synchronize()
            started = time.perf_counter_ns()
            variants[name]()
            synchronize()
            if number >= warmup:
                found[name].append(time.perf_counter_ns() - started)
    return found


def site_inputs(
    plan: FusionPlan, site: Site, device: torch.device, least: Sequence[int] = ()
) -> list[torch.Tensor]:
    """Random inputs of a site's own sizes and strides (broadcast axes have size 1).

    Of a scan, inputs that are parts of one value lie in one memory; `least` says how many elements
    the memory of each has at least.
    """
    if plan.members:
        return [t for part, own in parts(plan, site) for t in site_inputs(part, own, device)]
    found = []
    offsets = site.input_offsets or (0,) * len(plan.inputs)
    memory = _sizes(plan, site, offsets, least) if plan.states else {}
    shared: dict[tuple[str, str], torch.Tensor] = {}
    below = _index_limits(plan, site)
    for number, (item, strides) in enumerate(zip(plan.inputs, site.input_strides, strict=True)):
        spans = plan.along(item)
        shape = [size if span else 1 for size, span in zip(site.sizes, spans, strict=True)]
        if (rows := table_rows(site, number)) is not None:
            shape = table_shape(item, rows, site.columns)
        kind: torch.dtype = getattr(torch, item.dtype)
        needed = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        needed = 0 if 0 in shape else needed
        key = (site.inputs[number], item.dtype)
        if key not in shared or not plan.states:
            elements = memory.get(site.inputs[number], needed)
            shared[key] = _random(elements, kind, device, below.get(item.name, 2))
        laid_out = [s if n > 1 else 1 for s, n in zip(strides, shape, strict=True)]
        found.append(shared[key].as_strided(shape, laid_out, offsets[number]))
    return found


def _index_limits(plan: FusionPlan, site: Site) -> dict[str, int]:
    """Below what every index of a table is."""
    found: dict[str, int] = {}
    for number, item in enumerate(plan.inputs):
        rows = table_rows(site, number)
        if item.gathered is not None and rows is not None:
            found[item.gathered] = min(rows, found.get(item.gathered, rows))
    return found


def _random(elements: int, kind: torch.dtype, device: torch.device, below: int) -> torch.Tensor:
    """Numbers around 0, integers from 0 on and `below` a number."""
    if kind.is_floating_point:
        return torch.randn(elements, device=device, dtype=torch.float32).to(kind)
    return torch.randint(0, below, (elements,), device=device).to(kind)


def _sizes(
    plan: FusionPlan, site: Site, offsets: Sequence[int], least: Sequence[int]
) -> dict[str, int]:
    """How many elements the memory behind each value has: as far as any of its parts reaches."""
    found = dict(zip(site.inputs, least, strict=False))
    for number, (item, strides) in enumerate(zip(plan.inputs, site.input_strides, strict=True)):
        spans = plan.along(item)
        sizes = [size if span else 1 for size, span in zip(site.sizes, spans, strict=True)]
        reach = sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
        value = site.inputs[number]
        found[value] = max(found.get(value, 0), offsets[number] + 1 + reach)
    return found


def site_outputs(
    plan: FusionPlan, site: Site, device: torch.device
) -> tuple[torch.Tensor, ...] | None:
    """Memory for the outputs with a site's strides; None where all are contiguous."""
    if not plan.strided_outputs:
        return None
    if plan.members:
        return tuple(t for part, own in parts(plan, site) for t in _laid_out(part, own, device))
    found = []
    for output, strides in zip(plan.outputs, site.output_strides, strict=True):
        shape = output.shape(site.row_sizes, site.column_axes)
        kind: torch.dtype = getattr(torch, output.dtype)
        found.append(torch.empty_strided(shape, strides, dtype=kind, device=device))
    return tuple(found)


def _laid_out(part: FusionPlan, site: Site, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Memory for the outputs of a member, dense where none is strided."""
    strided = site_outputs(part, site, device)
    if strided is not None:
        return strided
    shapes = [output.shape(site.row_sizes, site.column_axes) for output in part.outputs]
    return tuple(
        torch.empty(shape, dtype=getattr(torch, output.dtype), device=device)
        for shape, output in zip(shapes, part.outputs, strict=True)
    )


def best_config(
    plan: FusionPlan,
    sources: Mapping[Scheme, Path],
    record: KernelRecorder,
    device: torch.device,
    usable: Sequence[LaunchConfig],
    wait: Callable[[], object] = torch.cuda.synchronize,
) -> LaunchConfig:
    """The fastest usable configuration at the plan's first site, inputs cold in cache.

    `sources` are the plan's kernel files by scheme; `wait` is called after the first launch of
    each.
    """
    calls = configured_calls(plan, sources, device, usable, wait=wait)
    if len(calls) == 1:
        return usable[0]
    best, _ = fastest(calls, record, device)
    return next(config for config in usable if config.label() == best)


def fastest(
    calls: Mapping[str, Callable[[], object]], record: KernelRecorder, device: torch.device
) -> tuple[str, dict[str, int]]:
    """The label of the fastest of at least one call, and the median ns of each, caches cold."""
    cold = flusher(device)

    def medians(some: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, int]:
        return {k: timing(times).median_ns for k, times in record(some, rounds, cold).items()}

    found = medians(calls, SEARCH_ROUNDS)
    front = sorted(found, key=found.__getitem__)[:FINALISTS]
    again = medians({label: calls[label] for label in front}, FINAL_ROUNDS)
    return min(again, key=again.__getitem__), found | again


def time_kernel(
    plan: FusionPlan,
    source_path: Path,
    config: LaunchConfig,
    record: KernelRecorder,
    device: torch.device,
    bytes_moved: int,
) -> KernelTiming:
    """The kernel, the same ops eager and compiled, a copy of the same bytes: one recording."""
    site = plan.sites[0]
    inputs = site_inputs(plan, site, device)

    def unrolled(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return evaluate(plan, given, "native")

    many = plan.states and steps_of(site) > MOST_COMPILED_STEPS
    compiled = torch.compile(unrolled, dynamic=False)
    source = torch.empty(bytes_moved // 2, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    large = torch.empty(PEAK_COPY_BYTES // 2, dtype=torch.uint8, device=device).random_()
    large_target = torch.empty_like(large)
    kernel = configured_calls(plan, {config.scheme: source_path}, device, (config,), inputs)[
        config.label()
    ]
    with torch.no_grad(), allowed_as_planned(plan):
        variants: dict[str, Callable[[], object]] = {
            "kernel": kernel,
            "eager": lambda: evaluate(plan, inputs, "native"),
            "inductor": lambda: compiled(*inputs),
            "copy": lambda: target.copy_(source),
            "peak": lambda: large_target.copy_(large),
        }
        if many:
            del variants["inductor"]
        for call in variants.values():
            call()
        cold = {
            name: timing(v) for name, v in record(variants, TIMING_ROUNDS, flusher(device)).items()
        }
        warm = timing(record({"kernel": kernel}, TIMING_ROUNDS)["kernel"])
        launch_ns = host_time_ns(kernel)
    return _summary(plan, config, bytes_moved, cold, warm, launch_ns)


def _summary(
    plan: FusionPlan,
    config: LaunchConfig,
    bytes_moved: int,
    cold: dict[str, Timing],
    warm: Timing,
    launch_ns: int,
) -> KernelTiming:
    peak = PEAK_COPY_BYTES / cold["peak"].median_ns
    achieved = bytes_moved / cold["kernel"].median_ns
    site = plan.sites[0]
    return KernelTiming(
        shape="×".join(str(size) for size in site.sizes),
        config=config.label(),
        bytes=bytes_moved,
        kernel=cold["kernel"],
        kernel_warm=warm,
        eager=cold["eager"],
        inductor=cold.get("inductor"),
        copy=cold["copy"],
        copy_bandwidth_fraction=cold["copy"].median_ns / cold["kernel"].median_ns,
        peak_copy_bandwidth_fraction=achieved / peak,
        eager_bandwidth_fraction=bytes_moved / cold["eager"].median_ns / peak,
        launch_ns=launch_ns,
    )


def configured_calls(
    plan: FusionPlan,
    sources: Mapping[Scheme, Path],
    device: torch.device,
    configs: Sequence[LaunchConfig],
    inputs: list[torch.Tensor] | None = None,
    wait: Callable[[], object] = torch.cuda.synchronize,
) -> dict[str, Callable[[], object]]:
    """Launches by configuration label, on one set of inputs and outputs.

    Each is launched once, and waited for: one that never ends is in the way of loading the next.
    """
    modules = {scheme: load_module(sources[scheme]) for scheme in {c.scheme for c in configs}}
    given = inputs or site_inputs(plan, plan.sites[0], device)
    first = modules[configs[0].scheme].fused
    laid_out = site_outputs(plan, plan.sites[0], device)
    out = first(*given, out=laid_out, **configs[0].options())
    wait()

    def call(config: LaunchConfig) -> Callable[[], object]:
        fused, options = modules[config.scheme].fused, config.options()
        return lambda: fused(*given, out=out, **options)

    calls = {config.label(): call(config) for config in configs}
    for launch in calls.values():
        launch()
        wait()
    return calls


def flusher(device: torch.device) -> Callable[[], object]:
    """A call that fills a buffer larger than L2."""
    buffer = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    return buffer.zero_


def host_time_ns(call: Callable[[], object], repeats: int = 200) -> int:
    """Host time of one launch in ns, the queue never full."""
    torch.cuda.synchronize()
    started = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    elapsed = time.perf_counter_ns() - started
    torch.cuda.synchronize()
    return elapsed // repeats
