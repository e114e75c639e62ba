"""`profile`: run a workload once, clean and traced, and say what to fuse. Read it top to bottom."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from advisor.codegen import render
from advisor.errors import UsageError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.base import Warning_
from advisor.model.findings import Finding
from advisor.model.report import Hardware, Metric, PlanSummary, Report, Source
from advisor.model.report import Workload as WorkloadFacts
from advisor.model.run import RunInfo
from advisor.model.trace import Trace
from advisor.pipeline.facts import TOOL, hardware_of, now, versions
from advisor.store import RunDirectory, sign
from advisor.verify.statistics import timing
from advisor.verify.timing import time_steps
from analyzers.balance import Balance
from analyzers.exposure import Situation
from analyzers.metrics import kernel_rows, trace_metrics
from analyzers.opportunities import Advice, PricedGraph, advise
from analyzers.pricing import KernelCall, compiled_prices, eager_prices
from analyzers.recommendation import recommend
from analyzers.rules import find_all, without_overlaps
from analyzers.subject import captured_subject
from collectors import read_trace
from collectors.live.capture import Capture, CapturedGraph, capture
from collectors.live.nvml import GpmCounters, GpmSampler, snapshot, visible_device
from collectors.live.recorder import TRACED_STEPS, record_steps
from collectors.live.workload import Step, Workload, load_workload

# Told the stage that begins, in a word and in a sentence.
Announce = Callable[[str, str], None]
STEP_DEFINITION = (
    "wall-clock time of one step without a profiler, synchronised before and after; median"
)
COUNTER_DEFINITIONS = {
    "dram_bandwidth_utilisation": "share of peak DRAM bandwidth",
    "sm_active": "share of time in which a multiprocessor has a warp",
    "occupancy_measured": "resident warps over the most possible",
    "tensor_active": "share of time in which tensor pipes are busy",
}
MODE_NEEDS_GPU = (
    "what the compiler's kernels take is known on a GPU only: prices are of the eager workload"
)
NO_GPU = "no GPU on this machine: prices are modelled, exposure is unknown, nothing is timed"
DEFAULT_GPU = "h200"


@dataclass(frozen=True)
class ProfileOptions:
    """What `fusion-advisor profile` was asked to do."""

    target: str
    mode: str = "eager"
    gpu: str | None = None
    steps: int = 20
    warmup: int = 3
    seed: int = 0


@dataclass(frozen=True)
class _Recorded:
    """What was learnt of the workload before any advice."""

    options: ProfileOptions
    workload: Workload
    captured: Capture
    hardware: Hardware
    metrics: dict[str, Metric]
    trace: Trace | None
    warnings: tuple[Warning_, ...]


def profile(options: ProfileOptions, run: RunDirectory, announce: Announce) -> Report:
    """Record a workload into an empty run directory and return its report.

    Raises `WorkloadError` if the workload fails, `UsageError` for a bad target or GPU name.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu, gpu_warnings = _gpu(options.gpu, device)
    if device.type == "cpu" and options.mode != "eager":
        gpu_warnings.append(Warning_(code="mode-needs-gpu", message=MODE_NEEDS_GPU))
        options = replace(options, mode="eager")
    announce("load", f"building {options.target} on {device.type}")
    workload = load_workload(options.target, device, seed=options.seed)
    announce("capture", "compiling and reading the graphs")
    captured, compiled = capture(
        workload, generate_code=device.type == "cuda" and options.mode == "compile"
    )
    step = compiled or workload.step_of()
    warnings = [*gpu_warnings, *_capture_warnings(captured), *_optimizer_warnings(workload)]
    trace: Trace | None = None
    metrics: dict[str, Metric] = {}
    if device.type == "cuda":
        announce("time", f"timing {options.steps} clean steps")
        metrics |= _clean_metrics(step, options)
        announce("trace", "recording a trace")
        trace = _trace(step, run)
        metrics |= trace_metrics(trace)
        announce("counters", "sampling the GPU's counters")
        counters, counter_warnings = _counters(step, metrics)
        metrics |= counters
        warnings += [*trace.warnings, *counter_warnings]
    announce("analyze", "looking for what can be fused")
    situation = Situation(
        gpu,
        load_calibration(gpu),
        options.mode == "eager",
        step_ns=_value(metrics, "step_ns"),
        busy_ns=_value(metrics, "gpu_busy_per_step_ns"),
    )
    priced, price_warnings = _priced(captured.graphs, trace, situation.eager)
    warnings += price_warnings
    advice = advise(priced, situation)
    subject = captured_subject(priced, advice, situation, metrics, trace)
    findings = without_overlaps(find_all(subject))
    metrics |= _compiler_metrics(captured)
    hardware = _hardware(gpu, device)
    recorded = _Recorded(options, workload, captured, hardware, metrics, trace, tuple(warnings))
    report = _report(recorded, advice.summaries(), findings, subject.balance)
    _save(run, options, report, advice)
    return report


def _gpu(name: str | None, device: torch.device) -> tuple[Gpu, list[Warning_]]:
    """The GPU that prices are for: the one named, the one present, or the default."""
    here = torch.cuda.get_device_name() if device.type == "cuda" else None
    return choose_gpu(name, here)


def choose_gpu(name: str | None, here: str | None) -> tuple[Gpu, list[Warning_]]:
    """The GPU to price for, from `--gpu` and the device's name (None without one).

    A device that the table does not know is priced as another only if the user names that one.
    """
    present = find_gpu(here) if here is not None else None
    if name is not None:
        gpu = gpu_by_key(name)
        if present is not None and present != gpu:
            raise UsageError(
                f"--gpu {name} is not the GPU of this machine",
                remedy="leave it out: measured beats modelled",
            )
        if here is not None and present is None:
            note = f"{here} is not in the GPU table; modelled figures are those of {gpu.name}"
            return gpu, [Warning_(code="gpu-unknown", message=note)]
        return gpu, []
    if present is not None:
        return present, []
    if here is not None:
        raise UsageError(
            f"{here} is not in the GPU table",
            remedy="name the GPU of the table that comes nearest with --gpu",
        )
    note = f"no --gpu given; prices are for {DEFAULT_GPU}"
    return gpu_by_key(DEFAULT_GPU), [Warning_(code="gpu-assumed", message=note)]


def _capture_warnings(captured: Capture) -> list[Warning_]:
    found = []
    if captured.device_is_assumed:
        found.append(Warning_(code="no-gpu", message=NO_GPU))
        note = (
            "graphs were captured on the CPU and read as if on the GPU; "
            "library calls (attention, convolution) may differ"
        )
        found.append(Warning_(code="captured-on-cpu", message=note))
    if captured.graph_breaks:
        note = "the compiler broke the graph"
        found.append(Warning_(code="graph-break", message=note, count=captured.graph_breaks))
    return found


def _optimizer_warnings(workload: Workload) -> list[Warning_]:
    """The optimizer steps outside the graphs that rules look at."""
    if workload.optimizer is None:
        return []
    name = type(workload.optimizer).__name__
    note = (
        f"{name} updates the parameters outside the captured graphs: no finding covers it; "
        "analyze of a trace of the training loop does"
    )
    return [Warning_(code="optimizer-not-captured", message=note)]


def _clean_metrics(step: Step, options: ProfileOptions) -> dict[str, Metric]:
    values = time_steps({"step": step}, options.steps, options.warmup)["step"]
    middle = timing(values).median_ns
    return {"step_ns": _measured(middle, "ns", STEP_DEFINITION, per_step=tuple(values))}


def _measured(value: float, unit: str, definition: str, per_step: tuple[float, ...] = ()) -> Metric:
    return Metric(
        value=value, unit=unit, provenance="measured", definition=definition, per_step=per_step
    )


def _trace(step: Step, run: RunDirectory) -> Trace:
    record_steps(step, run.trace_path, steps=TRACED_STEPS)
    return read_trace(run.trace_path)


def _counters(step: Step, metrics: dict[str, Metric]) -> tuple[dict[str, Metric], list[Warning_]]:
    """GPM averages over about two seconds of steps; each is absent where the driver has none."""
    where = visible_device(torch.cuda.current_device(), os.environ)
    state = snapshot(where)
    repeats = max(3, min(2_000, 2_000_000_000 // max(_value(metrics, "step_ns") or 1, 1)))
    with GpmSampler(where) as sampler:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    found = sampler.counters
    if found is None:
        return {}, list(state.warnings)
    return _counter_metrics(found), [*state.warnings, *found.warnings]


def _counter_metrics(found: GpmCounters) -> dict[str, Metric]:
    values = {
        "dram_bandwidth_utilisation": found.dram_bandwidth_fraction,
        "sm_active": found.sm_active_fraction,
        "occupancy_measured": found.sm_occupancy_fraction,
        "tensor_active": found.tensor_active_fraction,
    }
    how = "average over repeated clean steps (NVML GPM)"
    return {
        name: _measured(value, "fraction", f"{COUNTER_DEFINITIONS[name]}, {how}")
        for name, value in values.items()
        if value is not None
    }


def _priced(
    graphs: Sequence[CapturedGraph], trace: Trace | None, eager: bool
) -> tuple[list[PricedGraph], list[Warning_]]:
    """The graphs with the prices of their nodes; warns of compiled ones whose kernels are unknown.

    What the ops would cost one by one says nothing of a compiled graph: it then gets no advice.
    """
    lowered = [item.lowered.graph for item in graphs]
    if trace is None:
        return [PricedGraph(graph) for graph in lowered], []
    if eager:
        return [PricedGraph(graph, eager_prices(graph, trace)) for graph in lowered], []
    prices = compiled_prices([(item.lowered.graph, _kernel_calls(item)) for item in graphs], trace)
    unknown = sum(not item.kernels for item in graphs)
    warnings = []
    if unknown:
        note = "the compiler did not say which nodes its kernels compute: no advice on this graph"
        warnings = [Warning_(code="kernels-unknown", message=note, count=unknown)]
    return [PricedGraph(*pair) for pair in zip(lowered, prices, strict=True)], warnings


def _kernel_calls(item: CapturedGraph) -> list[KernelCall]:
    """The kernel calls of a graph, their nodes by the names of the lowered graph."""
    aliases = item.lowered.fx_aliases.items()
    known = {n.name: value[1:].partition("#")[0] for value, nodes in aliases for n in nodes}
    return [
        (name, frozenset(known[n] for n in nodes if n in known)) for name, nodes in item.kernels
    ]


def _compiler_metrics(captured: Capture) -> dict[str, Metric]:
    graphs = "graphs the compiler made of one step (forward and backward each count)"
    breaks = "places where the compiler had to leave the graph"
    generated = any(graph.kernels for graph in captured.graphs)
    taken = "time to capture the step" + ("" if generated else ", without code generation")
    return {
        "graphs": _measured(len(captured.graphs), "count", graphs),
        "graph_breaks": _measured(captured.graph_breaks, "count", breaks),
        "compile_ns": _measured(captured.compile_ns, "ns", taken),
    }


def _value(metrics: dict[str, Metric], name: str) -> int | None:
    metric = metrics.get(name)
    return None if metric is None or metric.value is None else round(metric.value)


def _report(
    recorded: _Recorded,
    plans: tuple[PlanSummary, ...],
    findings: tuple[Finding, ...],
    balance: Balance | None,
) -> Report:
    graphs, trace = recorded.captured.graphs, recorded.trace
    fingerprints = "-".join(item.lowered.graph.fingerprint() for item in graphs)
    sources = [Source(kind="compiled graphs")]
    if trace is not None:
        sources += [Source(kind="kineto trace", path="trace.json.gz"), Source(kind="clean timing")]
    report = Report(
        tool=TOOL,
        created=now(),
        sources=tuple(sources),
        workload=WorkloadFacts(
            target=recorded.options.target,
            mode=recorded.options.mode,
            graph_hash=fingerprints or None,
            shapes=recorded.workload.shapes(),
            gpu=recorded.hardware.key,
            versions=versions(),
        ),
        hardware=recorded.hardware,
        metrics=recorded.metrics,
        kernels=kernel_rows(trace, trace.steps()) if trace is not None else (),
        findings=findings,
        recommended=recommend(findings, balance),
        plans=plans,
        warnings=recorded.warnings,
    )
    report.check()
    return report


def _hardware(gpu: Gpu, device: torch.device) -> Hardware:
    if device.type != "cuda":
        return hardware_of(gpu, gpu.name)
    driver = snapshot(visible_device(0, os.environ)).driver
    return hardware_of(gpu, torch.cuda.get_device_name(), present=True, driver=driver)


def _save(run: RunDirectory, options: ProfileOptions, report: Report, advice: Advice) -> None:
    for plan in advice.plans:
        run.write_plan(plan)
        run.write_kernel(plan.id, render(plan).text)
    run.write_report(report)
    run.write_info(
        RunInfo(
            id=run.id,
            created=report.created,
            target=options.target,
            arguments=tuple(_arguments(options)),
            working_directory=str(Path.cwd()),
            mode=options.mode,
            gpu=report.hardware.key,
            gpu_present=report.hardware.present,
            seed=options.seed,
            versions=versions(),
        )
    )
    sign(run)


def _arguments(options: ProfileOptions) -> Iterator[str]:
    for name, value in asdict(options).items():
        if name != "target" and value is not None:
            yield f"--{name}={value}"
