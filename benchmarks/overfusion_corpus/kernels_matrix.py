"""A matrix product with what may be fused before and after it."""

# Constants of a kernel are written in capitals.
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _prepared(a, PROLOGUE: tl.constexpr):
    """The left factor: as it is, or through `PROLOGUE` gates."""
    if PROLOGUE > 0:
        v = a.to(tl.float32)
        for _ in tl.static_range(PROLOGUE):
            v = v / (1.0 + tl.exp(-v)) + 0.5
        a = v.to(a.dtype)
    return a


@triton.jit
def product(
    a, b, extra, c, M, N, K,
    PROLOGUE: tl.constexpr, BRANCHES: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """t = f(a) b; c = silu(t), or the sum over branches i of sigmoid(t + extra[2i]) extra[2i + 1].

    a [M, K], b [K, N], extra [2 BRANCHES, M, N]; BRANCHES -1: c = t. Sizes divide by the tile.
    """
    tiles = tl.cdiv(N, BN)
    group = 8 * tiles
    first = (tl.program_id(0) // group) * 8
    height = tl.minimum(tl.cdiv(M, BM) - first, 8)
    pm = first + (tl.program_id(0) % group) % height
    pn = (tl.program_id(0) % group) // height
    i = (pm * BM + tl.arange(0, BM))[:, None]
    j = (pn * BN + tl.arange(0, BN))[None, :]
    k = tl.arange(0, BK)
    left = a + i * K + k[None, :]
    right = b + k[:, None] * N + j
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        x, y = _prepared(tl.load(left), PROLOGUE), tl.load(right)
        if WIDEN:
            x, y = x.to(tl.float32), y.to(tl.float32)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        left += BK
        right += BK * N
    place = i.to(tl.int64) * N + j
    if BRANCHES == 0:
        total = total / (1.0 + tl.exp(-total))
    if BRANCHES > 0:
        step = M.to(tl.int64) * N
        result = tl.zeros((BM, BN), tl.float32)
        for n in tl.static_range(BRANCHES):
            shift = tl.load(extra + 2 * n * step + place).to(tl.float32)
            scale = tl.load(extra + (2 * n + 1) * step + place).to(tl.float32)
            result += scale / (1.0 + tl.exp(-(total + shift)))
        total = result
    tl.store(c + place, total)


@triton.jit
def branch_sum(t, extra, c, size, BRANCHES: tl.constexpr, BLOCK: tl.constexpr):
    """c = sum over branches i of sigmoid(t + extra[2i]) extra[2i + 1]; BRANCHES 0: c = silu(t)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    v = tl.load(t + at, mask=mask, other=0.0).to(tl.float32)
    result = tl.zeros((BLOCK,), tl.float32)
    if BRANCHES == 0:
        result = v / (1.0 + tl.exp(-v))
    for n in tl.static_range(BRANCHES):
        shift = tl.load(extra + 2 * n * size + at, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(extra + (2 * n + 1) * size + at, mask=mask, other=0.0).to(tl.float32)
        result += scale / (1.0 + tl.exp(-(v + shift)))
    tl.store(c + at, result, mask=mask)
