"""Decimal microseconds as text to integer nanoseconds, exactly.

Kineto writes up to 19 significant digits; a double would lose a quarter of a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

# What `nanoseconds` gives for text that is no time; equals the trace model's mark for "absent".
INVALID = -(2**63)
_LONGEST = 20  # 15 digits, dot, 3 decimals fit; longer text takes the exact slow path
_MOST_DIGITS = 18  # always within int64
_SPACE, _DOT, _ZERO = 32, 46, 48


def nanoseconds(texts: Sequence[bytes]) -> Ints:
    """Each decimal number of microseconds in nanoseconds, half a nanosecond rounded to even.

    Quoted numbers and exponents are read; NaN, infinities, empty text and what exceeds int64 give
    `INVALID`.
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    joined = b" ".join(texts)
    if _regular(joined, len(texts)):
        return np.fromstring(joined.replace(b".", b"").decode("ascii"), dtype=np.int64, sep=" ")
    return _mixed(list(map(bytes, texts)))


def _regular(joined: bytes, count: int) -> bool:
    """Whether all are digits with three decimals, as PyTorch has written since 2.2."""
    characters = np.frombuffer(joined, dtype=np.uint8)
    dots, spaces = np.flatnonzero(characters == _DOT), np.flatnonzero(characters == _SPACE)
    if len(dots) != count or len(spaces) != count - 1:
        return False
    digits = np.count_nonzero((characters >= _ZERO) & (characters <= _ZERO + 9))
    ends = np.append(spaces, len(characters))
    starts = np.append(0, spaces + 1)
    return bool(
        digits + 2 * count - 1 == len(characters)
        and np.all(ends - dots == 4)
        and np.all(dots > starts)
        and np.all(ends - starts <= _MOST_DIGITS + 1)
    )


def _mixed(texts: list[bytes]) -> Ints:
    """Any layout: a character column at a time, and what is not plain exactly."""
    packed = np.array(texts, dtype=bytes)
    width = min(packed.dtype.itemsize, _LONGEST)
    digits = np.zeros((len(texts), width), dtype=np.uint8)
    full = packed.view(np.uint8).reshape(len(texts), -1)
    digits[:, :] = full[:, :width]
    lengths = np.char.str_len(packed)
    value, simple = _fast(np.ascontiguousarray(digits.T), lengths)
    for index in np.flatnonzero(~simple).tolist():
        value[index] = _exact(texts[index])
    return value


def _fast(columns: NDArray[np.uint8], lengths: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """(value, whether it is right) for plain `123` to `123.456`, a character column at a time."""
    count = columns.shape[1]
    value = np.zeros(count, dtype=np.int64)
    decimals = np.full(count, -1, dtype=np.int64)  # -1: no dot yet
    simple = (lengths > 0) & (lengths <= columns.shape[0])
    for position, characters in enumerate(columns):
        inside = position < lengths
        is_dot = inside & (characters == _DOT)
        digit = characters.astype(np.int64) - _ZERO
        is_digit = inside & (digit >= 0) & (digit <= 9)
        simple &= ~inside | is_digit | (is_dot & (decimals < 0))
        value = np.where(is_digit, value * 10 + digit, value)
        decimals += (is_digit & (decimals >= 0)) | (is_dot & (decimals < 0))
    decimals = np.maximum(decimals, 0)
    simple &= (decimals <= 3) & (lengths - decimals <= 15) & (columns[0] != _DOT)
    power = np.array([1000, 100, 10, 1], dtype=np.int64)[np.minimum(decimals, 3)]
    return value * power, simple


def _exact(text: bytes) -> int:
    try:
        scaled = Decimal(text.strip(b' "').decode("ascii")) * 1000
        if not scaled.is_finite() or scaled.adjusted() > 18:
            return INVALID
        value = int(scaled.to_integral_value())
    except (InvalidOperation, UnicodeDecodeError):
        return INVALID
    return value if abs(value) < 2**63 else INVALID
