"""GPU-busy time of variants that are run in turn, by the profiler."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from analyzers.metrics import gpu_busy_by_range
from collectors import read_trace
from collectors.live.recorder import VARIANT_PREFIX, record_variants


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
