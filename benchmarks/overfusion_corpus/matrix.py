"""Families around matrix products: epilogues, prologues, stages, tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
import triton

from . import kernels_matrix as kernels
from . import kernels_points as points
from .model import DTYPES, Family, Pair, Scope, as_op, size_of

# Rows, columns, depth of a tile, warps, stages: what the tuner picks for large 16-bit products.
TILE = (128, 256, 64, 8, 3)


def product(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A product with what is around it; members: the library's product, and pointwise kernels."""
    dtype = DTYPES[sizes["dtype"]]
    rows, columns, depth = sizes["M"], sizes["N"], sizes["K"]
    branches, cost = sizes.get("branches", 0), sizes.get("cost", 0)
    a, b = scope.random(rows, depth, dtype=dtype), scope.random(depth, columns, dtype=dtype)
    a, b = a * depth**-0.25, b * depth**-0.25
    extra = scope.random(max(2 * branches, 1), rows, columns, dtype=dtype)
    c, t, out, left = (torch.empty_like(like) for like in (extra[0], extra[0], extra[0], a))
    bm, bn, bk, warps, stages = (
        sizes.get(n, t)
        for n, t in zip(("BM", "BN", "BK", "num_warps", "num_stages"), TILE, strict=True)
    )

    def whole() -> None:
        scope.launch(
            kernels.product, (triton.cdiv(rows, bm) * triton.cdiv(columns, bn),),
            a, b, extra, c, rows, columns, depth,
            PROLOGUE=cost, BRANCHES=branches, PRECISION=sizes.get("precision", "tf32"),
            WIDEN=sizes.get("widen", False) or _interpreted(scope), BM=bm, BN=bn, BK=bk,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def before() -> None:
        grid = (triton.cdiv(a.numel(), 2_048),)
        scope.launch(points.activate, grid, a, left, a.numel(), COST=cost, BLOCK=2_048)

    def after() -> None:
        grid = (triton.cdiv(c.numel(), 1_024),)
        scope.launch(
            kernels.branch_sum, grid, t, extra, out, c.numel(), BRANCHES=branches, BLOCK=1_024
        )

    activated = as_op("activate", (a,), (left,), before)
    branched = as_op("branch_sum", (t, extra), (out,), after)
    given = (a, b, extra) if branches else (a, b)

    def members() -> tuple[torch.Tensor, ...]:
        torch.mm(activated()[0] if cost else a, b, out=t)
        return branched() if branches else (F.silu(t),)

    moved = size_of(a, b, c) + (size_of(extra) if branches else 0)
    return Pair(as_op("product", given, (c,), whole), members, moved)


def _interpreted(scope: Scope) -> bool:
    """Triton's interpreter multiplies 16-bit floats as they lie in memory: widen them there."""
    return scope.device.type == "cpu"


def _cube(size: int, depth: int, dtype: str = "bf16", **more: Any) -> dict[str, Any]:
    return {"M": size, "N": size, "K": depth, "dtype": dtype, **more}


_SMALL = {"M": 32, "N": 32, "K": 32, "dtype": "fp32", "BM": 16, "BN": 16, "BK": 16, "num_warps": 4,
          "precision": "ieee"}  # fmt: skip

FAMILIES = (
    Family(
        name="product_branches", engine="triton", cause="gemm_epilogue", knob="branches",
        neutral=None, build=product,
        sweep=(
            (_cube(4_096, 512), (1, 0, 2, 4)),
            (_cube(4_096, 4_096), (4, 0)),
            (_cube(8_192, 1_024), (2, 0)),
            (_cube(4_096, 2_048, "fp16"), (3, 0)),
        ),
        why="the library's product given up to save the pass of an epilogue",
        small={**_SMALL, "branches": 1},
    ),
    Family(
        name="product_tile", engine="triton", cause="gemm_epilogue", knob="num_warps", neutral=8,
        build=product,
        sweep=((_cube(8_192, 128), (4, 8)), (_cube(4_096, 2_048, branches=1), (4, 8))),
        why="a tile of accumulators on half the warps: the epilogue no longer fits beside it",
        small={**_SMALL, "branches": 1},
    ),
    Family(
        name="product_prologue", engine="triton", cause="recompute", knob="BN", neutral=256,
        build=product,
        sweep=(
            ({**_cube(32_768, 2_048, cost=1, num_warps=8, BM=128), "N": 256}, (32, 64, 128, 256)),
            ({**_cube(65_536, 1_024, "fp16", cost=2, num_warps=8, BM=128), "N": 256},
             (64, 128, 256)),
        ),
        why="the activation of the left factor computed again for every column of tiles",
        small={**_SMALL, "cost": 1},
    ),
    Family(
        name="product_stages", engine="triton", cause="occupancy_shared_memory", knob="num_stages",
        neutral=2, build=product,
        sweep=(
            ({"M": 32_768, "N": 4_096, "K": 128, "dtype": "bf16", "branches": 1, "BM": 64, "BN": 64,
              "BK": 64, "num_warps": 4}, (6, 4, 12, 2)),
            ({"M": 16_384, "N": 8_192, "K": 256, "dtype": "fp16", "BM": 64, "BN": 128, "BK": 32,
              "num_warps": 4}, (12, 6, 2)),
        ),
        why="buffers for more stages than the loop has turns: one block fills the shared memory",
        small=dict(_SMALL),
    ),
    Family(
        name="product_precision", engine="triton", cause="no_tensor_core", knob="precision",
        neutral="tf32", build=product,
        sweep=(
            (_cube(8_192, 96, "fp32", BM=128, BN=64, BK=32, num_warps=4), ("ieee", "tf32")),
            (_cube(8_192, 64, "fp32", BM=128, BN=64, BK=32, num_warps=4), ("ieee", "tf32")),
            (_cube(8_192, 128, "fp32", BM=64, BN=128, BK=32, num_warps=8), ("ieee", "tf32")),
        ),
        why="float32 products outside the tensor cores, where the library uses TF32",
        small=dict(_SMALL),
    ),
    Family(
        name="product_widened", engine="triton", cause="no_tensor_core", knob="widen",
        neutral=False,
        build=product,
        sweep=(
            (_cube(8_192, 128, BM=64, BN=64, BK=32, num_warps=4, precision="ieee"), (True, False)),
            (_cube(8_192, 64, "fp16", BM=64, BN=64, BK=32, num_warps=4, precision="ieee"),
             (True, False)),
        ),
        why="16-bit factors cast to float32 before the product leave the tensor cores",
        small=dict(_SMALL, widen=True),
    ),
)  # fmt: skip
