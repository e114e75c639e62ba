"""The parts of a step that no captured graph covers, as exact graphs: optimizer, loss, the rest."""

from __future__ import annotations

import tempfile
from pathlib import Path

from advisor.errors import WorkloadError
from advisor.model.base import Warning_
from advisor.model.trace import Trace
from analyzers.execution_graph import ExecutedPart, executed_parts
from collectors.live.capture import Capture
from collectors.live.closures import takes_closure
from collectors.live.execution_trace import Execution, marked, record_execution
from collectors.live.optimizer_step import MAX_PARAMETER_BYTES, rehearsed_step
from collectors.live.workload import Step, Workload

OPTIMIZER_OPS = ("_foreach_", "_fused_", "addcdiv", "lerp")
Found = tuple[tuple[ExecutedPart, ...], list[Warning_]]


def is_worth_observing(workload: Workload, captured: Capture) -> bool:
    """Whether something may run outside the captured graphs: all but whole inference steps."""
    return workload.kind != "inference" or bool(captured.graph_breaks)


def observe(workload: Workload, compiled: Step | None, captured: Capture, timed: Trace) -> Found:
    """One more step under the execution trace observer, its ops timed by `timed`."""
    device = workload.device.type
    if compiled is not None:
        # Compiled regions have ranges of their own; a hook on the module might compile it again.
        found = _recorded(compiled, device, timeline=True)
    else:
        with marked(workload) as step:
            found = _recorded(step, device, timeline=True)
    parts, warnings = executed_parts(found.trace, found.decomposed, found.timeline, timed)
    seen = _sees(captured)
    kept = tuple(part for part in parts if not (part.part == "optimizer" and seen))
    missing = workload.optimizer is not None and not seen
    if missing and not any(part.part == "optimizer" for part in kept):
        note = f"no step of {type(workload.optimizer).__name__} was observed"
        return kept, [*warnings, _not_captured(note)]
    return kept, list(warnings)


def _recorded(step: Step, device: str, *, timeline: bool) -> Execution:
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-") as folder:
        path = Path(folder) / "execution_trace.json"
        return record_execution(step, path, device, timeline=timeline)


def rehearse(workload: Workload, captured: Capture) -> Found:
    """Without a GPU: the optimizer's step on copies, with the ops that it would run on one."""
    if workload.optimizer is None or _sees(captured):
        return (), []
    name = type(workload.optimizer).__name__
    if takes_closure(workload.optimizer):
        return (), [_not_captured(f"what {name} does between calls of the loss")]
    try:
        step = rehearsed_step(workload.optimizer, as_if_cuda=True)
    except WorkloadError as error:
        return (), [_not_captured(error.line())]
    if step is None:
        limit = f"{MAX_PARAMETER_BYTES >> 30} GiB of parameters"
        return (), [_not_captured(f"{name} updates more than {limit}, too many to rehearse here")]
    found = _recorded(step, "cpu", timeline=False)
    parts, warnings = executed_parts(found.trace, found.decomposed)
    return tuple(part for part in parts if part.part == "optimizer"), list(warnings)


def _not_captured(why: str) -> Warning_:
    note = f"{why}: no finding covers it; analyze of a trace of the training loop does"
    return Warning_(code="optimizer-not-captured", message=note)


def _sees(captured: Capture) -> bool:
    """Whether a captured graph holds an optimizer's update already."""
    return any(
        any(word in node.label for word in OPTIMIZER_OPS)
        for item in captured.graphs
        for node in item.lowered.graph.nodes
    )
