"""Few rows: no program has more of them than there are, and none works for the whole GPU alone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from advisor.model.configs import candidate_configs
from advisor.model.dealing import dealt
from advisor.model.launch import (
    MIN_ELEMENTS_PER_THREAD,
    grid_size,
    next_power_of_two,
    unsuitable,
)
from advisor.model.plan import FusionPlan
from tests.builders import members
from tests.builders.plan import rms_norm
from tests.codegen.plans import bias_gradient, layer_norm, norm_gradient, turned

SM_COUNT = 132
WARP_ELEMENTS = 32 * MIN_ELEMENTS_PER_THREAD
Make = Callable[[int, int], FusionPlan]


def _rms_norm(rows: int, columns: int) -> FusionPlan:
    plan = rms_norm(columns=columns)
    site = msgspec.structs.replace(plan.sites[0], row_sizes=(rows,))
    return msgspec.structs.replace(plan, sites=(site,))


PLANS: dict[str, Make] = {
    "RMS norm": _rms_norm,
    "layer norm": lambda rows, columns: layer_norm(sizes=(rows,), columns=columns),
    "norm gradient": lambda rows, columns: norm_gradient(sizes=(rows,), columns=columns),
    "bias gradient": lambda rows, columns: bias_gradient(sizes=(rows,), columns=columns),
    "transposed read": lambda rows, columns: turned(sizes=(rows,), columns=columns),
}
SIZES = [(r, c) for r in (1, 3, 8, 16, 100, 1000) for c in (3, 64, 256, 4096, 40_000)]


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_no_program_has_more_rows_than_there_are(make: Make) -> None:
    for rows, columns in SIZES:
        plan = make(rows, columns)
        for config in candidate_configs(plan, plan.sites[0]):
            assert config.block_rows <= next_power_of_two(rows), (rows, columns, config.label())


@pytest.mark.parametrize("rows", [8, 16, 100])
@pytest.mark.parametrize("columns", [256, 1024, 4096])
@pytest.mark.parametrize("name", ["RMS norm", "layer norm", "norm gradient"])
def test_each_of_few_rows_has_a_program(name: str, rows: int, columns: int) -> None:
    plan = PLANS[name](rows, columns)
    first = candidate_configs(plan, plan.sites[0], sm_count=SM_COUNT)[0]
    assert grid_size(first, rows, columns) == rows, first.label()


@pytest.mark.parametrize("name", [name for name in PLANS if name != "bias gradient"])
def test_where_multiprocessors_are_idle_the_first_has_the_most_programs(name: str) -> None:
    """Sums that one program makes alone are left out: they need no second launch."""
    for rows, columns in ((8, 64), (8, 256), (16, 256), (64, 1024)):
        plan = PLANS[name](rows, columns)
        every = candidate_configs(plan, plan.sites[0], sm_count=SM_COUNT)
        first, *others = (grid_size(config, rows, columns) for config in every)
        assert first >= min(max(first, *others), SM_COUNT // 2), (rows, columns, every[0].label())


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (8, 3), (3, 16), (100, 1)])
def test_less_than_a_warp_needs_is_one_warps(rows: int, columns: int) -> None:
    plan = _rms_norm(rows, columns)
    first = candidate_configs(plan, plan.sites[0])[0]
    assert first.num_warps == 1
    assert first.block_rows * next_power_of_two(columns) <= WARP_ELEMENTS
    assert first.block_rows >= min(next_power_of_two(rows), 32)


def test_sums_over_rows_of_few_columns_are_shared() -> None:
    """Blocks had 32 columns at least: for 16 there was none, and one program took row by row."""
    for columns in (3, 16):
        plan = bias_gradient(sizes=(4096,), columns=columns)
        first = candidate_configs(plan, plan.sites[0], sm_count=SM_COUNT)[0]
        assert grid_size(first, 4096, columns) >= 16
        assert first.block_rows >= 16
        assert unsuitable(first, columns) is None, "what does not suit its own site is never run"


def test_small_programs_side_by_side_get_no_rows_of_nothing() -> None:
    plan = members.group(members.rms_norm(8, 256), members.softmax(4, 256))
    (site,) = plan.sites
    programs = [dealt(plan, site, c.block_columns or 1) for c in candidate_configs(plan, site)]
    assert programs[0] == (4, 2), "two rows each, the fewest elements of a program"
    alone = {c.block_columns for c, n in zip(candidate_configs(plan, site), programs, strict=True)
             if n == (1, 1)}  # fmt: skip
    assert len(alone) == 1, "once each has a program, a larger one holds nothing more"
