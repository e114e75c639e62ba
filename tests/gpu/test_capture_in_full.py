"""Capture in full on a GPU: execution trace joined, compiler facts, device state, ncu."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from advisor.model.range_names import STEP_PREFIX
from advisor.model.report import Report
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.store import RunDirectory
from analyzers.host_time import KINDS
from collectors import read_trace
from collectors.live.ncu import find_ncu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
TRAIN = "sample:transformer_block:train"


def profiled(folder: Path, **options: object) -> tuple[Report, RunDirectory]:
    run = RunDirectory.create_at(folder / "run")
    asked = ProfileOptions(target=TRAIN, steps=5, **options)  # type: ignore[arg-type]
    return profile(asked, run, lambda stage, text: None), run


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_the_optimizer_is_covered_with_measured_times(tmp_path: Path, mode: str) -> None:
    report, _ = profiled(tmp_path, mode=mode)
    codes = {warning.code for warning in report.warnings}
    assert not {"optimizer-not-captured", "execution-unjoined"} & codes
    (found,) = [f for f in report.findings if f.rule == "optimizer-updates"]
    assert found.provenance == "exact"
    times = [evidence for evidence in found.evidence if evidence.kind == "time"]
    assert "modelled" not in times[0].text
    # The optimizer's kernels of the step, by their own names, take about as long.
    updates = sum(row.time_ns for row in report.kernels if "multi_tensor_apply" in row.name)
    before = times[0].values["before_ns"]
    assert isinstance(before, int)
    assert updates * 0.7 < before < updates * 1.1


def test_host_time_adds_up_and_the_device_has_a_state(tmp_path: Path) -> None:
    report, run = profiled(tmp_path)
    steps = read_trace(run.trace_path).steps(STEP_PREFIX)
    parts = [report.metrics[f"host_{kind}_per_step_ns"].per_step for kind in KINDS]
    assert np.array(parts, dtype=np.int64).sum(axis=0).tolist() == steps["duration_ns"].tolist()
    state = report.hardware.state_after
    assert state is not None
    assert state.sm_clock_hz
    assert state.temperature_celsius
    assert state.throttle_reasons is not None


def test_compiled_kernels_know_their_registers(tmp_path: Path) -> None:
    report, _ = profiled(tmp_path, mode="compile")
    generated = [row for row in report.kernels if row.name.startswith("triton_")]
    assert generated
    assert all(row.registers_per_thread for row in generated)
    assert any(row.local_bytes_per_thread is not None for row in generated)
    assert report.metrics["compile_code_generation_ns"].value
    assert report.metrics["compile_ns"].value


def test_counters_or_the_reason_why_there_are_none(tmp_path: Path) -> None:
    report, run = profiled(tmp_path, ncu=True)
    said = [warning.message for warning in report.warnings if warning.code == "ncu"]
    if find_ncu() is None or said:
        assert len(said) == 1
        assert "dram_bytes" not in report.metrics
        return
    assert (run.path / "ncu.csv").is_file()
    assert (report.metrics["dram_bytes"].value or 0) > 0
    assert any(row.dram_bytes for row in report.kernels)
