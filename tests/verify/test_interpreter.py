"""Triton's interpreter as Triton 3.6 has it, with NumPy 2.4."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="kernels need triton")

ROOT = Path(__file__).parents[2]
# A loop over a number of the launch.
KERNEL = """
import sys
from pathlib import Path

import tests.builders.older_interpreter
import torch
from advisor.codegen.families import render
from advisor.verify import kernel_module
from tests.builders.plan import rms_norm

path = Path(sys.argv[1]) / "kernel.py"
path.write_text(render(rms_norm(columns=64), "looped").text)
x, weight = torch.randn(4, 64).bfloat16(), torch.ones(1, 64).bfloat16()

def run():
    (out,) = kernel_module.load_module(path).fused(x, weight, block_columns=32)
    return round(float(out.float().square().mean()), 1)

mend, kernel_module.mend_loops = kernel_module.mend_loops, lambda: None
try:
    run()
except Exception as error:
    print(error)
kernel_module.mend_loops = mend
print(run(), run())
"""


def test_a_kernel_loops_over_a_number_of_its_launch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(KERNEL)  # what is interpreted is read from a file
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    before, _, after = told.stdout.strip().rpartition("\n")
    assert "0-dimensional arrays" in before, told.stderr[-400:]
    assert after == "1.0 1.0"
