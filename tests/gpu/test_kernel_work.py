"""Operations of kernels on a GPU: known of products and generated kernels, below every roof."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.cli.main import run as command
from advisor.store import RunDirectory
from tests.builders.repository import committed, needs_git

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    needs_git,
]

WORKLOAD = """
import torch
from torch import nn


def make():
    model = nn.Sequential(nn.Linear(4096, 4096), nn.LayerNorm(4096), nn.GELU()).cuda().bfloat16()
    return model, (torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16),)
"""


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_what_kernels_compute_is_known_and_possible(mode: str, tmp_path: Path) -> None:
    (tmp_path / "workload.py").write_text(WORKLOAD)
    committed(tmp_path)
    out = tmp_path / mode
    target = f"{tmp_path / 'workload.py'}:make"
    assert command(["profile", target, "--mode", mode, "--out", str(out)]) == 0
    report = RunDirectory.at(out).report()
    assert report.workload.commit is not None
    assert report.workload.commit.dirty is False
    rows = [row for row in report.kernels if row.work is not None]
    known = sum(row.time_ns for row in rows)
    assert known > 0.8 * sum(row.time_ns for row in report.kernels)
    products = [row.work for row in rows if row.work is not None and row.work.matrix]
    assert sum(work.flops for work in products) == 2 * 8192 * 4096 * 4096
    assert any(row.work is not None and not row.work.matrix for row in rows)
    for row in rows:
        assert row.work is not None
        peak = report.hardware.peak_flops[row.work.arithmetic]
        assert row.work.flops * 1e9 / row.time_ns < peak, row.name
