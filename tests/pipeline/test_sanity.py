"""What no finding of a real trace may claim, whatever rule made it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.pipeline.analyze import analyze
from collectors import read_trace
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
def test_no_op_is_counted_more_often_than_it_ran() -> None:
    """Sites that share ops, as two norms that end in one sum, would count them twice."""
    counted = 0
    for path in recorded():
        report, trace = analyze([path]), read_trace(path)
        steps = trace.steps()
        ran = Counter(trace.ops["name"].astype(str))
        for finding in report.findings:
            for member in finding.members:
                if member.name in ran:
                    most = -(-ran[member.name] // max(len(steps), 1))
                    assert member.count <= most, (path.name, finding.title, member)
                    counted += 1
    assert counted > 80


@pytest.mark.skipif(not recorded(), reason="the shared traces are not here")
def test_a_residual_block_that_downsamples_has_one_activation_behind_two_norms() -> None:
    report = analyze([SHARED / "traces/h200/resnet50.eager.json.gz"])
    norms = next(finding for finding in report.findings if finding.rule == "batch-norm")
    ran = {member.name.removeprefix("aten::"): member.count for member in norms.members}
    assert ran == {"native_batch_norm": 53, "clamp_min_": 49, "add_": 16}


@pytest.mark.skipif(not recorded(), reason="the shared traces are not here")
def test_a_gate_moves_what_its_two_kernels_move() -> None:
    report = analyze([SHARED / "traces/h200/llama_prefill.eager.json.gz"])
    gate = next(finding for finding in report.findings if finding.rule == "gated-mlp")
    tensor = 4 * 1024 * 5632 * 2
    assert figure(gate, "bytes_before") == 4 * (2 + 3) * tensor
    assert figure(gate, "bytes_after") == 4 * 3 * tensor
