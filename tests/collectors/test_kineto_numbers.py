"""Decimal microseconds to integer nanoseconds, against the decimal module."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from hypothesis import given
from hypothesis import strategies as st

from collectors.kineto_numbers import INVALID, nanoseconds


def test_nineteen_digits_survive() -> None:
    assert nanoseconds([b"1790857026123456.789"]).tolist() == [1790857026123456789]
    assert round(float(b"1790857026123456.789") * 1000) != 1790857026123456789


def test_layouts_that_occur() -> None:
    texts = [
        b"7",
        b"7.5",
        b"0.735",
        b"10002.490",
        b"1e3",
        b"1.5E+3",
        b'"12.5"',
        b"-3.25",
        b"1.0005",
    ]
    expected = [7000, 7500, 735, 10_002_490, 10**6, 1_500_000, 12_500, -3250, 1000]
    assert nanoseconds(texts).tolist() == expected


def test_what_is_no_time_is_invalid() -> None:
    bad = [
        b"",
        b"null",
        b"NaN",
        b"inf",
        b"1e400",
        b"--1",
        b"1.2.3",
        b".",
        b"{}",
        b"\xff",
        b"9" * 19,
    ]
    assert nanoseconds(bad).tolist() == [INVALID] * len(bad)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**16), st.integers(0, 10**7), st.integers(0, 7)), max_size=20
    )
)
def test_equals_exact_decimal_arithmetic(parts: list[tuple[int, int, int]]) -> None:
    texts = [
        f"{whole}.{fraction:0{digits}d}" if digits else str(whole)
        for whole, fraction, digits in parts
    ]
    expected = [
        int((Decimal(text) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))
        if Decimal(text) * 1000 < 2**63
        else INVALID
        for text in texts
    ]
    assert nanoseconds([text.encode() for text in texts]).tolist() == expected
