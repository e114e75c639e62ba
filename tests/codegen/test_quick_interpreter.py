"""The interpreter of the tests gives the bits of Triton's own, in less time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="interpreting kernels needs triton")

ROOT = Path(__file__).parents[2]
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def moments(m0, s0, n0, m1, s1, n1):
    n = n0 + n1
    apart = m1 - m0
    return m0 + apart * (n1 / n), s0 + s1 + apart * apart * (n0 * n1 / n), n


@triton.jit
def farther(a, b):
    return tl.where(tl.abs(a) > tl.abs(b), a, b)


@triton.jit
def kernel(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tile = tl.load(x + tl.program_id(0) * ROWS * COLUMNS + rows * COLUMNS + columns)
    ones = tl.full((ROWS, COLUMNS), 1.0, tl.float32)
    base = out + tl.program_id(0) * 4 * ROWS * COLUMNS
    mean, squares, count = tl.reduce((tile.to(tl.float32), ones - 1, ones), AXIS, moments)
    far = tl.reduce(tile, AXIS, farther, keep_dims=True)
    most = tl.reduce(tile, None, farther)
    mean_to, squares_to, _ = tl.associative_scan(
        (tile.to(tl.float32), ones - 1, ones), AXIS, moments
    )
    places = rows * COLUMNS + columns
    tl.store(base + places, tl.expand_dims(mean + squares / count, AXIS) + ones)
    tl.store(base + ROWS * COLUMNS + places, far.to(tl.float32) + ones + most)
    tl.store(base + 2 * ROWS * COLUMNS + places, mean_to)
    tl.store(base + 3 * ROWS * COLUMNS + places, squares_to + tl.sum(tile, AXIS, keep_dims=True))


def results():
    for kind in (torch.float32, torch.bfloat16):
        for axis in (0, 1):
            x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(3)).to(kind)
            x[1, 2, 3], x[1, 3, 5] = float("nan"), float("inf")
            out = torch.zeros(2, 4, 4, 8)
            kernel[(2,)](x, out, 4, 8, axis)
            yield out.view(torch.int32)


own = list(results())
import tests.builders.quick_interpreter as quick

calls = []
combined = quick.combined
quick.combined = lambda *given: calls.append(given) or combined(*given)
assert all(map(torch.equal, results(), own))
print(len(own), len(calls))
"""


def test_it_computes_the_same_bits(tmp_path: Path) -> None:
    """Reductions and scans with combiners, along rows, columns and both; NaN and infinity too."""
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["4", str(4 * 2 * 4)], "four of them in each of two programs"
