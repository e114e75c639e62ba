"""Which plans pay: decisions from measurements, nothing else. Every verdict carries its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from advisor.model.applied import Comparison
from advisor.units import format_bytes, format_ns

# A gain below a thousandth of the region is within what clocks and neighbours move between runs.
LEAST_GAIN_FRACTION = 0.001
# Peak memory moves by less between two runs of one step: the allocator's blocks are coarse.
LEAST_MEMORY_FRACTION = 0.02


@dataclass(frozen=True)
class Judgement:
    """Keep or not, and why; what does not apply to the workload was not judged at all.

    What was not `tried` is neither good nor bad: nobody knows.
    """

    keep: bool
    reason: str
    applies: bool = True
    tried: bool = True


def judge_region(comparison: Comparison) -> Judgement:
    """A plan (or a set of plans) is kept when the lower bound of its gain is above noise."""
    before, gain = comparison.before.median_ns, comparison.gain_mid_ns
    span = f"{format_ns(comparison.gain_low_ns)} to {format_ns(comparison.gain_high_ns)}"
    if comparison.gain_low_ns > 0 and gain >= LEAST_GAIN_FRACTION * before:
        return Judgement(
            True, f"the compiled step spends {format_ns(gain)} less on the GPU ({span})"
        )
    if comparison.gain_high_ns < 0:
        return Judgement(
            False, f"the compiled step spends {format_ns(-gain)} more on the GPU ({span} saved)"
        )
    return Judgement(False, f"no gain beyond noise in the compiled step: {span} saved")


def judge_set(gpu: Comparison, step: Comparison) -> Judgement:
    """The kept plans together: GPU time must fall, and the step must not get slower."""
    region = judge_region(gpu)
    if not region.keep:
        return region
    if step.gain_high_ns < 0:
        return Judgement(
            False, f"GPU time fell, but the step got {format_ns(-step.gain_mid_ns)} slower"
        )
    return region


def judge_action(gpu: Comparison, step: Comparison) -> Judgement:
    """An action pays by the step's time, or by GPU time that a later one may expose."""
    before, gain = step.before.median_ns, step.gain_mid_ns
    span = f"{format_ns(step.gain_low_ns)} to {format_ns(step.gain_high_ns)}"
    if step.gain_low_ns > 0 and gain >= LEAST_GAIN_FRACTION * before:
        return Judgement(True, f"the step takes {format_ns(gain)} less ({span})")
    if step.gain_high_ns < 0:
        return Judgement(False, f"the step takes {format_ns(-gain)} more ({span} saved)")
    region = judge_region(gpu)
    if region.keep:
        return region
    return Judgement(False, f"no gain beyond noise in the step: {span} saved")


def judge_memory(by_time: Judgement, step: Comparison, before: int, after: int) -> Judgement:
    """What is done for memory, judged by time already, is kept where it saves some and costs none.

    `before` and `after` are peaks, bytes.
    """
    saved = before - after
    if saved < LEAST_MEMORY_FRACTION * before:
        return by_time
    falls = f"peak memory falls by {format_bytes(saved)}"
    if by_time.keep or step.gain_high_ns < 0:
        return replace(by_time, reason=f"{by_time.reason}; {falls}")
    return Judgement(True, f"{falls}, and the step gets no slower")


def outputs_agree(error: float, baseline: float, resolution: float) -> bool:
    """Whether our outputs are as close to eager's as the compiler's own are.

    `error` and `baseline` are norms of the difference over the norm of eager's outputs;
    `resolution` is the machine epsilon of their dtype.
    """
    return math.isfinite(error) and error <= max(2.0 * baseline, 2.0 * resolution)
