"""The program that ncu runs: builds a workload, warms it up, and marks one step to be counted.

`python -m collectors.live._ncu_step TARGET MODE SEED WARMUP DIRECTORY`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from advisor.errors import AdvisorError
from collectors.live.workload import load_workload


def main(arguments: list[str]) -> int:
    """Run it; 0, or 3 with the error in one line."""
    target, mode, seed, warmup, directory = arguments
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        workload = load_workload(target, device, seed=int(seed), directory=Path(directory))
        step = workload.step_of(torch.compile if mode == "compile" else None)
        for _ in range(max(int(warmup), 1)):
            step()
        counted(step)
    except AdvisorError as error:
        sys.stderr.write(f"Error: {error.line()}\n")
        return 3
    return 0


def counted(step: Callable[[], Any]) -> None:
    """One step between the marks that `--profile-from-start off` waits for."""
    if not torch.cuda.is_available():
        step()
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
