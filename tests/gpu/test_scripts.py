"""Scripts on a GPU: timed, traced and stopped; and what is left of one that dies on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.cli.main import run as command
from advisor.model.gate import GateConfig
from advisor.model.report import Report
from advisor.pipeline.unfinished import is_incomplete
from advisor.report.gate import judge
from advisor.store import RunDirectory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
import advisor


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


style, last = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(nn.Linear(512, 512), Norm(512), nn.GELU()).cuda()
if style == "compiled":
    model = torch.compile(model)
weight = torch.randn(512, 512, device="cuda")
for number in range(10_000):
    with advisor.step():
        data = torch.randn(4096, 512, device="cuda")
        if style == "functions":
            torch.softmax(data @ weight, -1).mul(2).add(1)
        else:
            model.zero_grad()
            model(data).square().mean().backward()
        if number == last:
            if style == "memory":
                torch.empty(1 << 50, device="cuda")
            os.kill(os.getpid(), signal.SIGSEGV)
"""


def profiled(folder: Path, style: str, last: int = -1, *options: str) -> tuple[int, RunDirectory]:
    path, out = folder / "train.py", folder / f"{style}{last}"
    path.write_text(SCRIPT)
    line = ["profile", str(path), "--out", str(out), *options, "--", style, str(last)]
    return command(line), RunDirectory(out.resolve())


def codes(report: Report) -> set[str]:
    return {warning.code for warning in report.warnings}


@pytest.mark.parametrize(
    ("style", "mode", "code"),
    [
        ("modules", "eager", "modules-only"),
        ("compiled", "compile", "regions-only"),
        ("functions", "eager", "no-graphs"),
    ],
)
def test_a_script_is_timed_and_traced(style: str, mode: str, code: str, tmp_path: Path) -> None:
    status, run = profiled(tmp_path, style)
    report = run.report()
    assert status == 0
    assert code in codes(report)
    assert report.workload.mode == mode
    assert len(report.metrics["step_ns"].per_step) == 20
    assert report.kernels
    assert not is_incomplete(report)
    assert report.plans or style != "modules"
    assert all(
        f.provenance == ("inferred" if style == "functions" else "exact") for f in report.findings
    )


def test_modules_are_compiled_where_that_is_asked_for(tmp_path: Path) -> None:
    status, run = profiled(tmp_path, "modules", -1, "--mode", "compile")
    report = run.report()
    assert status == 0
    assert report.workload.mode == "compile"
    assert any("triton" in row.name for row in report.kernels)


@pytest.mark.parametrize(
    ("style", "words"), [("modules", "SIGSEGV"), ("memory", "out of GPU memory")]
)
def test_what_was_measured_before_it_died_is_kept(
    style: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 3 to capture, 3 to warm up, 20 clean: the 27th is the first traced one.
    status, run = profiled(tmp_path, style, 27)
    assert status == 3
    assert words in capsys.readouterr().err
    report = run.report()
    assert is_incomplete(report)
    assert len(report.metrics["step_ns"].per_step) == 20
    assert judge(GateConfig(), report).status == "failed"
