"""Copies in the other order beside reductions: which orders one kernel writes, which it leaves."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.configs import candidate_configs, default_config
from advisor.model.plan import FusionPlan
from advisor.model.sectors import writes_along_rows
from advisor.verify.region import region_disagreement
from analyzers.axes import copies
from analyzers.program_cost import program_time
from analyzers.program_notes import walk
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import RowPrograms, find_row_programs
from collectors.live.capture import capture
from collectors.live.fx_graph import Lowered
from collectors.live.workload import Workload
from tests.builders.plan import PlanBuilder
from tests.builders.quantised import both_orders

CPU = torch.device("cpu")
Tensor = torch.Tensor


def lowered(function: Callable[..., object], *shape: int) -> Lowered:
    """The graph of a function of one bfloat16 tensor."""
    work = Workload("copies", "inference", CPU, function, inputs=(torch.randn(shape).bfloat16(),))
    (found,) = capture(work, generate_code=False)[0].graphs
    return found.lowered


def quantised(x: Tensor, *dims: int) -> Tensor:
    return (x.float() / (x.float().abs().amax(dims, keepdim=True) / 448)).to(torch.float8_e4m3fn)


def copied(found: RowPrograms) -> list[int]:
    """How many copies each group has."""
    flow = found.flow
    return [len(copies(flow, [flow.nodes[n] for n in group.members])) for group in found.whole]


def plan_in(found: RowPrograms) -> FusionPlan:
    (group,) = found.whole
    return plan_of([canonical_program(found.flow, group)], "inference", "quantised")


@pytest.mark.parametrize(
    ("shape", "dims", "order", "rows", "turned"),
    [
        ((4, 6, 32), (-1,), (0, 2, 1), (4, 6), False),
        ((4, 6, 32), (-1,), (2, 1, 0), (6, 4), False),
        ((4, 6, 32), (-1,), (1, 0, 2), (4, 6), False),
        ((16, 8, 8, 16), (1, 3), (3, 2, 0, 1), (16, 8), True),
        ((6, 32), (), (1, 0), (1,), True),
        ((3, 6, 32), (), (0, 2, 1), (1,), True),
    ],
    ids=["rows", "outer rows", "rows in another order", "blocks", "all", "several matrices"],
)
def test_a_copy_whose_sectors_a_tile_fills_is_written_too(
    shape: tuple[int, ...], dims: tuple[int, ...], order: tuple[int, ...], rows: tuple[int, ...],
    turned: bool,
) -> None:  # fmt: skip
    """The rows end with the axis along which the copy is stored without gaps."""

    def both(x: Tensor) -> tuple[Tensor, ...]:
        small = quantised(x, *(dims or range(x.dim())))
        return small, small.permute(order).contiguous()

    graph = lowered(both, *shape)
    found = find_row_programs(graph.graph)
    assert copied(found) == [1]
    # Views that stand for the copy of the program do not stay out of anything.
    assert not any(word in m.reason for m in found.near_misses for word in ("clone", "permute"))
    plan = plan_in(found)
    assert plan.sites[0].row_sizes == rows
    assert plan.in_tiles == turned
    assert region_disagreement(plan, plan.sites[0], graph.fx_aliases, CPU) is None


@pytest.mark.parametrize("dims", [(-1,), (0, 1)], ids=["rows", "all"])
def test_the_copy_alone_is_written_where_nobody_reads_the_first_order(
    dims: tuple[int, ...],
) -> None:
    graph = lowered(lambda x: quantised(x, *dims).t().contiguous(), 64, 96)
    plan = plan_in(find_row_programs(graph.graph))
    assert [output.strided for output in plan.outputs] == [True]
    assert region_disagreement(plan, plan.sites[0], graph.fx_aliases, CPU) is None


def test_two_orders_are_two_copies() -> None:
    def three(x: Tensor) -> tuple[Tensor, ...]:
        small = quantised(x, -1)
        return small, small.permute(0, 2, 1).contiguous(), small.permute(2, 0, 1).contiguous()

    graph = lowered(three, 4, 6, 32)
    found = find_row_programs(graph.graph)
    assert copied(found) == [2]
    (site,) = plan_in(found).sites
    assert len(set(site.output_strides)) == 3
    assert region_disagreement(plan_in(found), site, graph.fx_aliases, CPU) is None


def of_all_backwards(x: Tensor) -> tuple[Tensor, ...]:
    small = quantised(x, 0, 1, 2)
    return small, small.permute(2, 1, 0).contiguous()


def in_odd_blocks(x: Tensor) -> tuple[Tensor, ...]:
    small = quantised(x, 1, 3)
    return small, small.permute(2, 3, 0, 1).contiguous()


def beside_sums(x: Tensor) -> tuple[Tensor, ...]:
    small = quantised(x, -1)
    return small, x.float().sum(0), small.t().contiguous()


@pytest.mark.parametrize(
    ("function", "shape", "why"),
    [
        (of_all_backwards, (4, 6, 32), "no tile fills whole sectors"),
        (in_odd_blocks, (4, 12, 4, 12), "no tile fills whole sectors"),
        (beside_sums, (64, 48), "beside sums over all rows"),
    ],
)
def test_a_copy_that_no_tile_fills_stays_out(
    function: Callable[..., object], shape: tuple[int, ...], why: str
) -> None:
    found = find_row_programs(lowered(function, *shape).graph)
    assert copied(found) == [0]
    assert bool(found.whole[0].space.late) == (function is beside_sums)
    assert any(why in miss.reason for miss in found.near_misses)


def test_long_rows_have_a_program_without_the_copy() -> None:
    """Programs of many long rows read them twice: a copy apart reads the result once more."""

    def both(x: Tensor) -> tuple[Tensor, ...]:
        small = quantised(x, -1)
        return small, small.t().contiguous()

    short, long = (find_row_programs(lowered(both, 64, n).graph) for n in (1024, 2048))
    assert short.apart == (None,)
    (whole,), (apart,) = long.whole, long.apart
    assert apart is not None
    assert set(whole.members) - set(apart.members) == {
        node.id for node in copies(long.flow, [long.flow.nodes[n] for n in whole.members])
    }
    assert len(apart.space.outputs) == len(whole.space.outputs) - 1


def test_what_programs_of_many_rows_read_again_has_a_price() -> None:
    """From L2 if it holds the rows of all programs, from memory if not."""
    large, plan = gpu_by_key("h200"), both_orders("rows", 16_384, 4096)
    (site,), small = plan.sites, msgspec.structs.replace(large, l2_bytes=10 << 20)
    assert default_config(plan, site).scheme == "looped"
    assert "read them again" in walk(plan, site).text
    near, far = (program_time(plan, site, gpu, default_calibration(large)).mid
                 for gpu in (large, small))  # fmt: skip
    assert 1.1 < far / near < 1.6
    bare = msgspec.structs.replace(plan, outputs=plan.outputs[:2])
    site = msgspec.structs.replace(site, output_strides=(), outputs=site.outputs[:2])
    assert program_time(bare, site, large, default_calibration(large)).mid < near


def test_few_long_rows_with_a_copy_are_streamed_all_the_same() -> None:
    """No tile is as tall as a sector there; two reductions are not shared; no program holds one."""
    make = PlanBuilder()
    wide = make.cast(make.input("bfloat16"), "float32")
    root = make.op("rsqrt", make.op("add", make.op("mean", make.op("mul", wide, wide)), 1e-6))
    hat = make.op("mul", wide, root)
    small = make.cast(make.op("div", hat, make.op("amax", make.op("abs", hat))), "float8_e4m3fn")
    copy = make.cast(small, "float8_e4m3fn")
    plan = make.plan(small, copy, sizes=(7,), columns=100_000, strided=(copy,), turned=(copy,))
    site = msgspec.structs.replace(plan.sites[0], output_strides=((100_000, 1), (1, 7)))
    assert writes_along_rows(plan, site)
    configs = candidate_configs(plan, site)
    assert {config.scheme for config in configs} == {"looped"}
    assert all(config.block_rows <= 8 for config in configs)
