"""What a program moves: elements once, and the sectors that short runs touch."""

from __future__ import annotations

import msgspec
import pytest

from advisor.errors import InvalidRecordError
from advisor.model.plan import FusionPlan
from advisor.model.site_work import sector_bytes, site_bytes
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.plans import group_norm


def laid_out(plan: FusionPlan, *steps: tuple[int, ...]) -> FusionPlan:
    """The plan with the strides of its first inputs, and of its first output, at its site."""
    site = plan.sites[0]
    inputs = (*steps, *site.input_strides[len(steps) :])
    outputs = (steps[0], *site.output_strides[1:]) if site.output_strides else ()
    site = msgspec.structs.replace(site, input_strides=inputs, output_strides=outputs)
    return msgspec.structs.replace(plan, sites=(site,))


def test_a_part_of_a_row_is_read_once() -> None:
    """Two tensors and a result of 2 x 4 x 64 elements, weights of 16 channels, two statistics."""
    plan = group_norm("float32", sizes=(2, 4), columns=(4, 16))
    assert site_bytes(plan, plan.sites[0]) == 4 * (3 * 8 * 64 + 2 * 16 + 2 * 8)


def test_what_is_contiguous_touches_no_other_sector() -> None:
    for plan in (rms_norm(columns=512), group_norm()):
        assert sector_bytes(plan, plan.sites[0], 1) == site_bytes(plan, plan.sites[0])


def test_short_runs_touch_more_than_they_read() -> None:
    """Ten channels of 2 bytes anywhere are 20 bytes of 50; sixteen that begin a sector are 32."""
    for channels, factor in ((10, 50 / 20), (16, 1.0)):
        step = 32 * channels
        plan = group_norm("float16", sizes=(8, 32), columns=(4096, channels), channels_last=True)
        walked = (4096 * step, channels, step, 1)
        plan = laid_out(plan, walked, walked)
        moved, touched = site_bytes(plan, plan.sites[0]), sector_bytes(plan, plan.sites[0], 1)
        tiles = 3 * 2 * 8 * 32 * 4096 * channels
        assert touched - moved == pytest.approx((factor - 1) * tiles, rel=1e-6)


def test_rows_side_by_side_share_sectors() -> None:
    """A transposed matrix is read in runs as long as a program has rows."""
    make = PlanBuilder()
    x = make.input("float32", dense=False, unit_stride=False)
    plan = make.plan(make.op("mean", x), sizes=(64,), columns=128)
    plan = laid_out(plan, (1, 64))
    elements = 4 * 64 * 128
    assert sector_bytes(plan, plan.sites[0], 1) == pytest.approx(elements * 8, rel=0.02)
    assert sector_bytes(plan, plan.sites[0], 8) == pytest.approx(elements, rel=0.02)


@pytest.mark.parametrize(("op", "text"), [("sum", "reduces a value"), ("exp", "is a value")])
def test_a_part_of_a_row_is_neither_reduced_nor_written(op: str, text: str) -> None:
    make = PlanBuilder(column_axes=2)
    make.input()
    part = make.input("float32", segments=(True, False))
    value = make.op(op, part)
    with pytest.raises(InvalidRecordError, match=f"{text} of a part of a row"):
        make.plan(value, columns=(4, 8))
