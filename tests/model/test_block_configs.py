"""Blocks of rows and columns: whole sectors of tensors stored in either order."""

from __future__ import annotations

import msgspec

from advisor.model.configs import candidate_configs, schemes_of
from advisor.model.launch import grid_size
from advisor.model.sectors import sector_bytes
from advisor.model.site_work import site_bytes
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.plans import group_norm, turned


def test_what_reads_across_gets_blocks_of_whole_sectors() -> None:
    plan = turned("float16", sizes=(4096,), columns=4096)
    site = plan.sites[0]
    for config in candidate_configs(plan, site)[:4]:
        assert config.scheme == "blocks"
        assert config.block_rows >= 16
        assert sector_bytes(plan, site, config) < 1.6 * site_bytes(plan, site)
    assert grid_size(candidate_configs(plan, site)[0], 4096, 4096) >= 132


def test_few_elements_have_a_configuration() -> None:
    for rows, columns in ((1, 1), (3, 2), (1, 5000), (5000, 1)):
        plan = turned(sizes=(rows,), columns=columns)
        config = candidate_configs(plan, plan.sites[0])[0]
        assert grid_size(config, rows, columns) >= 1
        assert config.scheme == "blocks"


def test_only_what_does_not_reduce_has_blocks() -> None:
    assert "blocks" not in schemes_of(rms_norm())
    make = PlanBuilder()
    plan = make.plan(make.op("exp", make.input()), sizes=(64,), columns=64)
    assert schemes_of(plan)[0] == "blocks"


def test_groups_whose_channels_lie_side_by_side_are_taken_together() -> None:
    """Of ten channels of two bytes a program alone leaves half of every sector to others."""
    plan = group_norm("float16", sizes=(64, 32), columns=(4096, 10), channels_last=True)
    (site,) = plan.sites
    step = 320
    walked = (4096 * step, 10, step, 1)
    strides = (walked, walked, *site.input_strides[2:])
    site = msgspec.structs.replace(site, input_strides=strides)
    apart = candidate_configs(plan, plan.sites[0])
    beside = candidate_configs(plan, site)
    assert max(config.block_rows for config in apart if config.scheme == "online") == 1
    assert beside[0].block_rows > 1
