"""The verdict on one kernel, by a child of its own."""

from __future__ import annotations

from pathlib import Path

from advisor.model.applied import Numerics
from advisor.model.launch import LaunchConfig
from advisor.verify.numerics import NumericsProcess


def verify_numerics(
    plan: Path, kernel: Path, *, device: str, config: LaunchConfig, timeout_s: float | None = None
) -> Numerics:
    """What `apply` finds of a kernel; `device` is `cpu` or such as `cuda:0`."""
    with NumericsProcess(device) as process:
        return process.verify(plan, kernel, config, timeout_s)
