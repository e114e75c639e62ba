"""`profile --ncu`: what stands in the way is one line; options come back as they were given."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from advisor.hardware.gpus import gpu_by_key
from advisor.pipeline import counters
from advisor.pipeline.counters import count_kernels
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.recording import Recording
from advisor.store import RunDirectory
from analyzers.metrics import kernel_rows
from collectors import read_trace
from collectors.ncu import read_ncu
from tests.pipeline.test_analyze_counters import SAMPLE, counters_of


def recording(target: str = "net.py:make") -> Recording:
    options = ProfileOptions(target=target, ncu=True)
    return Recording(options, torch.device("cpu"), gpu_by_key("h200"), [])


def test_without_a_gpu_the_profile_goes_on(tmp_path: Path) -> None:
    held = recording()
    count_kernels(held, RunDirectory.create_at(tmp_path / "run"))
    assert ["need a GPU" in warning.message for warning in held.warnings] == [True]


def test_a_script_is_not_run_a_second_time(tmp_path: Path) -> None:
    held = recording("train.py")
    held.trace = read_trace(SAMPLE)
    count_kernels(held, RunDirectory.create_at(tmp_path / "run"))
    assert ["name a factory" in warning.message for warning in held.warnings] == [True]


def test_counters_reach_trace_metrics_and_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ncu needs a GPU: here it gives the file that it would have written."""
    file = counters_of(SAMPLE, tmp_path / "ncu.csv")
    monkeypatch.setattr(counters, "count_step", lambda *_: (read_ncu(file), ()))
    held = recording()
    held.trace = read_trace(SAMPLE)
    count_kernels(held, RunDirectory.create_at(tmp_path / "run"))
    assert held.warnings == []
    assert held.counters_path == "ncu.csv"
    rows = kernel_rows(held.trace, held.trace.steps())
    assert held.metrics["dram_bytes"].value == sum(row.dram_bytes or 0 for row in rows) > 0


@pytest.mark.parametrize("asked", [{"ncu": True, "warmup": 0}, {"gpu": "a100"}, {}])
def test_options_come_back_from_what_a_run_keeps(asked: dict[str, object]) -> None:
    options = ProfileOptions(target="x", **asked)  # type: ignore[arg-type]
    pairs = (argument.removeprefix("--").partition("=") for argument in options.arguments())
    given = {name: value for name, _, value in pairs} | {"target": "x"}
    assert msgspec.convert(given, ProfileOptions, strict=False) == options
