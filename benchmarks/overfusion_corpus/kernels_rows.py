"""Row kernels: a program holds whole rows, or walks along them. Written as users write them.

x is [rows, columns] row by row unless said otherwise; sums and functions are in float32.
"""

# Constants of a kernel are written in capitals.
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_gate(x, residual, gate, weight, y, columns, eps, BLOCK: tl.constexpr):
    """n = norm(x + residual) weight; y = n softmax(n gate)."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    place = row.to(tl.int64) * columns + at
    r = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    r += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    n = r * tl.rsqrt(tl.sum(r * r, 0) / columns + eps)
    n *= tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    z = n * tl.load(gate + place, mask=mask, other=0.0).to(tl.float32)
    z = tl.where(mask, z, float("-inf"))
    e = tl.exp(z - tl.max(z, 0))
    tl.store(y + place, n * e / tl.sum(e, 0), mask=mask)


@triton.jit
def gate_rows(n, gate, y, columns, BLOCK: tl.constexpr):
    """y = n softmax(n gate)."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    place = row.to(tl.int64) * columns + at
    v = tl.load(n + place, mask=mask, other=0.0).to(tl.float32)
    z = v * tl.load(gate + place, mask=mask, other=0.0).to(tl.float32)
    z = tl.where(mask, z, float("-inf"))
    e = tl.exp(z - tl.max(z, 0))
    tl.store(y + place, v * e / tl.sum(e, 0), mask=mask)


@triton.jit
def add_norm(x, residual, weight, total, y, columns, eps, BLOCK: tl.constexpr):
    """total = x + residual; y = total rsqrt(mean(total²) + eps) weight."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    place = row.to(tl.int64) * columns + at
    r = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    r += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(total + place, r, mask=mask)
    n = r * tl.rsqrt(tl.sum(r * r, 0) / columns + eps)
    tl.store(y + place, n * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32), mask=mask)


@triton.jit
def norm_rotate(x, angle, weight, y, columns, eps, BLOCK: tl.constexpr):
    """n = norm(x) weight; y = n cos(angle) + sin(angle), angles of any size."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    place = row.to(tl.int64) * columns + at
    r = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    n = r * tl.rsqrt(tl.sum(r * r, 0) / columns + eps)
    n *= tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    a = tl.load(angle + place, mask=mask, other=0.0).to(tl.float32) * 100.0
    tl.store(y + place, n * tl.cos(a) + tl.sin(a), mask=mask)


@triton.jit
def norm_piece(x, weight, y, columns, eps, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    """y = norm(x) weight for one piece of a row; every program reads its whole row first."""
    row = tl.program_id(0).to(tl.int64) * columns
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + at, mask=at < columns, other=0.0).to(tl.float32)
        square += v * v
    scale = tl.rsqrt(tl.sum(square, 0) / columns + eps)
    at = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    mask = at < columns
    v = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32) * scale
    tl.store(y + row + at, v * tl.load(weight + at, mask=mask, other=0.0), mask=mask)


@triton.jit
def row_scale(x, scale, columns, eps, BLOCK: tl.constexpr):
    """scale = rsqrt(mean(x²) + eps) of every row."""
    row = tl.program_id(0)
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row.to(tl.int64) * columns + at, mask=at < columns, other=0.0)
        square += v.to(tl.float32) * v.to(tl.float32)
    tl.store(scale + row, tl.rsqrt(tl.sum(square, 0) / columns + eps))


@triton.jit
def apply_scale(x, scale, weight, y, columns, BLOCK: tl.constexpr):
    """y = x scale[row] weight[column]."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < columns
    place = row.to(tl.int64) * columns + at
    v = tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * tl.load(scale + row)
    tl.store(y + place, v * tl.load(weight + at, mask=mask, other=0.0), mask=mask)


@triton.jit
def norm_along(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    """y = norm(x) weight, a program walking along its row twice."""
    row = tl.program_id(0).to(tl.int64) * columns
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + at, mask=at < columns, other=0.0).to(tl.float32)
        square += v * v
    scale = tl.rsqrt(tl.sum(square, 0) / columns + eps)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < columns
        v = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32) * scale
        tl.store(y + row + at, v * tl.load(weight + at, mask=mask, other=0.0), mask=mask)


@triton.jit
def act_grad_sums(dy, x, dx, partial, rows, columns, programs, BLOCK: tl.constexpr):
    """dx = dy silu'(x); partial[program] = column sums of dx over the program's rows."""
    at = tl.arange(0, BLOCK)
    mask = at < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, programs):
        place = tl.cast(row, tl.int64) * columns + at
        v = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        s = 1.0 / (1.0 + tl.exp(-v))
        g = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32) * s * (1.0 + v * (1.0 - s))
        tl.store(dx + place, g, mask=mask)
        total += g
    tl.store(partial + tl.program_id(0) * columns + at, total, mask=mask)


@triton.jit
def act_grad_atomic(dy, x, dx, sums, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """dx = dy silu'(x); sums += column sums of dx over `ROWS` rows, by atomic additions."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for number in range(ROWS):
        row = tl.program_id(0) * ROWS + number
        mask = (at < columns) & (row < rows)
        place = row.to(tl.int64) * columns + at
        v = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        s = 1.0 / (1.0 + tl.exp(-v))
        g = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32) * s * (1.0 + v * (1.0 - s))
        tl.store(dx + place, g, mask=mask)
        total += g
    tl.atomic_add(sums + at, total, mask=at < columns)
