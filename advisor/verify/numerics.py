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
from advisor.verify.endings import how_it_ended

WORKER = "advisor.verify._numerics_worker"
Place = Literal["gpu", "interpreter"]
# All cases, and importing torch, take seconds on a GPU; the interpreter runs row by row.
LIMITS_S: dict[Place, float] = {"gpu": 120.0, "interpreter": 300.0}


def verify_numerics(
    plan_path: Path,
    kernel_path: Path,
    *,
    device: str,
    config: LaunchConfig,
    timeout_s: float | None = None,
) -> Numerics:
    """Run the worker; a crash, a hang or garbage output is a failed verdict with its reason.

    `device` is `cpu` or a GPU, such as `cuda:1`. There is a limit of `timeout_s`, else `LIMITS_S`.
    """
    environment = dict(os.environ)
    executed_on: Place = "interpreter" if device == "cpu" else "gpu"
    limit_s = LIMITS_S[executed_on] if timeout_s is None else timeout_s
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
            command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(executed_on, f"it has no end within {limit_s:.0f} s")
    if done.returncode != 0:
        return _failed(executed_on, how_it_ended(done.returncode, done.stderr))
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
