"""What a program moves: elements once."""

from __future__ import annotations

import pytest

from advisor.errors import InvalidRecordError
from advisor.model.site_work import site_bytes
from tests.builders.plan import PlanBuilder
from tests.codegen.plans import group_norm


def test_a_part_of_a_row_is_read_once() -> None:
    """Two tensors and a result of 2 x 4 x 64 elements, weights of 16 channels, two statistics."""
    plan = group_norm("float32", sizes=(2, 4), columns=(4, 16))
    assert site_bytes(plan, plan.sites[0]) == 4 * (3 * 8 * 64 + 2 * 16 + 2 * 8)


@pytest.mark.parametrize(("op", "text"), [("sum", "reduces a value"), ("exp", "is a value")])
def test_a_part_of_a_row_is_neither_reduced_nor_written(op: str, text: str) -> None:
    make = PlanBuilder(column_axes=2)
    make.input()
    part = make.input("float32", segments=(True, False))
    value = make.op(op, part)
    with pytest.raises(InvalidRecordError, match=f"{text} of a part of a row"):
        make.plan(value, columns=(4, 8))
