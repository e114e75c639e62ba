"""The sectors that programs touch, tensor by tensor: what a program has of a block, by scheme."""

from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.configs import candidate_configs, default_config
from advisor.model.dealing import dealt_configs, dealt_sector_bytes
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.model.sectors import sector_bytes, unfilled
from advisor.model.site_work import site_bytes
from analyzers.program_cost import program_time
from tests.builders.members import bias_act, group
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.plans import group_norm

HELD = {rows: LaunchConfig(block_rows=rows) for rows in (1, 8)}
H200 = gpu_by_key("h200")


def laid_out(plan: FusionPlan, *inputs: tuple[int, ...], outputs: tuple[tuple[int, ...], ...] = (),
             ) -> FusionPlan:  # fmt: skip
    """The plan with the strides of its first inputs, and of its first outputs, at its site."""
    site = plan.sites[0]
    site = msgspec.structs.replace(
        site,
        input_strides=(*inputs, *site.input_strides[len(inputs) :]),
        output_strides=(*outputs, *site.output_strides[len(outputs) :]),
    )
    return msgspec.structs.replace(plan, sites=(site,))


def beyond(plan: FusionPlan, config: LaunchConfig) -> int:
    """Bytes of sectors beyond those that are needed."""
    return sector_bytes(plan, plan.sites[0], config) - site_bytes(plan, plan.sites[0])


def gradient_of_scales(
    rows: int = 4, columns: tuple[int, ...] = (8, 64, 512), *, across: bool = True
) -> FusionPlan:
    """`Σ g x` and `Σ g y` over the rows, x and y and the results with the middle axis innermost."""
    _, deep, wide = columns
    make = PlanBuilder(1, 3)
    g = make.input("bfloat16", dense=False)
    both = [make.input("bfloat16", (False, True), segments=(False, True, True)) for _ in "xy"]
    total = make.over_rows("sum", g)
    results = [make.op("mul", total, vector) for vector in both]
    plan = make.plan(
        *results, sizes=(rows,), columns=columns, strided=tuple(results), unit_stride=False
    )
    inner = (1, deep) if across else (wide, 1)
    vector, result = (0, 0, *inner), (0, deep * wide, *inner)
    walked = (deep * wide, rows * deep * wide, wide, 1)
    return laid_out(plan, walked, vector, vector, outputs=(result, result))


WALK = LaunchConfig(scheme="column_walk", block_rows=4, block_columns=128, num_warps=1)


def test_what_is_contiguous_touches_no_other_sector() -> None:
    for plan in (rms_norm(columns=512), group_norm(columns=(16, 4096))):
        assert beyond(plan, HELD[1]) == 0


def test_short_runs_touch_more_than_they_read() -> None:
    """Ten channels of 2 bytes anywhere are 20 bytes of 50; sixteen that begin a sector are 32."""
    for channels, factor in ((10, 50 / 20), (16, 1.0)):
        step = 32 * channels
        plan = group_norm("float16", sizes=(8, 32), columns=(4096, channels), channels_last=True)
        walked = (4096 * step, channels, step, 1)
        plan = laid_out(plan, walked, walked, outputs=(walked,))
        tiles = 3 * 2 * 8 * 32 * 4096 * channels
        assert beyond(plan, HELD[1]) == pytest.approx((factor - 1) * tiles, rel=1e-3, abs=1e-9)


def test_rows_side_by_side_share_sectors() -> None:
    """A transposed matrix is read in runs as long as a program has rows."""
    make = PlanBuilder()
    x = make.input("float32", dense=False, unit_stride=False)
    plan = make.plan(make.op("mean", x), sizes=(64,), columns=128)
    plan = laid_out(plan, (1, 64))
    elements = 4 * 64 * 128
    assert beyond(plan, HELD[1]) == elements * 7
    assert beyond(plan, HELD[8]) == 0


def test_every_second_element_shares_its_sector_with_its_neighbours() -> None:
    """Half of each sector is another's; of every 32nd element, all but the element."""
    make = PlanBuilder()
    plan = make.plan(make.op("mean", make.input(dense=False, unit_stride=False)), columns=128)
    assert beyond(laid_out(plan, (256, 2)), HELD[1]) == 4 * 128 * 4
    assert beyond(laid_out(plan, (4096, 32)), HELD[1]) == 4 * 128 * 28


# --- values per column, per row and of a part of a row --------------------------------------------


def test_columns_that_lie_apart_are_priced_as_they_ran() -> None:
    """11.2 µs on an H200, eager 10.5, a copy of the same bytes 2.5: it was priced at 1.5."""
    calibration = default_calibration(H200)
    apart, beside = gradient_of_scales(), gradient_of_scales(across=False)
    found = program_time(apart, apart.sites[0], H200, calibration)
    assert 8_000 <= found.mid <= 12_000
    assert program_time(beside, beside.sites[0], H200, calibration).mid < 2_000


@pytest.mark.parametrize("columns", [128, 1024])
def test_each_request_of_columns_that_lie_apart_has_sectors_of_its_own(columns: int) -> None:
    """Results once, the vectors for each of the 8 heads; a wider block asks no less often."""
    plan = gradient_of_scales()
    elements = 8 * 64 * 512
    heads = 8 // -(-columns // (64 * 512))
    vectors = 2 * 64 * 512 * 30 * heads
    config = msgspec.structs.replace(WALK, block_columns=columns)
    assert beyond(plan, config) == 2 * elements * 30 + vectors
    assert beyond(gradient_of_scales(across=False), config) == 0


def test_what_needs_all_rows_is_read_and_written_once() -> None:
    """However many programs walk over the rows: the second kernel of `column_sums` does both."""
    make = PlanBuilder()
    x, w = make.input(), make.input("float32", (False, True), dense=False, unit_stride=False)
    out = make.op("mul", make.over_rows("sum", x), w)
    plan = make.plan(out, sizes=(512,), columns=128, strided=(out,), unit_stride=False)
    plan = laid_out(plan, (128, 1), (0, 32), outputs=((0, 2),))
    for config in (
        LaunchConfig(scheme="column_sums", block_rows=4, block_columns=64, splits=16),
        LaunchConfig(scheme="column_walk", block_rows=4, block_columns=64),
    ):
        assert beyond(plan, config) == 128 * 28 + 128 * 4


@pytest.mark.parametrize(
    ("scheme", "programs"),
    [("registers", 512 // 4), ("blocks", 512 // 4), ("column_walk", 1), ("column_sums", 16)],
)
def test_a_strided_vector_is_read_by_every_program(scheme: Scheme, programs: int) -> None:
    """Of one with 32 elements from value to value, 28 bytes are another's, whoever reads it."""
    make = PlanBuilder()
    x, w = make.input(), make.input("float32", (False, True), dense=False, unit_stride=False)
    if scheme in ("column_walk", "column_sums"):
        value = make.over_rows("sum", make.op("mul", x, w))
    else:
        value = make.op("mul", x, w)
        value = value if scheme == "blocks" else make.op("sum", value)
    plan = laid_out(make.plan(value, sizes=(512,), columns=128), (128, 1), (0, 32))
    config = LaunchConfig(
        scheme=scheme,
        block_rows=4,
        block_columns=None if scheme == "registers" else 64,
        splits=16 if scheme == "column_sums" else None,
    )
    assert beyond(plan, config) == 128 * 28 * programs


@pytest.mark.parametrize(("scheme", "beside"), [("registers", 1), ("looped", 1), ("split", 2)])
def test_row_values_that_lie_apart_take_a_sector_each(scheme: Scheme, beside: int) -> None:
    make = PlanBuilder()
    x, scale = make.input(), make.input("float32", (True, False), dense=False)
    total = make.op("sum", make.op("mul", x, scale))
    plan = make.plan(total, sizes=(512,), columns=8192, strided=(total,))
    plan = laid_out(plan, (8192, 1), (16, 0), outputs=((16, 0),))
    config = LaunchConfig(
        scheme=scheme,
        block_columns=None if scheme == "registers" else 4096,
        splits=2 if scheme == "split" else None,
    )
    assert beyond(plan, config) == 512 * 28 * (beside + 1)


def test_a_block_of_columns_is_no_block_of_each_column_axis() -> None:
    """64 columns of [16, 64] are one line: what lies along the 16 has sectors of its own."""
    make = PlanBuilder(1, 2)
    out = make.op("exp", make.input("bfloat16", dense=False, unit_stride=False))
    plan = laid_out(make.plan(out, sizes=(64,), columns=(16, 64)), (1024, 1, 16))
    config = LaunchConfig(scheme="blocks", block_rows=16, block_columns=64)
    assert beyond(plan, config) == 64 * 1024 * 30


def test_a_split_row_pays_for_its_sectors_too() -> None:
    make = PlanBuilder()
    x = make.input("bfloat16", dense=False, unit_stride=False)
    plan = make.plan(make.op("amax", x), sizes=(4,), columns=1 << 22)
    dense, apart = laid_out(plan, (1 << 22, 1)), laid_out(plan, (1 << 26, 16))
    assert default_config(apart, apart.sites[0]).scheme == "split"
    times = [program_time(p, p.sites[0], H200, default_calibration(H200)) for p in (dense, apart)]
    assert times[1].mid > 4 * times[0].mid


def test_members_of_one_launch_pay_for_their_own() -> None:
    """A transposed copy beside a bias: larger programs have more rows of it, and fill sectors."""
    make = PlanBuilder()
    x = make.op("neg", make.input("bfloat16", dense=False, unit_stride=False))
    copy = laid_out(make.plan(x, sizes=(4096,), columns=256), (1, 4096))
    plan = group(copy, bias_act(64, 256))
    site = plan.sites[0]
    least, most = (dealt_sector_bytes(plan, site, elements) for elements in (512, 8192))
    assert least - site_bytes(plan, site) == 4096 * 256 * 30 // 2  # two rows at a time
    assert most == site_bytes(plan, site)
    assert (dealt_configs(plan, site, 132)[0].block_columns or 0) >= 16 * 256


# --- what is tried first --------------------------------------------------------------------------


def test_sums_over_rows_side_by_side_take_rows_of_a_whole_sector() -> None:
    """Sixteen rows of bfloat16 that lie side by side are a sector; eight were tried first."""
    make = PlanBuilder()
    x = make.input("bfloat16", dense=False, unit_stride=False)
    total = make.over_rows("sum", make.cast(x, "float32"))
    plan = laid_out(make.plan(total, sizes=(16,), columns=1 << 18), (1, 16))
    assert candidate_configs(plan, plan.sites[0])[0].block_rows == 16


def test_rows_are_not_taken_together_for_next_to_nothing() -> None:
    """The weights of a group norm, read a few to a row, are no reason for several rows at once."""
    plan = group_norm("bfloat16", sizes=(32, 32), columns=(10, 4096))
    assert {c.block_rows for c in candidate_configs(plan, plan.sites[0])} == {1}


@pytest.mark.parametrize(
    ("rows", "columns"), [(4, (64, 0)), (4, (0, 64)), (0, (8, 64)), (0, (0, 0))]
)
@pytest.mark.parametrize("over_rows", [False, True])
def test_nothing_touches_no_sectors(rows: int, columns: tuple[int, ...], over_rows: bool) -> None:
    make = PlanBuilder(1, 2)
    x = make.input("bfloat16", dense=False)
    value = make.over_rows("sum", x) if over_rows else make.op("tanh", x)
    plan = make.plan(value, sizes=(rows,), columns=columns, strided=(value,), unit_stride=False)
    plan = laid_out(plan, (8, 1, 2), outputs=((0 if over_rows else 1, 3, 17),))
    for config in candidate_configs(plan, plan.sites[0]):
        assert beyond(plan, config) == 0
        assert unfilled(plan, plan.sites[0])(config) == 0.0
