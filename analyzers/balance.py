"""How long a step takes and how long the device works in it: the figures that rules compare with.

They say what is worth a look. What a change saves on the critical path is replayed (`exposure`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Balance:
    """Device-busy time of a step, and its span: clean (no profiler), else as profiled."""

    device_ns: int
    span_ns: int
    clean: bool
