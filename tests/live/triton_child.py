"""Child of `test_triton_kernels`: kernels compiled as a launch compiles them, for a GPU by name.

Prints what is known of them as JSON, before and after.
"""

# Constants of a kernel are written in capitals.
# ruff: noqa: N803

from __future__ import annotations

import sys

import msgspec
import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from collectors.live.triton_kernels import written_kernels
from tests.builders.no_device import NoDevice


@triton.jit
def _gate(v):
    return v / (1.0 + tl.exp(-v))


@triton.jit
def gated(x, y, size, one, BLOCK: tl.constexpr, AGAIN: tl.constexpr = False, unused=None):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = _gate(tl.load(x + at * one, mask=at < size))
    if AGAIN:
        value = _gate(value)
    tl.store(y + at, value, mask=at < size)


def main() -> None:
    """One kernel, compiled in two ways."""
    found = [written_kernels()]
    driver.set_active(NoDevice())
    tensors = [MockTensor(torch.float32, (4096,)) for _ in range(2)]
    gated.warmup(*tensors, 4096, 1, BLOCK=1024, num_warps=8, num_stages=2, grid=(4,))
    gated.warmup(*tensors, 4095, 1, BLOCK=256, AGAIN=True, grid=(16,))
    found.append(written_kernels())
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
