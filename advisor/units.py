"""Integer nanoseconds and bytes inside; text only at the border."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_TIME_STEPS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
UNKNOWN = "unknown"


def _scaled(value: float, steps: tuple[tuple[int, str], ...], base: str) -> str:
    for size, name in steps:
        if abs(value) >= size:
            return (
                f"{value / size:.3g} {name}"
                if abs(value) < 1000 * size
                else f"{value / size:,.0f} {name}"
            )
    return f"{value:.3g} {base}" if abs(value) < 1000 else f"{value:,.0f} {base}"


def format_ns(value: float | None) -> str:
    """Nanoseconds in the largest unit that leaves a digit: `format_ns(1_500) == '1.5 µs'`."""
    return UNKNOWN if value is None else _scaled(value, _TIME_STEPS, "ns")


def format_bytes(value: float | None) -> str:
    """Bytes in binary units: `format_bytes(1536) == '1.5 KiB'`."""
    return UNKNOWN if value is None else _scaled(value, _BYTE_STEPS, "B")


def format_fraction(value: float | None) -> str:
    """A fraction as a percentage."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


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
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return text if unit == "count" else f"{text} {unit}"
