"""A model that does part of its step on the CPU, through the real `profile` and `apply`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

import advisor
from advisor.cli.main import run as command
from advisor.store import RunDirectory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
TARGET = '''
import torch
from torch import nn


def norm(x):
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)


class Mixed(nn.Module):
    """A table too large for the GPU is read and normed on the CPU; layers follow on the GPU."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 2048, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(nn.Linear(2048, 2048).bfloat16().cuda() for _ in range(4))

    def forward(self, tokens):
        x = norm(self.table(tokens)).cuda()
        for layer in self.layers:
            x = layer(norm(x) * torch.sigmoid(x))
        return x


def make():
    torch.manual_seed(0)
    return Mixed().eval(), (torch.randint(0, 1000, (4096,)),)
'''


def test_the_part_on_the_gpu_is_fused_and_the_rest_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path, out = tmp_path / "net.py", tmp_path / "run"
    path.write_text(TARGET)
    assert command(["profile", f"{path}:make", "--steps", "5", "--out", str(out)]) == 0
    run = RunDirectory.at(out)
    plans = [run.plan(plan_id) for plan_id in run.plan_ids()]
    norms = [plan for plan in plans if plan.family == "row_program" and len(plan.sites) > 1]
    assert norms
    asked = [part for plan in norms for part in ("--only", plan.id)]
    assert command(["apply", str(out), *asked]) == 0
    applied = run.applied()
    assert applied is not None
    assert applied.set.outputs_agree
    assert [v.verdict for v in applied.plans if v.plan_id == norms[0].id] == ["kept"]
    spec = importlib.util.spec_from_file_location("net", path)
    assert spec is not None
    assert spec.loader is not None
    net = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(net)
    model, given = net.make()
    with torch.no_grad():
        before = model(*given)
        after = advisor.load(out).apply(model)(*given)
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.05)
