"""Quantisers that write a transposed copy too: of a tensor's, a row's and a block's own scale.

What a kernel stores in the other order equals, bit by bit, what it stores in the first.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.apply.kernels import write_source
from advisor.codegen.families import site_launches
from advisor.codegen.standalone import Standalone, render_standalone
from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import encode
from advisor.model.configs import candidate_configs
from advisor.model.launch import LaunchConfig, tile_rows
from advisor.model.plan import FusionPlan
from advisor.model.sectors import sector_bytes
from advisor.model.site_work import site_bytes
from advisor.pipeline.candidates import requests
from advisor.verify.interpret import evaluate
from advisor.verify.resources import resources_of
from tests.builders.plan import PlanBuilder
from tests.builders.quantised import AXES, Form, both_orders
from tests.builders.verified import verify_numerics
from tests.codegen.interpreter import Interpreter
from tests.codegen.test_schemes import run


def input_of(plan: FusionPlan, seed: int = 0) -> torch.Tensor:
    """Random numbers that lie as the plan's site says."""
    site, generator = plan.sites[0], torch.Generator().manual_seed(seed)
    made = torch.randn(site.rows * site.columns, generator=generator)
    return made.to(getattr(torch, plan.inputs[0].dtype)).as_strided(
        site.sizes, site.input_strides[0]
    )


def assert_both(
    plan: FusionPlan, config: LaunchConfig, interpreter: Interpreter, seed: int = 0
) -> None:
    """What PyTorch gives op by op, but for a few floats halfway between two; the copy is one."""
    x = input_of(plan, seed)
    small, scale, copy = run(interpreter, plan, [x], config)
    want, scales, _ = evaluate(plan, [x], "native")
    assert torch.equal(scale, scales.expand(scale.shape))
    assert torch.equal(copy.float(), small.float())
    apart = small.float() != want.float()
    assert int(apart.sum()) <= 1 + apart.numel() // 100
    eps = 1 / 127 if plan.outputs[0].dtype == "int8" else torch.finfo(want.dtype).eps
    torch.testing.assert_close(small.float(), want.float(), rtol=eps, atol=1.0 * (eps < 0.01))


SIZES = [(1, 7), (7, 128), (64, 1000), (7, 4097), (1, 4097), (64, 7), (64, 128)]
LAUNCHES: dict[Form, tuple[LaunchConfig, ...]] = {
    "rows": (
        LaunchConfig(scheme="looped", block_rows=32, block_columns=64),
        LaunchConfig(scheme="looped", block_rows=16, block_columns=512, unroll=2),
        LaunchConfig(block_rows=4),
    ),
    "all": (
        LaunchConfig(scheme="split", block_columns=512, splits=7),
        LaunchConfig(scheme="split", block_columns=1024, splits=2),
        LaunchConfig(scheme="looped", block_columns=1024),
    ),
}


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("form", LAUNCHES)
@pytest.mark.parametrize("number", range(len(SIZES)), ids=["x".join(map(str, s)) for s in SIZES])
def test_copies_beside_scales_of_rows_and_of_all(
    number: int, form: Form, target: str, interpreter: Interpreter
) -> None:
    """Every size, with its schemes in turn."""
    dtype = ("bfloat16", "float16", "float32")[number % 3]
    plan = both_orders(form, *SIZES[number], dtype=dtype, target=target)
    choices = LAUNCHES[form]
    assert_both(plan, choices[(number + len(target)) % len(choices)], interpreter, number)


@pytest.mark.parametrize("target", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize(
    ("form", "rows", "columns", "block", "config"),
    [
        ("blocks", 64, 256, 128, LaunchConfig(block_rows=32)),
        ("blocks", 7, 384, 128, LaunchConfig(block_rows=16)),
        ("blocks", 1, 30, 10, LaunchConfig(block_rows=2)),
        ("squares", 64, 96, 32, LaunchConfig(block_rows=2)),
        ("squares", 64, 96, 32, LaunchConfig(scheme="looped", block_columns=256)),
        ("squares", 64, 96, 32, LaunchConfig(scheme="looped", block_columns=16)),
        ("squares", 40, 60, 20, LaunchConfig()),
        ("squares", 40, 60, 20, LaunchConfig(scheme="split", block_columns=64, splits=3)),
    ],
)
def test_copies_beside_scales_of_blocks(
    form: Form, rows: int, columns: int, block: int, config: LaunchConfig, target: str,
    interpreter: Interpreter,
) -> None:  # fmt: skip
    """Blocks of a power of two have a segment axis of their own; others are stored as they are."""
    plan = both_orders(form, rows, columns, block=block, target=target)
    assert_both(plan, config, interpreter)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    block=st.sampled_from((16, 32, 256)),
    splits=st.integers(1, 9),
    target=st.sampled_from(("float8_e4m3fn", "int8")),
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_matrix_in_tiles(
    rows: int, columns: int, block: int, splits: int, target: str, interpreter: Interpreter
) -> None:
    plan = both_orders("all", rows, columns, target=target)
    config = LaunchConfig(scheme="split", block_columns=block, splits=splits)
    assert_both(plan, config, interpreter, rows)


def test_several_matrices_have_a_scale_each(interpreter: Interpreter) -> None:
    """[3, 20, 33] with a scale of every [20, 33], and of all: columns along two axes, and three."""
    for rows, columns in (((3,), (20, 33)), ((1,), (3, 20, 33))):
        make = PlanBuilder(1, len(columns))
        wide = make.cast(make.input("bfloat16"), "float32")
        scale = make.op("div", make.op("amax", make.op("abs", wide)), 448.0)
        small = make.cast(make.op("div", wide, scale), "float8_e4m3fn")
        copy = make.cast(small, "float8_e4m3fn")
        plan = make.plan(small, scale, copy, sizes=rows, columns=columns, strided=(copy,),
                         turned=(copy,))  # fmt: skip
        config = LaunchConfig(scheme="split", block_columns=64, splits=3)
        x = torch.randn(*rows, *columns, generator=torch.Generator().manual_seed(0)).bfloat16()
        got, _, turned = run(interpreter, plan, [x], config)
        want, _, _ = evaluate(plan, [x], "native")
        assert torch.equal(turned.float(), got.float())
        torch.testing.assert_close(got.float(), want.float(), rtol=0.07, atol=0)


def test_tiles_are_square_where_both_axes_fill_them() -> None:
    assert tile_rows(8192, 4096, 4096) == 64
    assert tile_rows(4096, 10, 100_000) == 16
    assert tile_rows(4096, 100_000, 7) == 512
    assert tile_rows(16, 1, 1) == 16


def test_rows_in_tiles_are_shared_one_at_a_time() -> None:
    plan = both_orders("all", 64, 128)
    config = LaunchConfig(scheme="split", block_rows=2, block_columns=512, splits=2)
    with pytest.raises(IllegalFusionError, match="one at a time"):
        site_launches(plan, config, plan.sites[0])


def test_a_plan_says_what_is_turned_along_column_axes_alone() -> None:
    plan = both_orders("rows", 64, 128)
    output = msgspec.structs.replace(plan.outputs[2], turned=True)
    with pytest.raises(InvalidRecordError, match="no column axes"):
        msgspec.structs.replace(plan, outputs=(*plan.outputs[:2], output)).check()


@pytest.mark.parametrize("form", AXES)
def test_the_likeliest_launches_fill_sectors_and_spill_nothing(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """e4m3fn on sm_90, int8 on sm_80; whole sectors of the copy, and no part of one twice.

    The scales of blocks lie in the order of the matrix, so those of a program's rows lie apart.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for target, key in (("float8_e4m3fn", "h200"), ("int8", "a100")):
        plan = both_orders(form, 16_384, 4096, target=target)
        site = plan.sites[0]
        scales = math.prod(plan.outputs[1].shape(site.row_sizes, site.column_axes))
        configs = candidate_configs(plan, site)[:2]
        for config in configs:
            apart = 28 * scales if form == "blocks" else 0
            assert sector_bytes(plan, site, config) == site_bytes(plan, site) + apart
        wanted = [request for config in configs for request in requests(plan, config)]
        for (row,) in resources_of(wanted, [gpu_by_key(key)]):
            assert row.error is None, row
            assert (row.spill_store_bytes, row.spill_load_bytes) == (0, 0), row
            assert row.occupancy is not None
            assert row.occupancy >= 0.25, row


def test_the_copy_is_counted_once_more() -> None:
    plan = both_orders("all", 256, 512)
    assert site_bytes(plan, plan.sites[0]) == 256 * 512 * (2 + 1 + 1) + 4
    bare = msgspec.structs.replace(plan, outputs=plan.outputs[:2])
    assert site_bytes(bare, plan.sites[0]) == 256 * 512 * (2 + 1) + 4


@pytest.mark.parametrize("form", AXES)
def test_the_verifier_takes_outputs_as_they_lie_at_the_site(form: Form, tmp_path: Path) -> None:
    """Sizes around the site's, one row, none; the likeliest launch."""
    plan = both_orders(form, 64, 96, block=32)
    config = candidate_configs(plan, plan.sites[0])[0]
    path = tmp_path / "plan.json"
    path.write_bytes(encode(plan))
    _, kernel = write_source(plan, tmp_path, config.scheme)
    found = verify_numerics(path, kernel, device="cpu", config=config)
    assert found.passed, found


@pytest.mark.parametrize("form", AXES)
def test_an_exported_kernel_gives_the_copy_in_its_own_order(form: Form, tmp_path: Path) -> None:
    """Its launcher allocates as the site lies; the file checks itself in the interpreter."""
    plan = both_orders(form, 64, 96, block=32)
    config = candidate_configs(plan, plan.sites[0])[0]
    path = tmp_path / "kernel.py"
    path.write_text(render_standalone(Standalone(plan, config, "a test", custom_op=True)))
    text = (
        "import runpy, torch\n"
        f"fused = runpy.run_path({str(path)!r}, run_name='kernel')['fused']\n"
        f"x = torch.randn(64, 96).bfloat16().as_strided({plan.sites[0].sizes}, "
        f"{plan.sites[0].input_strides[0]})\n"
        "small, _, copy = fused(x)\n"
        "small, copy = small.view(torch.uint8), copy.view(torch.uint8)\n"
        "assert torch.equal(small, copy)\n"
        "flat = lambda x: x.as_strided((x.numel(),), (1,))\n"
        "assert torch.equal(flat(small).view(64, 96).t(), flat(copy).view(96, 64))\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    for command in ([str(path)], ["-c", text]):
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
