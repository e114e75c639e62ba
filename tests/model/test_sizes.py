"""Symbolic sizes: products and exact quotients agree with integers put in for the symbols."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from advisor.model.sizes import ONE, Dim, Size, parse, product

VALUES = {"s0": 7, "s1": 11, "u3": 13}
symbols = st.lists(st.sampled_from(sorted(VALUES)), max_size=3)
sizes = st.builds(
    lambda number, names: Size(coefficient=number, symbols=tuple(sorted(names))),
    st.integers(1, 1000),
    symbols,
)
dims = st.one_of(
    st.integers(1, 64),
    st.builds(lambda n, names: "*".join([str(n), *names]), st.integers(1, 9), symbols),
)


def value(size: Size) -> int:
    return size.coefficient * math.prod(VALUES[name] for name in size.symbols)


@given(st.lists(dims, max_size=4))
def test_a_product_is_the_product_for_every_value(shape: list[Dim]) -> None:
    numbers = [
        d if isinstance(d, int) else math.prod(VALUES.get(f) or int(f) for f in d.split("*"))
        for d in shape
    ]
    assert value(product(shape)) == math.prod(numbers)


@given(sizes, sizes)
def test_a_quotient_is_exact_and_undoes_the_product(first: Size, second: Size) -> None:
    assert first.times(second).over(second) == first
    quotient = first.over(second)
    if quotient is not None:
        assert value(quotient) * value(second) == value(first)


@given(sizes, sizes)
def test_order_of_factors_does_not_matter(first: Size, second: Size) -> None:
    assert first.times(second) == second.times(first)


def test_what_is_not_certain_is_no_quotient() -> None:
    assert parse("s0").over(parse("s1")) is None
    assert parse(7).over(parse(2)) is None
    assert parse(4).over(parse(0)) is None


def test_a_sum_is_one_opaque_symbol_equal_to_itself_only() -> None:
    assert parse("s0 + 1") == parse("s0 + 1")
    assert parse("s0 + 1") != parse("s0")
    assert parse("2*s0 + 1").coefficient == 1


def test_one_is_certain() -> None:
    assert ONE.is_one
    assert not parse("s0").is_one
