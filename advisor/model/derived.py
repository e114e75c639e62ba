"""What plans made of other plans share: ops under new names, strides of what is new in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.model.plan import PlanOp


def renamed(op: PlanOp, names: Mapping[str, str]) -> PlanOp:
    """The op with its own name and those of what it reads exchanged; literals stay."""
    args = tuple(names.get(arg, arg) if isinstance(arg, str) else arg for arg in op.args)
    return msgspec.structs.replace(op, name=names[op.name], args=args)


def dense_strides(sizes: Sequence[int], along: Sequence[bool]) -> tuple[int, ...]:
    """Row-major strides, in elements, of a value without gaps; 0 where it does not vary.

    `sizes` and `along` have one entry an axis, the outermost first.
    """
    strides, step = [], 1
    for size, spans in zip(reversed(sizes), reversed(along), strict=True):
        strides.append(step if spans else 0)
        step *= size if spans else 1
    return tuple(reversed(strides))
