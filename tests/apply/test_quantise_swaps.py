"""Quantisers in compiled graphs: scales of rows, blocks and a tensor, in both orders at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.pipeline.backend import SwapLog
from collectors.live.capture import capture
from collectors.live.workload import Workload
from tests.builders.interpreted import kernels_of, swapping

CPU = torch.device("cpu")
Tensor = torch.Tensor
Quantiser = Callable[[Tensor], tuple[Tensor, ...]]


def stored(x: Tensor, scale: Tensor) -> Tensor:
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def of_rows(x: Tensor) -> tuple[Tensor, ...]:
    scale = x.float().abs().amax(-1, keepdim=True) / 448
    return stored(x, scale), scale


def of_all(x: Tensor) -> tuple[Tensor, ...]:
    scale = x.float().abs().max() / 448
    return stored(x, scale), scale


def in_both_orders(x: Tensor) -> tuple[Tensor, ...]:
    small = stored(x, torch.full((), 0.01, device=x.device))
    return small, small.t().contiguous()


def whole_bytes(x: Tensor) -> tuple[Tensor, ...]:
    small = torch.round(x.float() * 20).clamp(-128, 127).to(torch.int8)
    return small, small.t().contiguous()


def of_blocks(x: Tensor) -> tuple[Tensor, ...]:
    blocks = x.unflatten(-1, (-1, 128))
    small, scale = of_rows(blocks)
    return small.flatten(-2), scale.squeeze(-1)


def of_squares(x: Tensor) -> tuple[Tensor, ...]:
    blocks = x.unflatten(-1, (-1, 128)).unflatten(0, (-1, 128))
    scale = blocks.float().abs().amax((1, 3), keepdim=True) / 448
    return stored(blocks, scale).reshape(x.shape), scale.squeeze((1, 3))


def with_copy(quantiser: Quantiser) -> Quantiser:
    def both(x: Tensor) -> tuple[Tensor, ...]:
        small, *rest = quantiser(x)
        return small, *rest, small.transpose(-1, -2).contiguous()

    return both


@pytest.mark.parametrize(
    ("quantiser", "scheme", "orders"),
    [(of_rows, "registers", 1), (of_all, "split", 1), (in_both_orders, "blocks", 2),
     (whole_bytes, "blocks", 2), (with_copy(of_rows), "registers", 2),
     (with_copy(of_all), "split", 2), (with_copy(of_blocks), "registers", 2),
     (with_copy(of_squares), "split", 2)],
    ids=["rows", "all", "given scale", "bytes", "rows, both", "all, both", "blocks, both",
         "squares, both"],
)  # fmt: skip
def test_a_quantiser_is_one_plan(
    quantiser: Quantiser, scheme: str, orders: int, tmp_path: Path
) -> None:
    x = torch.randn(512, 1024).bfloat16()
    work = Workload("quantise", "inference", CPU, quantiser, inputs=(x,))
    (kernel,) = kernels_of(capture(work, generate_code=False)[0], tmp_path)
    assert kernel.config.scheme == scheme
    assert sum(output.space == "tile" for output in kernel.plan.outputs) == orders
    log = SwapLog()
    part: Any = torch.compile(quantiser, backend=swapping([kernel], log))
    with torch.no_grad():
        mine, want = part(x), quantiser(x)
    assert [outcome.refused for outcome in log.outcomes] == [None]
    for one, other in zip(mine, want, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.float(), other.float(), rtol=0.07, atol=1e-6)
