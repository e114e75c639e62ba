"""Kernels in place of whole forwards on a GPU: the module of a patch, eager and compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

from advisor.pipeline.patch import patch_files, write_folder
from tests.pipeline.test_forwards import MODEL, found_forwards, kept, profiled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RUN = '''
import torch
import patched
from fusion_patch import forwards

torch.manual_seed(0)
(name,) = [n for n in vars(forwards) if n.startswith("rms_")]
fused = getattr(forwards, name)
module = patched.RMS(64).cuda()


def results(function, x):
    """The result and both gradients."""
    x = x.clone().requires_grad_()
    module.weight.grad = None
    out = function(x)
    assert out is not None
    out.square().sum().backward()
    return out.detach(), x.grad, module.weight.grad


for rows in (12, 5000):
    x = torch.randn(2, rows, 64, device="cuda")
    own = results(module, x)
    compiled = torch.compile(fused, fullgraph=True)
    for function in (fused, compiled):
        way = lambda x: function(module, x)
        for ours, theirs in zip(results(way, x), own, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
x = torch.randn(2, 6, 64, device="cuda")
assert fused(module, x.half()) is None
assert fused(module, x.cpu()) is None
with torch.autocast("cuda"):
    assert fused(module, x) is None
print("same")
'''


def test_it_computes_what_the_forward_does_and_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "patched.py").write_text(MODEL)
    run = profiled(tmp_path / "run", "patched.py:make")
    assert "RMS" in found_forwards(run)
    kept(run)
    write_folder(patch_files(run), tmp_path / "fusion_patch")
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "same", done.stderr
