"""Decompositions as a GPU gets them, for graphs that are captured where there is none.

PyTorch decomposes some ops by the device of their inputs: on a CPU the statistics of a norm are
stored in the input's type, a group norm becomes one scale and shift, products with a single row or
column become sums, a convolution's gradient sums that of its bias itself, and a product adds a bias
that only pointwise ops read. Plans of such graphs would be none of the GPU's. Formulas: the
branches of `torch/_refs/__init__.py` and `torch/_inductor/decomposition.py` for other devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_opmath
from torch._inductor import decomposition
from torch._inductor.fx_passes import post_grad
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten


@contextlib.contextmanager
def decomposed_as_on_gpu() -> Iterator[None]:
    """What Inductor decomposes while this lasts, and what it takes apart, is as for a GPU."""
    table = decomposition.decompositions
    kept_whole = {op for op, sizes in OUTER.items() if not _splits_outer(table.get(op), sizes)}
    held = {op: table[op] for op in AS_ON_GPU if op in table}
    table.update({op: _whole if op in kept_whole else AS_ON_GPU[op] for op in held})
    decomposition.fast_random_decomps.cache_clear()
    asked = {module: module.is_gpu for module in ASK_FOR_GPU}
    for module in asked:
        module.is_gpu = _any_device
    try:
        yield
    finally:
        for module, is_gpu in asked.items():
            module.is_gpu = is_gpu
        table.update(held)
        decomposition.fast_random_decomps.cache_clear()


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(x.ndim - len(shape), x.ndim))
    out, mean, rstd = _normalised(x.contiguous(), axes, eps)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(x.dtype), mean, rstd


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # Op for op: what is saved for the backward pass depends on how values are shaped, too.
    grouped = _widened(x).reshape(batch, groups, channels // groups, inner)
    out, mean, rstd = _normalised(grouped, [2, 3], eps)
    out = out.view(x.shape)
    if weight is not None:
        out = out * _along_channels(weight, x.ndim)
    if bias is not None:
        out = out + _along_channels(bias, x.ndim)
    mean, rstd = (value.to(x.dtype).squeeze([2, 3]) for value in (mean, rstd))
    return out.to(x.dtype), mean, rstd


def _along_channels(vector: Tensor, axes: int) -> Tensor:
    for axis in (0, *range(2, axes)):
        vector = vector.unsqueeze(axis)
    return vector


def _normalised(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    wide = _widened(x)
    variance, mean = torch.var_mean(wide, dim=axes, unbiased=False, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    return (wide - mean) * rstd, mean, rstd


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


@pw_cast_for_opmath
def _mm(x: Tensor, y: Tensor, out_dtype: torch.dtype | None = None) -> Any:
    return x * y if out_dtype is None and _is_outer(x, y) else NotImplemented


@pw_cast_for_opmath
def _addmm(
    bias: Tensor,
    x: Tensor,
    y: Tensor,
    out_dtype: torch.dtype | None = None,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    if out_dtype is not None or not _is_outer(x, y):
        return NotImplemented
    return alpha * (x * y) + beta * bias


@pw_cast_for_opmath
def _bmm(x: Tensor, y: Tensor, out_dtype: torch.dtype | None = None) -> Any:
    outer = statically_known_true(x.size(2) == 1) and statically_known_true(y.size(1) == 1)
    return (x * y).contiguous() if out_dtype is None and outer else NotImplemented


def _splits_outer(decompose: Callable[..., Any] | None, sizes: Sequence[Sequence[int]]) -> bool:
    """Whether this PyTorch makes one product of an outer one off the CPU: some leave it whole."""
    if decompose is None:
        return False
    return decompose(*(torch.empty(size, device="meta") for size in sizes)) is not NotImplemented


def _whole(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _any_device(_: str) -> bool:
    return True


def _is_outer(x: Tensor, y: Tensor) -> bool:
    """Whether a product sums over one element only and is no vector."""
    known = statically_known_true
    return known(x.size(-1) == 1) and known(x.size(0) != 1) and known(y.size(1) != 1)


# They take ops apart where `is_gpu`, a name of their own, says that a device is one.
ASK_FOR_GPU: tuple[Any, ...] = (decomposition, post_grad)
AS_ON_GPU: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
}
# Sizes of outer products, by which a decomposition is asked what it does of them.
OUTER: dict[Any, tuple[tuple[int, ...], ...]] = {
    aten.mm.default: ((5, 1), (1, 7)),
    aten.addmm.default: ((5, 7), (5, 1), (1, 7)),
    aten.bmm.default: ((2, 5, 1), (2, 1, 7)),
}
