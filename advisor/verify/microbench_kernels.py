"""Triton kernels that load one unit of a GPU: special functions, and memory from few places."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SPECIAL_BLOCK, SPECIAL_ROUNDS = 1_024, 512
COPY_BLOCK = 8_192


@triton.jit  # type: ignore[untyped-decorator]
def _special(x_ptr, y_ptr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """x <- 2^(-x), so many times: one special function and one subtraction a round."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(ROUNDS):
        x = tl.exp2(-x)
    tl.store(y_ptr + at, x)


@triton.jit  # type: ignore[untyped-decorator]
def _copy(x_ptr, y_ptr, each, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """y <- x, `each` blocks a program, one after the other."""
    first = tl.program_id(0).to(tl.int64) * each
    for number in range(each):
        at = (first + number) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at))


def special(x: torch.Tensor, y: torch.Tensor) -> None:
    """Run `SPECIAL_ROUNDS` special functions for every element of x (float32)."""
    _special[(x.numel() // SPECIAL_BLOCK,)](x, y, SPECIAL_ROUNDS, SPECIAL_BLOCK, num_warps=4)


def narrow_copy(x: torch.Tensor, y: torch.Tensor, programs: int, warps: int) -> None:
    """Copy x (float32, a multiple of programs × `COPY_BLOCK`) by so many programs."""
    each = x.numel() // (programs * COPY_BLOCK)
    _copy[(programs,)](x, y, each, COPY_BLOCK, num_warps=warps)
