"""A workload recorded stage by stage; what is known when a stage fails is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any

import torch
from msgspec.structs import replace

from advisor.hardware.gpu import Gpu
from advisor.model.base import Warning_
from advisor.model.report import Commit, DeviceState, Hardware, Metric
from advisor.model.trace import Trace
from advisor.pipeline.device_state import device_state, throttle_warnings
from advisor.pipeline.execution import is_worth_observing, observe, rehearse
from advisor.pipeline.facts import hardware_of
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.ranks import rank_here
from advisor.pipeline.run_notes import between_steps, own_warnings, within_step
from advisor.pipeline.source_commit import commit_of
from advisor.store import RunDirectory
from advisor.verify.statistics import timing
from advisor.verify.timing import time_steps
from analyzers.execution_graph import ExecutedPart
from analyzers.metrics import trace_metrics
from analyzers.rules.graph_breaks import place_text
from analyzers.step_sizes import LAST_STEP, sizes_vary
from collectors import read_trace
from collectors.live.capture import Capture, capture
from collectors.live.closures import takes_closure
from collectors.live.loss_outside import WatchedLoss
from collectors.live.module_calls import ModuleCalls
from collectors.live.nvml import GpmCounters, GpmSampler, GpuSnapshot, snapshot, visible_device
from collectors.live.recorder import TRACED_STEPS, record_steps
from collectors.live.target import source_file
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
# One op has nothing beside it to fuse with.
FEWEST_OUTSIDE = 2
_CROSS_ENTROPY = frozenset(("nll_loss", "log_softmax"))
NO_GPU = (
    "no GPU on this machine: prices are modelled, what the step waits for is unknown, nothing is "
    "timed"
)


@dataclass
class Recording:
    """What is known of a workload so far; it grows with every stage.

    `part` is what was captured, `calls` which modules it called.
    """

    options: ProfileOptions
    device: torch.device
    gpu: Gpu
    warnings: list[Warning_]
    captured: Capture = field(default_factory=Capture)
    part: Any = None
    calls: ModuleCalls | None = None
    shapes: tuple[str, ...] = ()
    commit: Commit | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    trace: Trace | None = None
    executed: tuple[ExecutedPart, ...] = ()
    counters_path: str | None = None
    state_before: DeviceState | None = None
    state_after: DeviceState | None = None

    @property
    def worth_keeping(self) -> bool:
        """Whether anything was learnt that a report can say."""
        return bool(self.captured.graphs or self.metrics)

    def value(self, name: str) -> int | None:
        """A metric as an integer; None if it is unknown."""
        metric = self.metrics.get(name)
        return None if metric is None or metric.value is None else round(metric.value)

    def hardware(self) -> Hardware:
        """The device that the figures are of: the one present, or the one that is priced."""
        if self.device.type != "cuda":
            return hardware_of(self.gpu, self.gpu.name)
        driver = snapshot(visible_device(0, os.environ)).driver
        found = hardware_of(self.gpu, torch.cuda.get_device_name(), present=True, driver=driver)
        return replace(found, state_before=self.state_before, state_after=self.state_after)


def record_workload(
    recording: Recording, run: RunDirectory, announce: Announce, keep: Callable[[], None]
) -> None:
    """Build what a factory returns, capture it and, with a GPU, time and trace it.

    `keep` is called before each stage that may take the process down with it.
    """
    options, device = recording.options, recording.device
    announce("load", f"building {options.target} on {device.type}")
    workload = load_workload(options.target, device, seed=options.seed)
    recording.shapes = workload.shapes()
    recording.warnings += closure_warnings(workload.optimizer)
    recording.commit = commit_of(source_file(options.target))
    announce("capture", "compiling and reading the graphs")
    # On a GPU the execution trace tells of it, and nothing may stand in a step that is timed.
    watched = WatchedLoss(workload.loss) if workload.loss and device.type != "cuda" else None
    recording.part, recording.calls = workload.part, ModuleCalls()
    recording.captured, compiled = capture(
        replaced(workload, loss=watched or workload.loss),
        generate_code=device.type == "cuda" and options.mode == "compile",
        eager=options.mode == "eager",
        # On a GPU the traced steps tell it.
        again=device.type != "cuda" and workload.kind != "inference",
        look=recording.calls.look,
    )
    recording.warnings += capture_warnings(recording.captured)
    recording.warnings += within_step(recording.captured)
    recording.warnings += between_steps(recording.captured)
    recording.warnings += own_warnings(recording.captured)
    if device.type != "cuda":
        recording.warnings += unseen_warnings(recording.captured, watched)
        take_execution(recording, rehearse(workload, recording.captured))
    else:
        _measure(recording, run, workload, compiled, announce, keep)


def _measure(
    recording: Recording,
    run: RunDirectory,
    workload: Workload,
    compiled: Step | None,
    announce: Announce,
    keep: Callable[[], None],
) -> None:
    """Time and trace the steps of a workload on a GPU, as `compiled` or as eager code runs them."""
    options, step = recording.options, compiled or workload.step_of()
    keep()
    recording.state_before = device_state(snapshot(device_here()))
    announce("time", f"timing {options.steps} clean steps")
    recording.metrics |= clean_metrics(_clean_times(step, options))
    keep()
    announce("trace", "recording a trace")
    record_steps(step, run.trace_path, steps=TRACED_STEPS)
    read_recorded(recording, run)
    keep()
    if recording.trace is not None and is_worth_observing(workload, recording.captured):
        announce("execution", "recording which op reads whose result")
        found = observe(workload, compiled, recording.captured, recording.trace)
        take_execution(recording, found)
        keep()
    announce("counters", "sampling the GPU's counters")
    _count(step, recording)


def capture_warnings(captured: Capture) -> list[Warning_]:
    """What the reader should know of how the graphs were captured."""
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


def closure_warnings(optimizer: torch.optim.Optimizer | None) -> list[Warning_]:
    """What figures are of, where a step evaluates the loss as often as the optimizer likes."""
    if optimizer is None or not takes_closure(optimizer):
        return []
    note = (
        f"{type(optimizer).__name__} evaluates model and loss several times a step: what findings "
        "save is of one evaluation, times of the step are of all"
    )
    return [Warning_(code="several-evaluations", message=note)]


def unseen_warnings(captured: Capture, loss: WatchedLoss | None) -> list[Warning_]:
    """What runs in no captured graph; without a GPU no trace of the step tells of it."""
    if not captured.graphs:
        note = "the compiler saw no op of the step"
        left = [item for item in captured.facts.graph_breaks if item.left_to_eager]
        if left:
            at = place_text(left[0].location, None)
            note += f": it leaves {left[0].left_to_eager[-1]} to eager, at {at}: {left[0].reason}"
        elif loss is not None:
            note += ": loss(model) has to call the model that it is given"
        return [Warning_(code="no-graphs", message=note)]
    outside = tuple(dict.fromkeys(loss.outside)) if loss is not None else ()
    if len(outside) < FEWEST_OUTSIDE:
        return []
    note = (
        f"what the loss computes outside the model ({', '.join(outside)}) is in no graph, so no "
        "finding covers it; with a GPU, or inside the model, it is"
    )
    if set(outside) >= _CROSS_ENTROPY:
        note += ". `apply` looks at model and loss as one function for the loss in pieces"
    return [Warning_(code="loss-not-captured", message=note)]


def take_execution(
    recording: Recording, found: tuple[tuple[ExecutedPart, ...], list[Warning_]]
) -> None:
    """Take up the parts of the step that no captured graph covers."""
    recording.executed, warnings = found
    recording.warnings += warnings


def _clean_times(step: Step, options: ProfileOptions) -> list[int]:
    return time_steps({"step": step}, options.steps, options.warmup)["step"]


def clean_metrics(times_ns: list[int]) -> dict[str, Metric]:
    """The clean step from its times, in ns."""
    middle = timing(times_ns).median_ns
    return {"step_ns": measured(middle, "ns", STEP_DEFINITION, per_step=tuple(times_ns))}


def measured(value: float, unit: str, definition: str, per_step: tuple[float, ...] = ()) -> Metric:
    """A metric that was measured here."""
    return Metric(
        value=value, unit=unit, provenance="measured", definition=definition, per_step=per_step
    )


def read_recorded(recording: Recording, run: RunDirectory) -> None:
    """Take up the trace that was recorded into the run."""
    recording.trace = read_trace(run.trace_path)
    recording.metrics |= trace_metrics(recording.trace)
    recording.warnings += recording.trace.warnings
    recording.warnings += sizes_vary(recording.trace, recording.trace.steps(), _sizes_of(recording))


def _sizes_of(recording: Recording) -> str:
    """Of which sizes graphs and findings are, where those of steps vary."""
    if not recording.captured.graphs:
        return LAST_STEP
    told = f" ({', '.join(recording.shapes)})" if recording.shapes else ""
    return f"graphs, findings and plans are of the sizes of the captured step alone{told}"


def _count(step: Step, recording: Recording) -> None:
    """GPM averages over about two seconds of steps; each is absent where the driver has none."""
    where = device_here()
    with GpmSampler(where) as sampler:
        for _ in range(counted_steps(recording)):
            step()
        # While the GPU is at work: an idle one is not held back.
        state = snapshot(where)
        torch.cuda.synchronize()
    take_counters(recording, sampler, state)


def counted_steps(recording: Recording) -> int:
    """How many clean steps take about two seconds; ranks must all do as many."""
    if rank_here() is not None:
        return recording.options.steps
    return max(3, min(2_000, 2_000_000_000 // max(recording.value("step_ns") or 1, 1)))


def take_counters(recording: Recording, sampler: GpmSampler, state: GpuSnapshot) -> None:
    """Take up what was sampled while steps ran, and the state of the device at their end."""
    recording.state_after = device_state(state)
    recording.warnings += state.warnings
    recording.warnings += throttle_warnings(recording.state_after)
    if sampler.counters is not None:
        recording.metrics |= _counter_metrics(sampler.counters)
        recording.warnings += sampler.counters.warnings


def device_here() -> int | str:
    """The present GPU as NVML knows it."""
    return visible_device(torch.cuda.current_device(), os.environ)


def _counter_metrics(found: GpmCounters) -> dict[str, Metric]:
    values = {
        "dram_bandwidth_utilisation": found.dram_bandwidth_fraction,
        "sm_active": found.sm_active_fraction,
        "occupancy_measured": found.sm_occupancy_fraction,
        "tensor_active": found.tensor_active_fraction,
    }
    how = "average over repeated clean steps (NVML GPM)"
    return {
        name: measured(value, "fraction", f"{COUNTER_DEFINITIONS[name]}, {how}")
        for name, value in values.items()
        if value is not None
    }
