"""How many bytes an operand has, by the names that recorders give types."""

from __future__ import annotations

import pytest

from advisor.model.step_record import Tensor


@pytest.mark.parametrize(
    ("dtype", "item_bytes"),
    [("c10::Float8_e4m3fn", 1), ("c10::BFloat16", 2), ("float", 4), ("long int", 8), ("?", None)],
)
def test_bytes_of_an_operand(dtype: str, item_bytes: int | None) -> None:
    tensor = Tensor(shape=(3, 5), dtype=dtype)
    assert tensor.item_bytes == item_bytes
    assert tensor.size_bytes == 15 * (item_bytes or 4)
