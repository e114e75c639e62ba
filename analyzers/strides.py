"""How a kernel walks a tensor over the axes of an iteration space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.model.graph import TensorMeta
from advisor.model.sizes import ONE, Size, parse

# Of a tensor along every axis, None where it does not vary.
Strides = tuple[Size | None, ...]


@dataclass(frozen=True)
class BoundInput:
    """An input as read by the group: its stride along every axis, None where it does not vary."""

    value: str
    strides: Strides


@dataclass(frozen=True)
class Lookup:
    """A lookup read from its table: its node, the table, the index as the group reads it."""

    node: str
    table: str
    index: BoundInput


def merged_axes(
    axes: tuple[Size, ...], run: tuple[int, ...], walks: Sequence[Strides]
) -> tuple[tuple[int, ...], ...]:
    """The axes of a run, those together that all tensors walk as if they were one."""
    runs: list[tuple[int, ...]] = []
    for axis in run:
        if runs and all(mergeable(axes, strides, runs[-1][-1], axis) for strides in walks):
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return tuple(runs)


def mergeable(axes: tuple[Size, ...], strides: Strides, outer: int, inner: int) -> bool:
    """Whether a tensor walks axis `inner` and the one outside it as if they were one."""
    outer_stride, inner_stride = strides[outer], strides[inner]
    if outer_stride is None or inner_stride is None:
        return outer_stride is inner_stride
    return outer_stride == inner_stride.times(axes[inner])


def has_no_gaps(meta: TensorMeta) -> bool:
    """Whether its elements fill their memory, in whatever order of its dimensions, none twice."""
    left = [
        (parse(dim), parse(stride))
        for dim, stride in zip(meta.shape, meta.strides, strict=True)
        if not parse(dim).is_one
    ]
    expected = ONE
    while left:
        found = next((pair for pair in left if pair[1] == expected), None)
        if found is None:
            return False
        left.remove(found)
        expected = expected.times(found[0])
    return True
