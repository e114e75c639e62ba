"""Which sizes a plan's kernel serves, and which sizes weigh more than those it was tuned with."""

from __future__ import annotations

import msgspec

from advisor.model.plan import FusionPlan, Site
from advisor.model.served import sizes_served, unserved
from tests.builders.plan import PlanBuilder


def softmax(*sizes: tuple[int, int, float]) -> FusionPlan:
    """A plan with a site for each (rows, columns, executions)."""
    make = PlanBuilder()
    x = make.input()
    powers = make.op("exp", make.op("sub", x, make.op("amax", x)))
    plan = make.plan(make.op("div", powers, make.op("sum", powers)), sizes=(8,), columns=32)
    first = plan.sites[0]

    def site(rows: int, columns: int, executions: float) -> Site:
        return msgspec.structs.replace(
            first, row_sizes=(rows,), columns=columns, executions=executions
        )

    return msgspec.structs.replace(plan, sites=tuple(site(*size) for size in sizes))


def unserved_at(plan: FusionPlan, columns: int) -> str | None:
    return unserved(plan, msgspec.structs.replace(plan.sites[0], columns=columns))


def test_any_number_of_rows_of_columns_that_were_seen() -> None:
    plan = softmax((4096, 768, 12.0), (64, 768, 1.0), (4096, 512, 1.0))
    assert unserved_at(plan, 768) is None
    assert unserved_at(plan, 512) is None
    assert "rows of 1,024 columns were not verified" in (unserved_at(plan, 1024) or "")
    assert sizes_served(plan) == (
        "4,096 rows × 768 columns, 64 rows × 768 columns, 4,096 rows × 512 columns; "
        "in graphs compiled for any number of rows too"
    )


def test_what_weighs_more_than_the_site_it_was_tuned_for() -> None:
    why = "most of what was seen has 4,096 rows, and its kernel was tuned for 64"
    plan = softmax((64, 768, 1.0), (4096, 768, 1.0))
    assert unserved_at(plan, 768) == why
    assert (sizes_served(plan) or "").endswith(f"the compiler's own code runs: {why}")
    # Executions weigh as bytes do, sizes of one bucket together, other columns not at all.
    assert unserved_at(softmax((64, 768, 65.0), (4096, 768, 1.0)), 768) is None
    assert unserved_at(softmax((64, 768, 30.0), (4096, 768, 1.0), (60, 768, 40.0)), 768) is None
    assert unserved_at(softmax((64, 768, 1.0), (4096, 512, 1.0)), 768) is None


def test_many_sizes_are_counted_and_no_site_is_no_size() -> None:
    plan = softmax(*((rows, 768, 1.0) for rows in range(65, 71)))
    assert "69 rows" not in (sizes_served(plan) or "")
    assert " and 2 more; " in (sizes_served(plan) or "")
    assert sizes_served(msgspec.structs.replace(plan, sites=())) is None


def test_one_row_or_column_is_one() -> None:
    assert (sizes_served(softmax((1, 4096, 1.0))) or "").startswith("1 row × 4,096 columns; ")
    assert (sizes_served(softmax((4096, 1, 1.0))) or "").startswith("4,096 rows × 1 column; ")
