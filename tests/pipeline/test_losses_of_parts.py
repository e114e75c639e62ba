"""Workloads whose loss goes through its model's parts, or whose optimizer calls it: to the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

from advisor.cli.main import run as command
from advisor.store import RunDirectory
from collectors.live.workload import load_workload

TARGET = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def model():
    torch.manual_seed(0)
    return nn.Sequential(Norm(), nn.Linear(64, 64), Norm(), nn.Linear(64, 64))


X = torch.linspace(-1, 1, 32 * 64).reshape(32, 64)


def through(parts):
    assert isinstance(parts, nn.Sequential) and len(parts) == 4
    x = parts[0](X.to(parts[1].weight.device))
    for part in parts[1:]:
        x = part(x)
    return x.square().mean()


def iterates():
    made = model()
    return made, torch.optim.AdamW(made.parameters()), through


def closure():
    made = model()
    return made, torch.optim.LBFGS(made.parameters(), max_iter=3), through
"""


@pytest.mark.usefixtures("started")
@pytest.mark.skipif(torch.cuda.is_available(), reason="applying there is measured elsewhere")
def test_a_loss_that_iterates_its_model_is_profiled_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "target.py").write_text(TARGET)
    folder = tmp_path / "run"
    assert command(["profile", f"{tmp_path}/target.py:iterates", "--out", str(folder)]) == 0
    run = RunDirectory.at(folder)
    norm = next(p for i in run.plan_ids() if "RMS norm" in (p := run.plan(i)).title)
    assert {site.location.module for site in norm.sites} == {"0", "2"}
    assert not [w for w in run.report().warnings if w.code in ("no-graphs", "graph-break")]
    assert command(["apply", str(folder), "--only", norm.id]) == 0
    applied = run.applied()
    assert applied is not None
    (verdict,) = applied.plans
    assert (verdict.sites_swapped, verdict.sites_expected) == (2, 2), capsys.readouterr().out


def test_a_step_of_an_optimizer_that_calls_the_loss_trains(tmp_path: Path) -> None:
    file = tmp_path / "target_of_closures.py"
    file.write_text(TARGET)
    step = load_workload(f"{file}:closure", torch.device("cpu")).step_of()
    first, second = float(step()), float(step())
    assert second < first
