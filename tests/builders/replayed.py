"""Steps to replay in a few lines: equal launches of one thread on one stream, times in µs."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.range_names import STEP_PREFIX
from analyzers.exposure import Exposure, exposure_of
from tests.builders.trace import Timeline


def steady_exposure(
    kernels_us: Sequence[float], *, every_us: float, clean_us: float | None = None
) -> Exposure:
    """A step whose operators take `every_us` of the host's time and launch one kernel each.

    Kernel k is row k of the trace. `clean_us` is the step without a profiler, None: a bare trace.
    """
    line = Timeline()
    device = 0.0
    for place, length in enumerate(kernels_us):
        at = 10 + place * every_us
        line.op("aten::op", at - 0.9 * every_us / 2, 0.9 * every_us)
        call = line.launch(at)
        device = max(device, at + 4)
        line.kernel(device, length, correlation=call)
        device += length + 1
    end = max(10 + len(kernels_us) * every_us, device)
    line.range(f"{STEP_PREFIX}0", 5 - every_us / 2, end)
    trace = line.build()
    clean = None if clean_us is None else round(1_000 * clean_us)
    found = exposure_of(trace, trace.steps(), clean)
    assert found is not None
    return found
