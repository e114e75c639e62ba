"""Families of elementwise kernels: spills, occupancy, recomputation, access, horizontal groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton

from . import kernels_points as kernels
from .model import DTYPES, Family, Pair, Scope, as_op, size_of

BLOCK = 1_024


def mix_fields(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Two rounds over many fields in one kernel; members: a kernel a round."""
    fields, cells, rounds = sizes["fields"], sizes["cells"], sizes["rounds"]
    x = scope.random(fields, cells, dtype=DTYPES[sizes["dtype"]])
    y, between, out = (torch.empty_like(x) for _ in range(3))
    most = None if sizes["max_registers"] == 255 else sizes["max_registers"]

    def mix(source: torch.Tensor, target: torch.Tensor, times: int, **options: Any) -> None:
        block = options.pop("block", 256)
        grid = (triton.cdiv(cells, block),)
        scope.launch(
            kernels.mix_fields, grid, source, target, cells,
            ROUNDS=times, FIELDS=fields, BLOCK=block, **options,
        )  # fmt: skip

    whole = as_op(
        "mix_rounds",
        (x,),
        (y,),
        lambda: mix(x, y, rounds, block=sizes["BLOCK"], max_registers=most),
    )
    first = as_op("mix_first", (x,), (between,), lambda: mix(x, between, rounds // 2))
    second = as_op(
        "mix_second", (between,), (out,), lambda: mix(between, out, rounds - rounds // 2)
    )

    def members() -> tuple[torch.Tensor, ...]:
        first()
        return second()

    return Pair(whole, members, size_of(x, y))


def solve_cells(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A scalar solved from all fields of a cell, which are kept meanwhile to be scaled by it."""
    fields, cells, steps = sizes["fields"], sizes["cells"], sizes["steps"]
    x = scope.random(fields, cells)
    y, out, solved = torch.empty_like(x), torch.empty_like(x), scope.empty(cells)
    grid = (triton.cdiv(cells, 128),)

    def whole() -> None:
        scope.launch(kernels.solve_scale, grid, x, y, cells, steps, FIELDS=fields, BLOCK=128)

    def first() -> None:
        scope.launch(kernels.solve, grid, x, solved, cells, steps, FIELDS=fields, BLOCK=128)

    def second() -> None:
        scope.launch(kernels.scale_fields, grid, x, solved, out, cells, FIELDS=fields, BLOCK=128)

    fused = as_op("solve_scale", (x,), (y,), whole)
    solving = as_op("solve", (x,), (solved,), first)
    scaling = as_op("scale_fields", (x, solved), (out,), second)

    def members() -> tuple[torch.Tensor, ...]:
        solving()
        return scaling()

    return Pair(fused, members, size_of(x, y))


def blur(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A moving mean of an activation, computed again for every neighbour; members: once each."""
    x = scope.random(sizes["size"], dtype=DTYPES[sizes["dtype"]])
    y, between, out = (torch.empty_like(x) for _ in range(3))
    size, cost, radius = sizes["size"], sizes["cost"], sizes["radius"]
    grid = (triton.cdiv(size, BLOCK),)

    def whole() -> None:
        scope.launch(kernels.blur, grid, x, y, size, COST=cost, RADIUS=radius, BLOCK=BLOCK)

    def first() -> None:
        scope.launch(kernels.activate, grid, x, between, size, COST=cost, BLOCK=BLOCK)

    def second() -> None:
        scope.launch(kernels.blur, grid, between, out, size, COST=0, RADIUS=radius, BLOCK=BLOCK)

    fused = as_op("activate_blur", (x,), (y,), whole)
    activated = as_op("activate", (x,), (between,), first)
    blurred = as_op("blur", (between,), (out,), second)

    def members() -> tuple[torch.Tensor, ...]:
        activated()
        return blurred()

    return Pair(fused, members, size_of(x, y))


def gate_rows(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A costly gate of a vector, computed again by every program that uses it."""
    dtype = DTYPES[sizes["dtype"]]
    rows, columns, cost = sizes["rows"], sizes["columns"], sizes["cost"]
    x, g = scope.random(rows, columns, dtype=dtype), scope.random(columns, dtype=dtype)
    y, gate = torch.empty_like(x), torch.empty_like(g)
    each = sizes["rows_each"]

    def whole() -> None:
        grid = (triton.cdiv(rows, each), triton.cdiv(columns, BLOCK))
        scope.launch(
            kernels.gate_block, grid, x, g, y, rows, columns, COST=cost, ROWS=each, BLOCK=BLOCK
        )

    def first() -> None:
        grid = (triton.cdiv(columns, BLOCK),)
        scope.launch(kernels.activate, grid, g, gate, columns, COST=cost, BLOCK=BLOCK)

    fused = as_op("gate_rows", (x, g), (y,), whole)
    activated = as_op("activate", (g,), (gate,), first)

    def members() -> tuple[torch.Tensor, ...]:
        activated()
        return (x * gate,)

    return Pair(fused, members, size_of(x, g, y))


def transpose_add(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """An activation of a transposed tensor added to one that is not."""
    dtype = DTYPES[sizes["dtype"]]
    rows, columns, high = sizes["rows"], sizes["columns"], sizes["HIGH"]
    x, z = scope.random(columns, rows, dtype=dtype), scope.random(rows, columns, dtype=dtype)
    y, out = torch.empty_like(z), torch.empty_like(z)

    def add(given: torch.Tensor, target: torch.Tensor, high: int, activated: bool) -> None:
        wide = sizes["tile"] // high
        scope.launch(
            kernels.transpose_add, (triton.cdiv(rows, high), triton.cdiv(columns, wide)),
            given, z, target, rows, columns, ACTIVATE=activated, WIDE=wide, HIGH=high,
        )  # fmt: skip

    whole = as_op("silu_transpose_add", (x, z), (y,), lambda: add(x, y, high, True))
    # The members' transposed read is done as well as tiles of this size allow.
    even = math.isqrt(sizes["tile"])

    def members() -> tuple[torch.Tensor, ...]:
        active = torch.nn.functional.silu(x)
        return as_op("transpose_add", (active, z), (out,), lambda: add(active, out, even, False))()

    return Pair(whole, members, size_of(x, z, y))


def blend(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Two pictures blended and inverted; members: two kernels of wide, aligned accesses."""
    dtype, size, offset = DTYPES[sizes["dtype"]], sizes["size"], sizes.get("offset", 0)
    a = scope.random(size + 16, dtype=dtype)[offset : offset + size]
    b = scope.random(size + 16, dtype=dtype)[offset : offset + size]
    flat = [t.clone() for t in (a, b)]
    y, between, out = (torch.empty_like(flat[0]) for _ in range(3))
    if offset:
        y = scope.empty(size + 16, dtype=dtype)[offset : offset + size]
    block, grid = sizes.get("BLOCK", 4_096), (triton.cdiv(size, 4_096),)

    def whole() -> None:
        scope.launch(
            kernels.blend, (triton.cdiv(size, block),), a, b, y, size,
            INVERT=True, BLOCK=block, num_warps=sizes.get("num_warps", 4),
        )  # fmt: skip

    def first() -> None:
        scope.launch(kernels.blend, grid, *flat, between, size, INVERT=False, BLOCK=4_096)

    def second() -> None:
        scope.launch(kernels.invert, grid, between, out, size, BLOCK=4_096)

    fused = as_op("blend_invert", (a, b), (y,), whole)
    blended = as_op("blend", flat, (between,), first)
    inverted = as_op("invert", (between,), (out,), second)

    def members() -> tuple[torch.Tensor, ...]:
        blended()
        return inverted()

    return Pair(fused, members, size_of(a, b, y))


def distance(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A squared distance of two tensors, summed by so many programs."""
    dtype, size, programs = DTYPES[sizes["dtype"]], sizes["size"], sizes["programs"]
    x, y = scope.random(size, dtype=dtype), scope.random(size, dtype=dtype)
    partial = scope.empty(programs)

    def whole() -> None:
        scope.launch(
            kernels.distance_sums, (programs,), x, y, partial, size, programs,
            BLOCK=4_096, num_warps=8,
        )  # fmt: skip

    summed = as_op("distance", (x, y), (partial,), whole)

    def fused() -> tuple[torch.Tensor, ...]:
        summed()
        return (partial.sum(),)

    def members() -> tuple[torch.Tensor, ...]:
        return ((x - y).square().sum(dtype=torch.float32),)

    return Pair(fused, members, size_of(x, y))


def update_group(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Optimizer updates of several tensors in one launch, every tensor the same share of programs.

    `skew` is how many times the first tensor is as large as each of the others.
    """
    count, total, skew, each = sizes["tensors"], sizes["size"], sizes["skew"], sizes["programs"]
    unit = total // (skew + count - 1) // 16 * 16
    lengths = [unit * skew] + [unit] * (count - 1)
    starts = [sum(lengths[:i]) for i in range(count + 1)]
    p, m, v = (scope.random(starts[-1]) for _ in range(3))
    v = v.abs()
    q = p.clone()
    places = torch.tensor(starts, dtype=torch.int64).to(scope.device)

    def update(target: torch.Tensor, first: int, grid: tuple[int, int]) -> None:
        scope.launch(kernels.update_each, grid, target, m, v, places, first, BLOCK=BLOCK)

    fused = as_op("update_all", (m, v), (p,), lambda: update(p, 0, (count, each)))
    alone = [
        as_op(
            f"update_{i}", (m, v), (q,),
            lambda i=i: update(q, i, (1, min(1_056, triton.cdiv(lengths[i], BLOCK)))),
        )
        for i in range(count)
    ]  # fmt: skip

    def members() -> tuple[torch.Tensor, ...]:
        for one in alone:
            one()
        return (q,)

    return Pair(fused, members, size_of(p, m, v) + size_of(p))


SIZE = 1 << 26
FAMILIES = (
    Family(
        name="mix_bound", engine="triton", cause="register_spill", knob="max_registers",
        neutral=255,
        build=mix_fields,
        sweep=(
            ({"fields": 24, "cells": 1 << 21, "rounds": 2, "BLOCK": 256, "dtype": "fp32"},
             (24, 32, 64, 255)),
            ({"fields": 32, "cells": 1 << 21, "rounds": 4, "BLOCK": 256, "dtype": "bf16"},
             (32, 40, 64, 255)),
            ({"fields": 48, "cells": 1 << 20, "rounds": 4, "BLOCK": 128, "dtype": "fp16"},
             (32, 255)),
        ),
        why="a bound on registers below what the fields need: few registers, and spills",
        small={"fields": 4, "cells": 300, "rounds": 2, "BLOCK": 256, "dtype": "fp32",
               "max_registers": 255},
    ),
    Family(
        name="mix_tile", engine="triton", cause="register_spill", knob="BLOCK", neutral=256,
        build=mix_fields,
        sweep=(
            ({"fields": 24, "cells": 1 << 21, "rounds": 2, "max_registers": 255, "dtype": "fp32"},
             (2_048, 1_024, 256)),
        ),
        why="too many cells a thread: all fields of all of them do not fit",
        small={"fields": 4, "cells": 300, "rounds": 2, "BLOCK": 256, "dtype": "fp32",
               "max_registers": 255},
    ),
    Family(
        name="solve_cells", engine="triton", cause="occupancy_registers", knob="fields", neutral=16,
        build=solve_cells,
        sweep=(
            ({"cells": 1 << 19, "steps": 2_048}, (80, 48, 112, 16)),
            ({"cells": 1 << 19, "steps": 512}, (96, 16)),
            ({"cells": 1 << 20, "steps": 16}, (80, 16)),
        ),
        why="a wait in the middle that only many warps could hide, while a thread keeps its fields",
        small={"fields": 4, "cells": 200, "steps": 3},
    ),
    Family(
        name="blur", engine="triton", cause="recompute", knob="radius", neutral=0,
        build=blur,
        sweep=(
            ({"size": SIZE, "cost": 1, "dtype": "bf16"}, (8, 1, 4, 0)),
            ({"size": SIZE, "cost": 3, "dtype": "fp16"}, (4, 1, 2, 0)),
            ({"size": SIZE // 2, "cost": 8, "dtype": "fp32"}, (1, 0)),
        ),
        why="a producer computed again for every neighbour that reads it",
        small={"size": 300, "cost": 1, "dtype": "fp32", "radius": 2},
    ),
    Family(
        name="gate_rows", engine="triton", cause="recompute", knob="rows_each", neutral=64,
        build=gate_rows,
        sweep=(
            ({"rows": 16_384, "columns": 4_096, "cost": 16, "dtype": "bf16"}, (1, 2, 4, 64)),
            ({"rows": 65_536, "columns": 1_024, "cost": 8, "dtype": "fp16"}, (1, 64)),
        ),
        why="a costly value of the columns computed again by every program",
        small={"rows": 5, "columns": 200, "cost": 2, "dtype": "fp32", "rows_each": 2},
    ),
    Family(
        name="transpose_add", engine="triton", cause="uncoalesced_access", knob="HIGH", neutral=64,
        build=transpose_add,
        sweep=(
            ({"rows": 8_192, "columns": 8_192, "dtype": "bf16", "tile": 4_096}, (1, 4, 8, 64)),
            ({"rows": 4_096, "columns": 8_192, "dtype": "fp32", "tile": 4_096}, (1, 2, 64)),
        ),
        why="a transposed input walked against its order",
        small={"rows": 50, "columns": 70, "dtype": "fp32", "tile": 1_024, "HIGH": 16},
    ),
    Family(
        name="blend_offset", engine="triton", cause="lost_vectorisation", knob="offset", neutral=0,
        build=blend,
        sweep=(
            ({"size": 2 * SIZE, "dtype": "uint8"}, (1, 4, 0)),
            ({"size": SIZE, "dtype": "fp16"}, (1, 0)),
        ),
        why="views that begin between words: narrow loads and stores",
        small={"size": 300, "dtype": "fp32", "offset": 1},
    ),
    Family(
        name="blend_tile", engine="triton", cause="lost_vectorisation", knob="BLOCK", neutral=4_096,
        build=blend,
        sweep=(
            ({"size": 2 * SIZE, "dtype": "uint8"}, (128, 256, 512, 4_096)),
            ({"size": SIZE, "dtype": "fp16"}, (128, 4_096)),
        ),
        why="a tile of one element a thread: narrow accesses, and more programs than work",
        small={"size": 300, "dtype": "fp32", "BLOCK": 128},
    ),
    Family(
        name="distance", engine="triton", cause="too_few_programs", knob="programs", neutral=1_056,
        build=distance,
        sweep=(
            ({"size": 1 << 24, "dtype": "fp32"}, (16, 32, 64, 1_056)),
            ({"size": 1 << 26, "dtype": "bf16"}, (8, 264, 1_056)),
        ),
        why="one reduction that few programs do alone",
        small={"size": 9_000, "dtype": "fp32", "programs": 2},
    ),
    Family(
        name="update_group", engine="triton", cause="unequal_horizontal", knob="skew", neutral=1,
        build=update_group,
        sweep=(
            ({"tensors": 16, "size": 1 << 25, "programs": 64}, (4, 2, 16, 1)),
            ({"tensors": 32, "size": 1 << 26, "programs": 16}, (64, 1)),
        ),
        why="one launch for tensors of unequal size, each with the same share of programs",
        small={"tensors": 3, "size": 6_000, "programs": 2, "skew": 2},
    ),
)  # fmt: skip
