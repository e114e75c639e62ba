"""Run in a mount namespace of its own, where a small disk is full: what is told of compilations.

Arguments: the folder of that disk, an empty one elsewhere, and what to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.gpus import gpu_by_key

H200 = gpu_by_key("h200")


def quiet(*_: object, **__: object) -> None:
    """Progress nobody reads."""


def say(line: str) -> None:
    """For the test that started this."""
    sys.stdout.write(f"{line}\n")


def size(full: Path, empty: Path) -> None:
    """Make a candidate ready whose kernels are compiled on the full disk."""
    os.environ["TRITON_CACHE_DIR"] = str(full)
    size_elsewhere(full, empty)


def size_elsewhere(full: Path, empty: Path) -> None:
    """The same where only the variables of the process say what is written there."""
    from advisor.pipeline import candidates as stages
    from tests.model import builders

    plan = builders.plan()
    found = {plan.id: stages.Candidate(plan)}
    stages.generate(found, empty / "kernels", quiet)
    try:
        stages.size(found, [H200], H200, quiet)
    finally:
        say(f"refused: {found[plan.id].refused}")


def step(full: Path, empty: Path) -> None:
    """Compile a step whose code goes to the full disk."""
    import torch
    from torch import nn

    from advisor.pipeline.measure import Bench
    from collectors.live.workload import Workload

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(full)
    work = Workload("w", "inference", torch.device("cpu"), nn.GELU(), (torch.randn(8, 8),))
    Bench(work, lambda: work)


WHAT: dict[str, Callable[[Path, Path], None]] = {
    "size": size,
    "size_elsewhere": size_elsewhere,
    "step": step,
}


def main(full: str, empty: str, what: str) -> None:
    """Say how it ended."""
    try:
        WHAT[what](Path(full), Path(empty))
    except AdvisorError as error:
        say(f"{error.code}: {error.line()}")
    else:
        say("it ended well")


if __name__ == "__main__":
    main(*sys.argv[1:])
