"""Reports of recorded traces and of profiles say that steps ran on other sizes, and what holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from advisor.hardware.gpus import gpu_by_key
from advisor.pipeline.analyze import analyze
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.recording import Recording, read_recorded
from advisor.store import RunDirectory
from collectors.live.capture import Capture
from tests.builders import captured as models
from tests.builders.trace import event, kineto


def write_trace(path: Path, *rows: int) -> None:
    """One step a number of rows, of a product with so many."""
    events: list[dict[str, Any]] = []
    for number, size in enumerate(rows):
        at = 100.0 * number
        shapes = {"Input Dims": [[size, 16], [16, 4]], "Input type": ["float", "float"]}
        kernel = event(
            "kernel", "gemm", at + 12, 20, correlation=number + 1, stream=7, device=0,
            grid=[size, 1, 1], block=[128, 1, 1],
        )  # fmt: skip
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, 90),
            event("cpu_op", "aten::mm", at + 5, 10, **shapes),
            event("cuda_runtime", "cudaLaunchKernel", at + 6, 2, correlation=number + 1),
            {**kernel, "tid": 7},
        ]
    path.write_bytes(kineto(events))


def told(warnings: Any) -> list[str]:
    return [warning.message for warning in warnings if warning.code == "sizes-vary"]


def test_a_recorded_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, 8, 12)
    (line,) = told(analyze([path]).warnings)
    assert "aten::mm reads [[8, 16], [16, 4]] in step 0, [[12, 16], [16, 4]] in step 1" in line
    assert line.endswith("findings about ops are of the last step alone")
    write_trace(path, 8, 8)
    assert told(analyze([path]).warnings) == []


def test_a_profile_names_the_sizes_that_plans_are_of(tmp_path: Path) -> None:
    run = RunDirectory.create_at(tmp_path / "run")
    write_trace(run.trace_path, 8, 12)
    lowered = models.captured(torch.sin, torch.randn(8, 16))
    recording = Recording(
        ProfileOptions(target="x"), torch.device("cpu"), gpu_by_key("h200"), [],
        captured=Capture(graphs=list(lowered.graphs)), shapes=("float32[8, 16]",),
    )  # fmt: skip
    read_recorded(recording, run)
    (line,) = told(recording.warnings)
    assert line.endswith(
        "graphs, findings and plans are of the sizes of the captured step alone (float32[8, 16])"
    )
