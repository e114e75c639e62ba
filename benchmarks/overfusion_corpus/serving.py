"""The child's side: a case's name on standard input, an answer on standard output."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import msgspec
import torch

from advisor.hardware.gpus import find_gpu
from advisor.model.base import encode, load
from advisor.store.files import write_atomic
from advisor.verify.resources import resources_of

from . import all_cases, measure
from .crew import FAILED, Role, Rows
from .model import Case, Launch
from .records import Session

COMPILE_LIMIT_S = 150.0


def serve(role: Role, folder: Path, cores: tuple[int, ...]) -> None:
    """Answer until the parent closes the pipe. What a role raises ends the process."""
    if cores:
        os.sched_setaffinity(0, cores)
    # Compilers print: only answers may go where the parent reads.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    cases = {case.id: case for case in all_cases()}
    if role != "size":
        measure.prepare()
    answers.write("ready\n")
    for line in sys.stdin:
        case = cases[line.strip()]
        if role == "size":
            answers.write(msgspec.json.encode(sizes(case, folder)).decode() + "\n")
        elif role == "warm":
            measure.warm(case)
            answers.write("done\n")
        else:
            _measure(case, folder)
            measure.cleared(case)
            answers.write("done\n")


def sizes(case: Case, folder: Path) -> Rows:
    """What the binaries of a case's own kernels need on the GPU of the recording."""
    gpu = find_gpu(load(folder / "session.json", Session).gpu)
    assert gpu is not None
    unique: dict[str, Launch] = {}
    for found in measure.launches(case).values():
        unique.update({measure.key_of(launch): launch for launch in found})
    rows = resources_of(
        [launch.request for launch in unique.values()], (gpu,), timeout_s=COMPILE_LIMIT_S,
        cache=folder / "cache" / "resources", processes=1,
    )  # fmt: skip
    return {key: row for key, (row,) in zip(unique, rows, strict=True)}


def _measure(case: Case, folder: Path) -> None:
    """Measure and write; a case that cannot be run leaves its reason, unless the GPU is lost."""
    failed = folder / FAILED / f"{case.id}.txt"
    try:
        result = measure.measure(case, folder)
    except Exception as error:  # compilers and drivers raise anything
        failed.parent.mkdir(exist_ok=True)
        failed.write_text(traceback.format_exc())
        sys.stderr.write(f"{case.id}: {type(error).__name__}\n")
        if not usable():
            raise
        return
    failed.unlink(missing_ok=True)
    # Last and at once: who has a result has its traces.
    write_atomic(folder / "cases" / f"{case.id}.json", encode(result))
    low, middle, high = result.ratio
    time_us = result.fused.time.median_ns / 1e3
    sys.stderr.write(f"{case.id}: {middle:.3f} ({low:.3f} to {high:.3f}), {time_us:.1f} us\n")


def usable() -> bool:
    """False if a kernel has broken the process's context: nothing runs in it any more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
