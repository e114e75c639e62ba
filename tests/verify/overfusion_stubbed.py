"""Child of `test_overfusion_recording`: the recorder where a GPU is only said to be.

All but what would run on it (processes, files, labels, archive, binaries) is the recorder's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import overfusion_record
import torch
from overfusion_corpus import build, crew, measure
from overfusion_corpus.model import Case, Scope
from overfusion_corpus.records import Compiled, Result, Variant

from advisor.model.applied import Timing
from tests.builders.forked import Forked, Here

TIME = Timing(median_ns=1000, low_ns=900, high_ns=1100, samples=9)


def measured(case: Case, folder: Path) -> Result:
    """A result that took a while."""
    time.sleep(0.7)
    for way in ("fused", "members"):
        path = folder / "traces" / f"{case.id}.{way}.json.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
    ways = {
        name: Variant(
            time=TIME,
            launches=tuple(
                Compiled(request=measure.portable(one).request, programs=one.programs)
                for one in launches
            ),
        )
        for name, launches in measure.launches(case).items()
    }
    middle = 0.7 if case.value == case.neutral else 1.5
    return Result(
        case=case, fused=ways["fused"], members=ways["members"],
        ratio=(middle - 0.01, middle, middle + 0.01),
        moved_bytes=build(case, Scope(torch.device("meta"))).moved_bytes,
        concurrent=False, error=0.0,
    )  # fmt: skip


def nothing(*_: object) -> None:
    """In place of what a GPU does."""


measure.warm, measure.measure, measure.prepare = nothing, measured, nothing
torch.cuda.device_count = lambda: 1
torch.cuda.synchronize = nothing
torch.cuda.get_device_name = lambda *_: "NVIDIA H200"

if __name__ == "__main__":
    if "--serve" in sys.argv:
        raise SystemExit(overfusion_record.main(sys.argv[1:]))
    # Its children are forked: they import what this process has.
    with Forked((), popen=Here().popen) as forked:
        crew.subprocess = forked.module  # type: ignore[attr-defined]
        raise SystemExit(overfusion_record.main(sys.argv[1:]))
