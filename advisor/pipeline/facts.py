"""What every report says of the tool, the moment and the device; importing it imports no torch."""

from __future__ import annotations

import contextlib
import platform
import sys
from datetime import datetime, timezone
from importlib import metadata
from typing import get_args

from advisor import __version__
from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.hardware.gpus import find_gpu
from advisor.hardware.roofline import bandwidth_of
from advisor.model.report import Hardware, Tool

TOOL = Tool(name="fusion-advisor", version=__version__)


def now() -> str:
    """The present moment, UTC, ISO 8601 to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """The versions that results depend on; what is not installed is left out."""
    found = {"python": platform.python_version(), TOOL.name: TOOL.version}
    for name in ("torch", "triton", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _peaks(gpu: Gpu) -> dict[str, int]:
    """Peaks by arithmetic, FLOP/s; units that the GPU has not are left out."""
    found = ((name, gpu.peak_flops(name)) for name in get_args(Arithmetic))
    return {name: round(peak) for name, peak in found if peak is not None}


def hardware_of(
    gpu: Gpu, name: str, *, present: bool = False, driver: str | None = None
) -> Hardware:
    """A GPU of the table as a report shows it, under the name that the machine or trace gives.

    A name that is not this GPU's (priced as a near one) gets none of its figures.
    """
    if name != gpu.name and find_gpu(name) != gpu:
        return Hardware(name=name, driver=driver, present=present)
    return Hardware(
        name=name,
        key=gpu.key,
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.sm_count,
        dram_bandwidth_bytes_per_s=bandwidth_of(gpu),
        dram_bandwidth_provenance="estimated",
        l2_bytes=gpu.l2_bytes,
        peak_flops=_peaks(gpu),
        driver=driver,
        present=present,
    )
