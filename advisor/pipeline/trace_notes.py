"""What the reader of a report on a recorded trace should know about the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from advisor.hardware.gpu import Gpu
from advisor.model.base import Warning_
from advisor.model.trace import Trace
from advisor.report.words import NO_KERNELS, NO_STEPS
from analyzers.activities import NONE, activities, step_of
from collectors.ncu_trace import COUNTERS_ONLY

if TYPE_CHECKING:
    import pandas as pd

# Steps are unlike if the one that is looked at has so much fewer or more kernels than the median.
_UNLIKE = 0.2


def counters_only(trace: Trace) -> bool:
    """Whether it is a file of counters by itself: kernels run one by one, no host."""
    return any(warning.code == COUNTERS_ONLY for warning in trace.warnings)


def trace_notes(
    trace: Trace, steps: pd.DataFrame, given: int, gpu: Gpu | None, doubt: str
) -> tuple[Warning_, ...]:
    """Notes on one trace of `given` ranks; `doubt` says why its idle time is unreliable, or ""."""
    notes = [_ranks(trace, given), _unlike(trace, steps)]
    if not len(trace.kernels):
        text = (
            "no kernel of a GPU is in this trace, so nothing was judged: record with"
            " ProfilerActivity.CUDA, on the GPU; what runs on the CPU is not looked at"
        )
        return (*filter(None, notes), Warning_(code=NO_KERNELS, message=text))
    if doubt and not counters_only(trace):
        text = f"{doubt}: figures of time rest on a recording that is not what ran; record again"
        notes.append(Warning_(code="recording-doubtful", message=text))
    if not len(steps):
        text = "no range marks a step: 'per step' is of the whole recording"
        more = "" if counters_only(trace) else "; name the ranges of steps with --step-range"
        notes.append(Warning_(code=NO_STEPS, message=text + more))
    if len(trace.ops) and not trace.ops["input_shapes"].notna().any():
        text = (
            "no operand shapes were recorded, so who reads whom is unknown: profile with"
            " record_shapes=True to learn what can be fused"
        )
        notes.append(Warning_(code="shapes-missing", message=text))
    notes.append(_gpu(trace, gpu))
    return tuple(filter(None, notes))


def _ranks(trace: Trace, given: int) -> Warning_ | None:
    missing = trace.info.world_size - given
    if missing <= 0:
        return None
    text = f"the job has {trace.info.world_size} ranks, {given} of them were given"
    return Warning_(code="ranks-missing", message=text, count=missing)


def _gpu(trace: Trace, gpu: Gpu | None) -> Warning_ | None:
    if gpu is not None:
        return None
    names = trace.devices["name"].dropna().astype(str)
    what = f"the limits of {names.iloc[0][:80]} are" if len(names) else "the GPU is"
    text = (
        f"{what} unknown: savings rest on the kernels' own bandwidth alone, and whether"
        " fusing hurt is not judged; --gpu NAME adds the limits of a device"
    )
    return Warning_(code="gpu-unknown", message=text)


def _unlike(trace: Trace, steps: pd.DataFrame) -> Warning_ | None:
    """That the last step with kernels, which ops and savings are of, is not like the others."""
    found = activities(trace)
    owner = step_of(found, steps)[found.kernel]
    counts = np.bincount(owner[owner != NONE], minlength=len(steps))
    counts = counts[counts > 0]
    if len(counts) < 2:
        return None
    usual, last = float(np.median(counts)), int(counts[-1])
    if abs(last - usual) <= _UNLIKE * usual:
        return None
    text = (
        f"steps launch {int(counts.min()):,} to {int(counts.max()):,} kernels: ops and savings are"
        f" of the last one ({last:,}), metrics the median of all"
    )
    return Warning_(code="steps-unlike", message=text)
