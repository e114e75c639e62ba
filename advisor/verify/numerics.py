"""Does the kernel compute what the plan says? All cases in a child process, GPU or interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model import base
from advisor.model.applied import NumericCase, Numerics
from advisor.model.launch import LaunchConfig

WORKER = "advisor.verify._numerics_worker"
Place = Literal["gpu", "interpreter"]


def verify_numerics(
    plan_path: Path,
    kernel_path: Path,
    *,
    device: str,
    config: LaunchConfig,
    timeout_s: float = 300.0,
) -> Numerics:
    """Run the worker; a crash, a hang or garbage output is a failed verdict with its reason."""
    environment = dict(os.environ)
    executed_on: Place = "gpu" if device == "cuda" else "interpreter"
    environment.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    command = [
        sys.executable,
        "-m",
        WORKER,
        str(plan_path),
        str(kernel_path),
        device,
        base.encode(config).decode(),
    ]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(executed_on, f"no result within {timeout_s:.0f} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _failed(
            executed_on, f"the kernel process ended with status {done.returncode}: {last[:300]}"
        )
    try:
        return base.decode(done.stdout.strip().splitlines()[-1].encode(), Numerics, WORKER)
    except (InvalidRecordError, IndexError):
        return _failed(executed_on, "the kernel process printed no verdict")


def _failed(executed_on: Place, why: str) -> Numerics:
    return Numerics(
        executed_on=executed_on,
        passed=False,
        cases=(NumericCase(name="run", passed=False, detail=why),),
    )
