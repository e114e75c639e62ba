"""Elementwise kernels, with and without neighbours; `fields` are [FIELDS, cells]."""

# Constants of a kernel are written in capitals; it joins tuples by addition alone.
# ruff: noqa: N803, RUF005

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix_fields(
    fields, results, cells, ROUNDS: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Every field with its neighbour, so many rounds: f_k <- 0.9 f_k + 0.1 exp(-f_{k+1}²)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < cells
    held = ()
    for k in tl.static_range(FIELDS):
        held = held + (tl.load(fields + k * cells + at, mask=mask, other=0.0).to(tl.float32),)
    for _ in tl.static_range(ROUNDS):
        mixed = ()
        for k in tl.static_range(FIELDS):
            other = held[(k + 1) % FIELDS]
            mixed = mixed + (0.9 * held[k] + 0.1 * tl.exp(-other * other),)
        held = mixed
    for k in tl.static_range(FIELDS):
        tl.store(results + k * cells + at, held[k], mask=mask)


@triton.jit
def solve_scale(fields, results, cells, steps, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """p = mean of the fields; s solved from p in so many steps; results = s fields."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < cells
    held = ()
    p = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(FIELDS):
        v = tl.load(fields + k * cells + at, mask=mask, other=0.0)
        held = held + (v,)
        p += v
    p = p / FIELDS
    s = p
    for _ in range(steps):
        s = 1.0 / (1.0 + tl.exp2(0.7 * s - p))
    for k in tl.static_range(FIELDS):
        tl.store(results + k * cells + at, held[k] * s, mask=mask)


@triton.jit
def solve(fields, solved, cells, steps, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """p = mean of the fields; s solved from p in so many steps."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < cells
    p = tl.zeros((BLOCK,), tl.float32)
    for k in range(FIELDS):
        p += tl.load(fields + k * cells + at, mask=mask, other=0.0)
    p = p / FIELDS
    s = p
    for _ in range(steps):
        s = 1.0 / (1.0 + tl.exp2(0.7 * s - p))
    tl.store(solved + at, s, mask=mask)


@triton.jit
def scale_fields(fields, solved, results, cells, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """results = s fields."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < cells
    s = tl.load(solved + at, mask=mask, other=0.0)
    for k in range(FIELDS):
        v = tl.load(fields + k * cells + at, mask=mask, other=0.0)
        tl.store(results + k * cells + at, v * s, mask=mask)


@triton.jit
def _activate(v, COST: tl.constexpr):
    """A smooth function of `COST` exponentials."""
    for _ in tl.static_range(COST):
        v = v / (1.0 + tl.exp(-v)) + 0.5
    return v


@triton.jit
def activate(x, y, size, COST: tl.constexpr, BLOCK: tl.constexpr):
    """y = f(x)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(y + at, _activate(v, COST), mask=at < size)


@triton.jit
def blur(x, y, size, COST: tl.constexpr, RADIUS: tl.constexpr, BLOCK: tl.constexpr):
    """y_i = mean over |j| <= RADIUS of f(x_{i+j}), the ends repeated; COST 0: f is nothing."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(-RADIUS, RADIUS + 1):
        near = tl.minimum(tl.maximum(at + j, 0), size - 1)
        total += _activate(tl.load(x + near).to(tl.float32), COST)
    tl.store(y + at, total / (2 * RADIUS + 1), mask=at < size)


@triton.jit
def gate_block(x, g, y, rows, columns, COST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """y = x f(g[column]) for a block of rows; f is computed once a program."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    f = _activate(tl.load(g + at, mask=at < columns, other=0.0).to(tl.float32), COST)
    for number in range(ROWS):
        row = tl.program_id(0) * ROWS + number
        mask = (at < columns) & (row < rows)
        place = row.to(tl.int64) * columns + at
        v = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + place, v * f, mask=mask)


@triton.jit
def transpose_add(
    x, z, y, rows, columns,
    ACTIVATE: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """y[i, j] = silu(x[j, i]) + z[i, j], y [rows, columns]; x is walked against its order.

    Without `ACTIVATE`: x[j, i] as it is.
    """
    i = tl.program_id(0) * HIGH + tl.arange(0, HIGH)[:, None]
    j = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
    mask = (i < rows) & (j < columns)
    v = tl.load(x + j.to(tl.int64) * rows + i, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATE:
        v = v / (1.0 + tl.exp(-v))
    place = i.to(tl.int64) * columns + j
    v += tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + place, v, mask=mask)


@triton.jit
def blend(a, b, y, size, INVERT: tl.constexpr, BLOCK: tl.constexpr):
    """y = 0.3 a + 0.7 b, or what is left of 255."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    v = 0.3 * tl.load(a + at, mask=mask, other=0).to(tl.float32)
    v += 0.7 * tl.load(b + at, mask=mask, other=0).to(tl.float32)
    v = 255.0 - v if INVERT else v
    tl.store(y + at, v.to(tl.int32).to(y.dtype.element_ty), mask=mask)


@triton.jit
def invert(x, y, size, BLOCK: tl.constexpr):
    """y = 255 - x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    v = 255.0 - tl.load(x + at, mask=mask, other=0).to(tl.float32)
    tl.store(y + at, v.to(tl.int32).to(y.dtype.element_ty), mask=mask)


@triton.jit
def distance_sums(x, y, partial, size, programs, BLOCK: tl.constexpr):
    """partial[program] = sum of (x - y)² over the program's share."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, programs * BLOCK):
        at = start + tl.arange(0, BLOCK)
        d = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
        d -= tl.load(y + at, mask=at < size, other=0.0).to(tl.float32)
        total += d * d
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def update_each(p, m, v, starts, first, BLOCK: tl.constexpr):
    """p -= 0.01 m / (sqrt(v) + eps) for tensor `first + program 0`; starts [tensors + 1]."""
    tensor = first + tl.program_id(0)
    begin, end = tl.load(starts + tensor), tl.load(starts + tensor + 1)
    for start in range(begin + tl.program_id(1) * BLOCK, end, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < end
        step = tl.load(m + at, mask=mask, other=0.0) / (
            tl.sqrt(tl.load(v + at, mask=mask, other=1.0)) + 1e-8
        )
        tl.store(p + at, tl.load(p + at, mask=mask, other=0.0) - 0.01 * step, mask=mask)


@triton.jit
def iterate(x, y, size, steps, BLOCK: tl.constexpr):
    """y <- x, then so many steps of y <- 1 / (1 + 2^(0.7 y))."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    for _ in range(steps):
        v = 1.0 / (1.0 + tl.exp2(0.7 * v))
    tl.store(y + at, v, mask=at < size)
