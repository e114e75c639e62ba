"""Counters of single kernels for some cases: one process under Nsight Compute, joined by order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from advisor.model.base import Record
from collectors.live.ncu import METRICS, SECTIONS, find_ncu

from .model import Case

RAW, ORDER = "ncu_raw.csv", "ncu_order.json"


class Counted(Record, frozen=True, kw_only=True):
    """One run under Nsight Compute, in the order of the rows of the CSV."""

    id: str
    variant: str


def count(script: Path, folder: Path, cases: Sequence[Case], seconds: float) -> str:
    """Run `script --count` under ncu; what stands in the way is returned in a line."""
    ncu = find_ncu()
    if ncu is None:
        return "Nsight Compute is not installed"
    line = [
        ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw",
        "--log-file", str(folder / RAW), "--metrics", ",".join(METRICS),
        *(part for name in SECTIONS for part in ("--section", name)),
        sys.executable, str(script), "--out", str(folder), "--count", "--seconds", str(seconds),
        *(case.id for case in cases),
    ]  # fmt: skip
    limit = seconds + 40
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        why = f"ncu was stopped after {limit:.0f} s"
    else:
        why = "" if done.returncode == 0 else f"ncu failed: {(done.stderr or done.stdout)[-300:]}"
    if why:  # rows and their order no longer belong together
        for name in (RAW, f"{RAW}.gz", ORDER):
            (folder / name).unlink(missing_ok=True)
    return why


def run_counted(cases: Sequence[Case], folder: Path, seconds: float) -> None:
    """Under ncu: one run of each way of each case between marks, until the time is over."""
    import torch

    from . import build
    from .measure import cleared, prepare
    from .model import Scope

    prepare()
    ends, order = time.monotonic() + seconds, []
    for case in cases:
        if time.monotonic() > ends:
            break
        pair = build(case, Scope(torch.device("cuda")))
        for variant, run in (("fused", pair.fused), ("members", pair.members)):
            run()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            run()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
            order.append(Counted(id=case.id, variant=variant))
        (folder / ORDER).write_bytes(msgspec.json.encode(order))
        del pair, run
        cleared(case)
