"""Figures as text: the right unit, no exponents, only rounding lost, unknown where absent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.units import (
    counted,
    format_bytes,
    format_fraction,
    format_ns,
    format_ratio,
    format_value,
)

SCALES = {
    "ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9,
    "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (0.25, "0.25 ns"),
        (999, "999 ns"),
        (999.6, "1 µs"),
        (1_000, "1 µs"),
        (1_500, "1.5 µs"),
        (999_400, "999 µs"),
        (999_900, "1 ms"),
        (310_000, "310 µs"),
        (10_400_000, "10.4 ms"),
        (-14, "-14 ns"),
        (-999_900, "-1 ms"),
        (90 * 10**9, "90 s"),
        (12_345 * 10**9, "12,345 s"),
        (None, "unknown"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert format_ns(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1010 << 10, "1,010 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (3 << 50, "3,072 TiB"),
        (None, "unknown"),
    ],
)
def test_sizes(value: float | None, text: str) -> None:
    assert format_bytes(value) == text


@given(st.integers(-(2**53), 2**53), st.sampled_from([format_ns, format_bytes]))
def test_text_reads_back_to_half_a_percent_in_the_right_unit(value: int, render: object) -> None:
    assert callable(render)
    number, unit = render(value).split(" ")
    assert "e" not in number
    assert float(number.replace(",", "")) * SCALES[unit] == pytest.approx(value, rel=0.005)
    largest = unit in ("s", "TiB")
    assert largest or abs(float(number.replace(",", ""))) < 1024


@given(st.floats(1e-4, 1e12))
def test_plain_figures_have_no_exponent(value: float) -> None:
    text = format_value(value, "count")
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=5e-4)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_500, "ns", "1.5 µs"),
        (1536, "bytes", "1.5 KiB"),
        (0.125, "fraction", "12.5 %"),
        (2.0, "ratio", "2.000×"),
        (12_345, "count", "12,345"),
        (12_345.6, "watt", "12,346 watt"),
        (612.5, "watt", "612.5 watt"),
        (1e-7, "count", "1e-07"),
        (1e300, "count", "1e+300"),
        (math.inf, "watt", "inf watt"),
        (math.nan, "ns", "nan ns"),
        (None, "ns", "unknown"),
        (None, "watt", "unknown"),
    ],
)
def test_values_by_unit(value: float | None, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_absent_is_unknown_never_zero() -> None:
    assert {
        render(None) for render in (format_ns, format_bytes, format_fraction, format_ratio)
    } == {"unknown"}


def test_counts_are_exact_however_large() -> None:
    assert counted(1, "site") == "1 site"
    assert counted(12_345, "time") == "12,345 times"
    assert counted(2, "softmax", "softmaxes") == "2 softmaxes"
    assert counted(2.5, "kernel") == "2.5 kernels"


@pytest.mark.parametrize("value", [0.0, -0.0, -0.0004, 0.0004])
def test_a_fraction_that_rounds_to_nothing_has_no_sign(value: float) -> None:
    assert format_fraction(value) == "0.0 %"
