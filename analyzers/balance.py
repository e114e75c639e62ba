"""What a saving is worth on the critical path, from a step's device and host time.

A step takes the longer of two timelines: step = max(host, device). Removing g of device time and h
of host time shortens it by max(H, G) − max(H − h, G − g). With a clean step time H is known; a bare
trace shows only the step that the profiler stretched. `STRETCH` is the range of profiled over clean
host time in recorded workloads (0.8–2.1 for whole steps): the cautious end gives the middle of the
range, no stretch at all the upper bound, and the lower bound is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.base import Range
from advisor.units import format_fraction

# Profiled step over clean step, host-bound workloads on an H200 with shapes recorded: 1.4 to 2.1;
# single steps reach 2.8.
STRETCH = 2.1
WORST_STRETCH = 3.0


@dataclass(frozen=True)
class Balance:
    """Device-busy time of a step, and its span: clean (no profiler), else as profiled."""

    device_ns: int
    span_ns: int
    clean: bool

    def host_ns(self, stretch: float) -> float:
        """Host time of the step if the profiler stretched it so much (a clean step: not at all)."""
        return self.span_ns if self.clean else self.span_ns / stretch

    def saved(self, device_ns: float, host_ns: float, stretch: float) -> float:
        """By how much the step gets shorter; `host_ns` is as profiled."""
        host, device = self.host_ns(stretch), float(self.device_ns)
        gone = host_ns if self.clean else host_ns / stretch
        after = max(host - gone, device - device_ns, 0.0)
        return max(host, device) - after

    def exposed(self, device: Range, host_ns: int) -> Range:
        """The saving on the critical path: an upper-bound range from a bare trace."""
        stretches = (1.0,) if self.clean else (STRETCH, 1.0)
        mid = round(max(self.saved(device.mid, host_ns, stretches[0]), 0.0))
        high = round(max(self.saved(device.high, host_ns, s) for s in stretches))
        low = round(max(self.saved(device.low, 0, 1.0), 0.0)) if self.clean else 0
        return Range(low=min(low, mid), mid=mid, high=max(high, mid))

    def text(self) -> str:
        """The sentence that goes with every such range."""
        share = min(self.device_ns / self.span_ns, 1.0) if self.span_ns else 0.0
        if self.clean:
            return f"the GPU is busy for {format_fraction(share)} of the clean step"
        return (
            f"upper bound from a bare trace: the GPU is busy for {format_fraction(share)} of the "
            f"profiled step, and profiling stretches the host's part up to {STRETCH} times"
        )
