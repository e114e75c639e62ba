"""The matrix product of a plan by PyTorch, as accurate in float32 as the plan asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from advisor.model.gemm import operand, operands
from advisor.model.plan import FusionPlan


def product_of(plan: FusionPlan, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """[rows..., depth, 1] times [1..., depth, columns] as [rows..., 1, columns].

    Rounded to the operands' type, as the library does, then in float32, or in float64.
    """
    left, right = (values[name] for name in operands(plan))
    found = torch.mm(left.flatten(0, -3)[..., 0], right.reshape(right.shape[-2:]))
    wide = found if found.dtype == torch.float64 else found.to(torch.float32)
    return wide.reshape(*left.shape[:-2], 1, right.shape[-1])


@contextmanager
def allowed_as_planned(plan: FusionPlan) -> Iterator[None]:
    """Within it, products of float32 are rounded to TF32 where the plan's are, and only there."""
    product = plan.product
    if product is None or operand(plan, product.left).dtype != "float32":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = product.tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
