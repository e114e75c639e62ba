"""One operator as a profiler wrote it down: tensors with shape, dtype, strides; scalars."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from advisor.model.base import Location
from advisor.model.dtypes import RECORDED_DTYPES

UNKNOWN_PLACE = Location()


@dataclass(frozen=True)
class Operand:
    """A tensor argument as it was read; `strides` is None where none were recorded."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None

    @property
    def elements(self) -> int:
        """The distinct elements: axes that are repeated without a copy (stride 0) count once."""
        return math.prod(self.dense_shape())

    def dense_shape(self) -> tuple[int, ...]:
        """The shape with repeated axes of size 1."""
        if self.strides is None:
            return self.shape
        pairs = zip(self.shape, self.strides, strict=True)
        return tuple(1 if stride == 0 else size for size, stride in pairs)

    def extent(self) -> int:
        """The elements of the smallest tensor that this one is a part of, its slowest axis full."""
        if self.strides is None:
            return self.elements
        pairs = zip(self.shape, self.strides, strict=True)
        return max((size * stride for size, stride in pairs if size > 1), default=1)


@dataclass(frozen=True)
class RecordedOp:
    """Arguments by position: a tensor, a list of them, or the text of a scalar ("" if unknown)."""

    name: str
    arguments: tuple[Operand | tuple[Operand, ...] | str, ...]
    location: Location = UNKNOWN_PLACE

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """All tensors, those of lists included, in order."""
        found: list[Operand] = []
        for argument in self.arguments:
            if isinstance(argument, Operand):
                found.append(argument)
            elif isinstance(argument, tuple):
                found += argument
        return tuple(found)

    def tensor(self, position: int) -> Operand | None:
        """The tensor at a position, or None."""
        given = self.arguments[position] if position < len(self.arguments) else None
        return given if isinstance(given, Operand) else None

    def number(self, position: int) -> float | None:
        """The value of a scalar, or None where it is no finite number or was not recorded."""
        given = self.arguments[position] if position < len(self.arguments) else ""
        if not isinstance(given, str):
            return None
        try:
            number = float(given)
        except ValueError:
            return {"True": 1.0, "False": 0.0}.get(given)
        return number if math.isfinite(number) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """A list of integers such as `[-1]`, or None where it was not recorded."""
        given = self.arguments[position] if position < len(self.arguments) else ""
        listed = _json(given) if isinstance(given, str) else None
        if isinstance(listed, int) and not isinstance(listed, bool):
            return (listed,)
        if isinstance(listed, list) and all(isinstance(i, int) for i in listed):
            return tuple(listed)
        return None


def recorded_op(
    name: str,
    shapes: object,
    dtypes: object,
    strides: object,
    values: object,
    location: Location,
) -> RecordedOp | None:
    """The op from the JSON texts of a trace, or None where no shapes were recorded."""
    sizes, kinds = _json(shapes), _json(dtypes)
    if not isinstance(sizes, list) or not isinstance(kinds, list) or len(sizes) != len(kinds):
        return None
    steps, texts = _json(strides), _json(values)
    steps = steps if isinstance(steps, list) and len(steps) == len(sizes) else [None] * len(sizes)
    texts = texts if isinstance(texts, list) and len(texts) == len(sizes) else [""] * len(sizes)
    columns = zip(sizes, kinds, steps, texts, strict=True)
    return RecordedOp(name, tuple(_argument(*column) for column in columns), location)


def _argument(size: Any, kind: Any, step: Any, text: Any) -> Operand | tuple[Operand, ...] | str:
    if kind == "TensorList" and isinstance(size, list):
        steps = step if isinstance(step, list) and len(step) == len(size) else [None] * len(size)
        items = (_operand("", s, t) for s, t in zip(size, steps, strict=True))
        return tuple(item for item in items if item is not None)
    if kind in RECORDED_DTYPES:
        found = _operand(RECORDED_DTYPES[kind], size, step)
        if found is not None:
            return found
    return text if isinstance(text, str) else ""


def _operand(dtype: str, size: Any, step: Any) -> Operand | None:
    """A tensor; None for sizes that are no list of non-negative integers."""
    if not _counts(size):
        return None
    return Operand(dtype, tuple(size), tuple(step) if _counts(step, len(size)) else None)


def _counts(item: Any, length: int | None = None) -> bool:
    return (
        isinstance(item, list)
        and (length is None or len(item) == length)
        and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in item)
    )


def _json(text: object) -> Any:
    if not isinstance(text, str) or not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
