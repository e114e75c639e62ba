"""What no finding of a real trace may claim, whatever rule made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.pipeline.analyze import analyze
from tests.builders.trace import SHARED

FOLDERS = ("traces/h200", "traces/public", "engine_outputs/kineto_gpu")
NOT_KINETO = ("rocprofv3", ".timing.", ".graph.", "xla")
# Calibrations differ by some percent from device to device of one kind.
SLACK = 1.05


def recorded() -> list[Path]:
    """Every Kineto trace of the shared folders."""
    found = [path for name in FOLDERS for path in sorted((SHARED / name).glob("**/*.json.gz"))]
    return [
        path
        for path in found
        if not any(word in str(path.relative_to(SHARED)) for word in NOT_KINETO)
    ]


def figure(finding: Finding, name: str) -> float | None:
    values = [e.values[name] for e in finding.evidence if name in e.values]
    return float(values[0]) if values and isinstance(values[0], (int, float)) else None


def assert_possible(report: Report) -> None:
    peak = report.hardware.dram_bandwidth_bytes_per_s
    for finding in report.findings:
        before, time = figure(finding, "bytes_before"), figure(finding, "before_ns")
        if before is not None and time and peak is not None:
            assert before / (time / 1e9) <= SLACK * peak, finding.title
        after = figure(finding, "bytes_after")
        if before is not None and after is not None:
            assert 0 <= after <= before, finding.title
        saved = figure(finding, "kernel_saving_ns")
        if saved is not None and time is not None:
            assert saved <= time, finding.title


@pytest.mark.skipif(not recorded(), reason="the shared traces are not here")
def test_no_finding_moves_more_than_the_memory_can() -> None:
    priced = 0
    for path in recorded():
        report = analyze([path])
        assert_possible(report)
        priced += sum(figure(finding, "bytes_before") is not None for finding in report.findings)
    assert priced > 40


@pytest.mark.skipif(not recorded(), reason="the shared traces are not here")
def test_a_gate_moves_what_its_two_kernels_move() -> None:
    report = analyze([SHARED / "traces/h200/llama_prefill.eager.json.gz"])
    gate = next(finding for finding in report.findings if finding.rule == "gated-mlp")
    tensor = 4 * 1024 * 5632 * 2
    assert figure(gate, "bytes_before") == 4 * (2 + 3) * tensor
    assert figure(gate, "bytes_after") == 4 * 3 * tensor
