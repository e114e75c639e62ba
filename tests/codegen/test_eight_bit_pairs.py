"""What ptxas 12.8 makes wrong code of: two roundings in one register, one of which is read alone.

It packs both by one instruction, and takes the byte for the other use from a register that nothing
has written yet: on an H200 every fourth element of a transposed copy was lost so. Compiled only.
"""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

pytest.importorskip("triton", reason="kernels need triton")

from advisor.codegen import render, values
from advisor.hardware.gpus import gpu_by_key
from advisor.model.configs import candidate_configs
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.pipeline.sizing import requests
from advisor.verify._resource_worker import compiled_kernel
from advisor.verify.resources import job_of
from tests.builders.plan import PlanBuilder
from tests.builders.quantised import AXES, Form, both_orders, copied_twice, round_trip

ROUNDED = re.compile(r"cvt\.rn\.satfinite\.e\dm\dx2\.f32\s+(%rs\d+),")
PACKED = re.compile(r"mov\.b32\s+%r\d+, \{")
HOPPER = gpu_by_key("h200")


def pairs(plan: FusionPlan, config: LaunchConfig) -> tuple[int, int]:
    """How many roundings the kernels of a plan have, and how many are packed and used otherwise.

    Packed with a byte of its own or with another's: either way the byte was a wrong one.
    """
    found = [0, 0]
    for request in requests(plan, config):
        text = compiled_kernel(job_of(request, HOPPER.target)).asm["ptx"]
        for name in ROUNDED.findall(text):
            named = re.compile(re.escape(name) + r"\b")
            uses = [line for line in text.splitlines() if named.search(line)]
            ways = {bool(PACKED.search(line)) for line in uses if not ROUNDED.search(line)}
            found[0] += 1
            found[1] += len(ways) == 2
    return found[0], found[1]


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("form", AXES)
def test_no_rounding_is_packed_and_read_alone(form: Form, target: str, read: bool) -> None:
    plan = both_orders(form, 512, 1024, target=target, read=read)
    for config in candidate_configs(plan, plan.sites[0])[:4]:
        rounded, shared = pairs(plan, config)
        assert rounded
        assert not shared


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("warps", [1, 4])
def test_what_is_stored_and_read_again_is_rounded_twice(target: str, warps: int) -> None:
    plan = round_trip(target)
    rounded, shared = pairs(plan, LaunchConfig(num_warps=warps))
    assert rounded
    assert not shared


@pytest.mark.parametrize("stored", [(0, 1, 2), (1, 2), (0, 2)])
def test_every_copy_is_a_rounding_of_its_own_also_of_what_is_not_stored(
    stored: tuple[int, ...],
) -> None:
    plan = copied_twice()
    plan = replace(
        plan,
        outputs=tuple(plan.outputs[n] for n in stored),
        sites=tuple(
            replace(site, outputs=tuple(site.outputs[n] for n in stored),
                    output_strides=tuple(site.output_strides[n] for n in stored))
            for site in plan.sites
        ),
    )  # fmt: skip
    plan.check()
    text = render(plan).text
    roundings = re.findall(r"v\d = to_float8_e4m3fn\(.*\)", text)
    named = [re.sub(r"^v\d = ", "", line) for line in roundings]
    assert len(set(named)) == len(named) >= len(stored)
    assert "from_float8" not in text
    config = LaunchConfig(num_warps=1)
    assert pairs(plan, config)[1] == 0


def test_equal_casts_that_are_stored_in_two_orders_are_two_roundings() -> None:
    make = PlanBuilder(column_axes=2)
    x = make.cast(make.input("bfloat16"), "float32")
    first, second = make.cast(x, "float8_e4m3fn"), make.cast(x, "float8_e4m3fn")
    plan = make.plan(
        first, second, columns=(16, 64), sizes=(64,), strided=(second,), turned=(second,)
    )
    for config in candidate_configs(plan, plan.sites[0])[:2]:
        rounded, shared = pairs(plan, config)
        assert rounded
        assert not shared


def test_the_pattern_is_found_where_a_copy_takes_what_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "read_beside_store", lambda _: {})
    plan = both_orders("rows", 512, 1024)
    assert pairs(plan, LaunchConfig(block_rows=8, num_warps=16))[1]
