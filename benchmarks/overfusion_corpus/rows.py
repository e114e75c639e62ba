"""Families of row kernels: spills, stale tiles, rows read again, too few programs, wide traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
import triton

from . import kernels_rows as kernels
from .model import DTYPES, Family, Pair, Scope, as_op, size_of

EPS = 1e-6


def _rows(
    scope: Scope, sizes: Mapping[str, Any], count: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """`count` inputs [rows, columns] and a weight [columns]."""
    dtype = DTYPES[sizes["dtype"]]
    inputs = [scope.random(sizes["rows"], sizes["columns"], dtype=dtype) for _ in range(count)]
    return inputs, scope.random(sizes["columns"], dtype=dtype)


def norm_gate(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Add, norm, gate and softmax of a row in one kernel; members: the same cut in two."""
    (x, residual, gate), weight = _rows(scope, sizes, 3)
    rows, columns = x.shape
    y, total, n, out = (torch.empty_like(x) for _ in range(4))
    block = triton.next_power_of_2(columns)
    best = max(4, min(16, block // 512))

    def whole() -> None:
        scope.launch(
            kernels.norm_gate, (rows,), x, residual, gate, weight, y, columns, EPS,
            BLOCK=block, num_warps=sizes["num_warps"],
        )  # fmt: skip

    def first() -> None:
        scope.launch(
            kernels.add_norm, (rows,), x, residual, weight, total, n, columns, EPS,
            BLOCK=block, num_warps=best,
        )  # fmt: skip

    def second() -> None:
        scope.launch(kernels.gate_rows, (rows,), n, gate, out, columns, BLOCK=block, num_warps=best)

    fused = as_op("norm_gate", (x, residual, gate, weight), (y,), whole)
    norm = as_op("add_norm", (x, residual, weight), (total, n), first)
    gated = as_op("gate_rows", (n, gate), (out,), second)

    def members() -> tuple[torch.Tensor, ...]:
        norm()
        return gated()

    return Pair(fused, members, size_of(x, residual, gate, weight, y))


def norm_rotate(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Norm and a rotation by large angles: sine and cosine keep a slow path in local memory."""
    (x, angle), weight = _rows(scope, sizes, 2)
    rows, columns = x.shape
    y = torch.empty_like(x)

    def whole() -> None:
        scope.launch(
            kernels.norm_rotate, (rows,), x, angle, weight, y, columns, EPS,
            BLOCK=triton.next_power_of_2(columns), num_warps=sizes["num_warps"],
        )  # fmt: skip

    def members() -> tuple[torch.Tensor, ...]:
        n = F.rms_norm(x, (columns,), weight, EPS)
        a = angle.float() * 100.0
        return ((n * torch.cos(a) + torch.sin(a)).to(x.dtype),)

    fused = as_op("norm_rotate", (x, angle, weight), (y,), whole)
    return Pair(fused, members, size_of(x, angle, weight, y))


def add_norm_tile(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Residual add and norm with a tile that was chosen for another row length."""
    (x, residual), weight = _rows(scope, sizes, 2)
    rows, columns = x.shape
    total, y = torch.empty_like(x), torch.empty_like(x)

    def whole() -> None:
        scope.launch(
            kernels.add_norm, (rows,), x, residual, weight, total, y, columns, EPS,
            BLOCK=sizes["BLOCK"], num_warps=sizes["num_warps"],
        )  # fmt: skip

    def members() -> tuple[torch.Tensor, ...]:
        summed = x + residual
        return summed, F.rms_norm(summed, (columns,), weight, EPS)

    fused = as_op("add_norm", (x, residual, weight), (total, y), whole)
    return Pair(fused, members, size_of(x, residual, weight, total, y))


def add_norm_wide(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Residual add and norm where so many of the four tensors became float32."""
    columns, count = sizes["columns"], sizes["wide"]
    dtype = DTYPES[sizes["dtype"]]
    kinds = [torch.float32 if i < count else dtype for i in range(4)]
    total, y, x, residual = (scope.random(sizes["rows"], columns, dtype=kind) for kind in kinds)
    narrow, added = x.to(dtype), residual.to(dtype)
    weight = scope.random(columns, dtype=dtype)
    block = triton.next_power_of_2(columns)

    def whole() -> None:
        scope.launch(
            kernels.add_norm, (sizes["rows"],), x, residual, weight, total, y, columns, EPS,
            BLOCK=block, num_warps=max(4, min(16, block // 512)),
        )  # fmt: skip

    def members() -> tuple[torch.Tensor, ...]:
        summed = narrow + added
        return summed, F.rms_norm(summed, (columns,), weight, EPS)

    fused = as_op("add_norm", (x, residual, weight), (total, y), whole)
    return Pair(fused, members, size_of(x, residual, weight, total, y))


def norm_pieces(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Norm over pieces of rows; every program reads the whole row for its own piece."""
    (x,), weight = _rows(scope, sizes, 1)
    rows, columns = x.shape
    y, out = torch.empty_like(x), torch.empty_like(x)
    scale = scope.empty(rows)
    piece = sizes["PIECE"]
    pieces = triton.cdiv(columns, piece)

    def whole() -> None:
        scope.launch(
            kernels.norm_piece, (rows, pieces), x, weight, y, columns, EPS,
            PIECE=piece, BLOCK=2048, num_warps=4,
        )  # fmt: skip

    def first() -> None:
        scope.launch(kernels.row_scale, (rows,), x, scale, columns, EPS, BLOCK=2048, num_warps=4)

    def second() -> None:
        grid = (rows, triton.cdiv(columns, 2048))
        scope.launch(kernels.apply_scale, grid, x, scale, weight, out, columns, BLOCK=2048)

    fused = as_op("norm", (x, weight), (y,), whole)
    scaled = as_op("row_scale", (x,), (scale,), first)
    applied = as_op("apply_scale", (x, scale, weight), (out,), second)

    def members() -> tuple[torch.Tensor, ...]:
        scaled()
        return applied()

    return Pair(fused, members, size_of(x, weight, y))


def norm_few_rows(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Norm of few long rows, a program each; members spread every row over the GPU."""
    (x,), weight = _rows(scope, sizes, 1)
    rows, columns = x.shape
    y = torch.empty_like(x)

    def whole() -> None:
        scope.launch(
            kernels.norm_along, (rows,), x, weight, y, columns, EPS, BLOCK=4096, num_warps=8
        )

    def members() -> tuple[torch.Tensor, ...]:
        square = torch.linalg.vector_norm(x, 2, -1, keepdim=True, dtype=torch.float32)
        scale = torch.rsqrt(square * square / columns + EPS)
        return ((x * scale.to(x.dtype)) * weight,)

    fused = as_op("norm", (x, weight), (y,), whole)
    return Pair(fused, members, size_of(x, weight, y))


def grad_sums(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Gradient of an activation with its column sums, by so many programs that walk over rows."""
    (dy, x), _ = _rows(scope, sizes, 2)
    rows, columns = x.shape
    programs = sizes["programs"]
    dx, partial = torch.empty_like(x), scope.empty(programs, columns)
    block = triton.next_power_of_2(columns)

    def whole() -> None:
        scope.launch(
            kernels.act_grad_sums, (programs,), dy, x, dx, partial, rows, columns, programs,
            BLOCK=block, num_warps=8,
        )  # fmt: skip

    launched = as_op("act_grad", (dy, x), (dx, partial), whole)

    def fused() -> tuple[torch.Tensor, ...]:
        launched()
        return dx, partial.sum(0)

    return Pair(fused, _grad_members(dy, x), size_of(dy, x, dx))


def grad_atomic(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Gradient of an activation; column sums by an atomic addition every so many rows."""
    (dy, x), _ = _rows(scope, sizes, 2)
    rows, columns = x.shape
    dx, sums = torch.empty_like(x), scope.empty(columns)
    each, block = sizes["rows_each"], min(2048, triton.next_power_of_2(columns))

    def whole() -> None:
        grid = (triton.cdiv(rows, each), triton.cdiv(columns, block))
        scope.launch(
            kernels.act_grad_atomic, grid, dy, x, dx, sums, rows, columns, ROWS=each, BLOCK=block
        )

    launched = as_op("act_grad", (dy, x), (dx, sums), whole)

    def fused() -> tuple[torch.Tensor, ...]:
        sums.zero_()
        return launched()

    return Pair(fused, _grad_members(dy, x), size_of(dy, x, dx))


def _grad_members(dy: torch.Tensor, x: torch.Tensor) -> Any:
    def members() -> tuple[torch.Tensor, ...]:
        dx = torch.ops.aten.silu_backward(dy, x)
        return dx, dx.sum(0, dtype=torch.float32)

    return members


def _shape(rows: int, columns: int, dtype: str) -> dict[str, int | str]:
    return {"rows": rows, "columns": columns, "dtype": dtype}


FAMILIES = (
    Family(
        name="norm_gate", engine="triton", cause="register_spill", knob="num_warps", neutral=16,
        build=norm_gate,
        sweep=(
            (_shape(16_384, 4_096, "bf16"), (1, 2, 4, 16)),
            (_shape(8_192, 8_192, "fp32"), (1, 2, 4, 16)),
            (_shape(4_096, 16_384, "bf16"), (2, 4, 16)),
        ),
        why="a row on too few warps: its values do not fit into their registers",
        small={"rows": 3, "columns": 200, "dtype": "fp32", "num_warps": 1},
    ),
    Family(
        name="norm_rotate", engine="triton", cause="register_spill", knob="num_warps", neutral=16,
        build=norm_rotate,
        sweep=(
            (_shape(16_384, 4_096, "bf16"), (1, 2, 4, 16)),
        ),
        why="slow paths of sine and cosine count as local memory; few warps spill besides",
        small={"rows": 3, "columns": 200, "dtype": "fp32", "num_warps": 1},
    ),
    Family(
        name="add_norm_tile", engine="triton", cause="stale_config", knob="BLOCK", neutral=1_024,
        build=add_norm_tile,
        sweep=(
            ({**_shape(65_536, 1_024, "bf16"), "num_warps": 8}, (16_384, 4_096, 8_192, 1_024)),
            ({**_shape(65_536, 640, "bf16"), "num_warps": 8}, (8_192, 1_024)),
            ({**_shape(32_768, 1_024, "fp32"), "num_warps": 16}, (32_768, 8_192, 1_024)),
        ),
        why="the tile was tuned for longer rows: most lanes are masked",
        small={"rows": 3, "columns": 200, "dtype": "fp32", "num_warps": 1, "BLOCK": 512},
    ),
    Family(
        name="add_norm_wide", engine="triton", cause="widened_traffic", knob="wide", neutral=0,
        build=add_norm_wide,
        sweep=(
            (_shape(16_384, 4_096, "bf16"), (4, 2, 1, 0)),
            (_shape(65_536, 1_024, "fp16"), (3, 2, 0)),
        ),
        why="intermediates and results held in float32 where the members used 16 bits",
        small={"rows": 3, "columns": 200, "dtype": "fp16", "wide": 2},
    ),
    Family(
        name="norm_pieces", engine="triton", cause="reread_inputs", knob="PIECE", neutral=16_384,
        build=norm_pieces,
        sweep=(
            (_shape(8_192, 8_192, "bf16"), (1_024, 2_048, 4_096, 16_384)),
            (_shape(4_096, 16_384, "fp32"), (1_024, 16_384)),
        ),
        why="every program reads the whole row again for its own piece",
        small={"rows": 3, "columns": 3_000, "dtype": "fp32", "PIECE": 1_024},
    ),
    Family(
        name="norm_few_rows", engine="triton", cause="too_few_programs", knob="rows", neutral=528,
        build=norm_few_rows,
        sweep=(
            ({"columns": 262_144, "dtype": "bf16"}, (8, 32, 64, 528)),
            ({"columns": 524_288, "dtype": "fp32"}, (4, 528)),
        ),
        why="a program a row, and fewer rows than the GPU has multiprocessors",
        small={"rows": 2, "columns": 9_000, "dtype": "fp32"},
    ),
    Family(
        name="grad_sums", engine="triton", cause="too_few_programs", knob="programs", neutral=1_056,
        build=grad_sums,
        sweep=(
            (_shape(16_384, 4_096, "bf16"), (32, 66, 264, 1_056)),
            (_shape(65_536, 1_024, "fp16"), (66, 1_056)),
        ),
        why="a persistent kernel with another number of programs than the GPU takes",
        small={"rows": 9, "columns": 200, "dtype": "fp32", "programs": 4},
    ),
    Family(
        name="grad_atomic", engine="triton", cause="atomics_contention", knob="rows_each",
        neutral=64,
        build=grad_atomic,
        sweep=(
            (_shape(65_536, 1_024, "bf16"), (1, 4, 16, 64)),
            (_shape(65_536, 256, "fp32"), (1, 64)),
        ),
        why="the sum is folded into the kernel by atomic additions to few places",
        small={"rows": 9, "columns": 200, "dtype": "fp32", "rows_each": 4},
    ),
)  # fmt: skip
