"""How a kernel walks a tensor over the axes of an iteration space."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.graph import TensorMeta
from advisor.model.sizes import ONE, Size, parse


@dataclass(frozen=True)
class BoundInput:
    """An input as read by the group: its stride along every axis, None where it does not vary."""

    value: str
    strides: tuple[Size | None, ...]


def mergeable(axes: tuple[Size, ...], bound: BoundInput, inner: int) -> bool:
    """Whether an input walks axis `inner` and the one outside it as if they were one."""
    outer_stride, inner_stride = bound.strides[inner - 1], bound.strides[inner]
    if outer_stride is None or inner_stride is None:
        return outer_stride is inner_stride
    return outer_stride == inner_stride.times(axes[inner])


def is_row_major(meta: TensorMeta) -> bool:
    """Contiguous in the order of its dimensions (size-1 dimensions may have any stride)."""
    expected = ONE
    for dim, stride in zip(reversed(meta.shape), reversed(meta.strides), strict=True):
        size = parse(dim)
        if size.is_one:
            continue
        if parse(stride) != expected:
            return False
        expected = expected.times(size)
    return True
