"""Integer nanoseconds and bytes inside; text only at the border."""

from __future__ import annotations

import math

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_TIME_STEPS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
UNKNOWN = "unknown"
_ROUNDS_TO_ONE = 0.9995
_PLAIN = (1e-4, 1e15)


def _digits(value: float, figures: int) -> str:
    """`value` to so many significant figures, thousands grouped; an exponent only far from 1."""
    if value == 0:
        return "0"
    if not _PLAIN[0] <= abs(value) < _PLAIN[1]:
        return f"{value:.{figures}g}"
    decimals = max(figures - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def _scaled(value: float, steps: tuple[tuple[int, str], ...], base: str) -> str:
    """`value` in the largest unit of which it is at least one after rounding."""
    for size, name in (*steps, (1, base)):
        if abs(value) >= _ROUNDS_TO_ONE * size:
            return f"{_digits(value / size, 3)} {name}"
    return f"{_digits(value, 3)} {base}"


def format_ns(value: float | None) -> str:
    """Nanoseconds in the largest unit that leaves a digit: `format_ns(1_500) == '1.5 µs'`."""
    return UNKNOWN if value is None else _scaled(value, _TIME_STEPS, "ns")


def format_bytes(value: float | None) -> str:
    """Bytes in binary units: `format_bytes(1536) == '1.5 KiB'`."""
    return UNKNOWN if value is None else _scaled(value, _BYTE_STEPS, "B")


def format_fraction(value: float | None) -> str:
    """A fraction as a percentage; less than nothing that rounds to nothing has no sign."""
    return UNKNOWN if value is None else f"{round(100 * value, 1) + 0.0:.1f} %"


def format_ratio(value: float | None) -> str:
    """A speed-up as a factor."""
    return UNKNOWN if value is None else f"{value:.3f}×"


_BY_UNIT = {
    "ns": format_ns,
    "bytes": format_bytes,
    "fraction": format_fraction,
    "ratio": format_ratio,
}


def format_value(value: float | None, unit: str) -> str:
    """`value` as text by its unit: ns, bytes, fraction, ratio, or any other word (`watt`).

    A `count` is a bare number; an unknown unit is written behind the number.
    """
    if value is None:
        return UNKNOWN
    if unit in _BY_UNIT:
        return _BY_UNIT[unit](value)
    text = f"{value:,}" if isinstance(value, int) else _digits(value, 4)
    return text if unit == "count" else f"{text} {unit}"


def runs_text(most: float) -> str:
    """How often the busiest site of some runs in a step, to follow figures; empty if once."""
    return f", a site up to {most:g} times a step" if most > 1 else ""


def counted(number: float, noun: str, plural: str = "") -> str:
    """A number with its noun: `9 sites`, `1 softmax`; `plural` where that is not noun and s."""
    return f"{format_value(number, 'count')} {noun if number == 1 else plural or f'{noun}s'}"
