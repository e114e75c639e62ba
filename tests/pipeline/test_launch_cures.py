"""Other launches of Triton kernels of anybody: what may change, and what compiling proves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli.main import cli
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.occupancy import occupancy
from advisor.model.applied import KernelResources
from advisor.model.base import decode
from advisor.model.overfusion import Cause
from advisor.model.resources import ResourceTable
from advisor.pipeline.launch_cures import Relaunch, _change, _rank, grown, relaunches
from advisor.verify.kernel_tiles import tiles_of
from advisor.verify.resources import ResourceRequest
from tests.builders.trace import SHARED

PROBE = SHARED / "traces" / "h200" / "spill_probe.txt"
SOURCE = """
import triton
import triton.language as tl


@triton.jit
def held_row(x, gate, y, columns, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < columns
    place = tl.program_id(0) * columns + at
    v = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    n = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-6)
    g = n * tl.load(gate + place, mask=mask, other=0.0).to(tl.float32)
    e = tl.exp(g - tl.max(g, 0))
    for _ in tl.static_range(ROUNDS):
        n = n * e / tl.sum(e, 0)
    tl.store(y + place, n, mask=mask)


@triton.jit
def flat(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < size), mask=at < size)


@triton.jit
def tiled(x, y, rows, columns, WIDE: tl.constexpr, HIGH: tl.constexpr):
    i = tl.program_id(0) * HIGH + tl.arange(0, HIGH)[:, None]
    j = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
    v = tl.load(x + j * rows + i, mask=(i < rows) & (j < columns))
    tl.store(y + i * columns + j, v, mask=(i < rows) & (j < columns))


@triton.jit
def strides(x, partial, size, programs, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, programs * BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < size, other=0.0)
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)
    return path


def _request(path: Path, kernel: str, **constants: int) -> ResourceRequest:
    return ResourceRequest(
        source=str(path), kernel=kernel, signature={}, constexprs=dict(constants), num_warps=4
    )


def _words(request: ResourceRequest, cause: Cause, **known: int) -> list[str]:
    return [one.words for one in relaunches(request, cause, known)]


def test_only_sizes_of_tiles_may_change_and_what_covers_a_row_may_not_shrink_below_it(
    kernels: Path,
) -> None:
    spilling = _request(kernels, "held_row", ROUNDS=2, BLOCK=16_384)
    assert _words(spilling, "register_spill") == ["8 warps", "16 warps", "32 warps"]
    stale = _words(spilling, "stale_config", columns=1_000)
    assert stale == ["BLOCK=1024, 1 warps", "BLOCK=1024, 2 warps", "BLOCK=1024, 4 warps",
                     "BLOCK=1024, 8 warps"]  # fmt: skip
    assert _words(spilling, "stale_config") == []
    assert "BLOCK=128" in _words(_request(kernels, "flat", BLOCK=256), "register_spill")
    assert _words(spilling, "serialised_streams") == []


def test_a_bound_on_registers_is_lifted_or_set_as_the_cause_asks(kernels: Path) -> None:
    bound = ResourceRequest(source=str(kernels), kernel="flat", signature={},
                            constexprs={"BLOCK": 256}, max_registers=32)  # fmt: skip
    assert relaunches(bound, "register_spill")[0].words == "no bound on registers"
    first = relaunches(_request(kernels, "flat", BLOCK=256), "occupancy_registers")[0]
    assert first.words == "at most 128 registers a thread"


def test_the_grid_follows_the_tile(kernels: Path) -> None:
    flat = next(
        one
        for one in relaunches(_request(kernels, "flat", BLOCK=128), "lost_vectorisation")
        if one.tiles["BLOCK"] == (128, 1_024)
    )
    assert grown(flat, tiles_of(SOURCE, "flat")) == {0: (128, 1_024)}
    even = relaunches(_request(kernels, "tiled", HIGH=1, WIDE=4_096), "uncoalesced_access")[0]
    assert even.tiles == {"HIGH": (1, 64), "WIDE": (4_096, 64)}
    assert grown(even, tiles_of(SOURCE, "tiled")) == {0: (1, 64), 1: (4_096, 64)}
    # A loop that strides over the grid covers everything with any tile.
    tile = tiles_of(SOURCE, "strides")["BLOCK"]
    assert (tile.axes, tile.walked) == (frozenset({0}), True)
    walked = relaunches(_request(kernels, "strides", BLOCK=128), "lost_vectorisation")[0]
    assert grown(walked, tiles_of(SOURCE, "strides")) == {}
    # What a user has to change beside the tile, where the grid is written as numbers.
    assert _change(flat) == "BLOCK=1024, grid[0] / 8"
    assert _change(even) == "HIGH=64, WIDE=64, grid[0] / 64, grid[1] × 64"
    assert _change(walked) == walked.words


def test_the_spill_probe_is_cured_by_sixteen_warps() -> None:
    if not PROBE.exists():
        pytest.skip("the measured spill probe is not here")
    rows = {}
    for line in PROBE.read_text().splitlines():
        found = re.match(r"rows nw (\d+) regs (\d+) spills (\d+) shared (\d+)", line)
        if found:
            warps, registers, _, shared = map(int, found.groups())
            held = occupancy("sm_90", registers=registers, threads=32 * warps, shared_bytes=shared)
            rows[warps] = KernelResources(
                gpu="h200", config="", registers=registers, threads=32 * warps,
                spill_store_bytes=0, spill_load_bytes=0, occupancy=held.fraction,
            )  # fmt: skip
    del rows[2]  # the launch to be cured; the others keep 8 words of slow paths, no spills
    launch = Relaunch(_request(PROBE, "rows"), "", {})
    order = sorted(rows, key=lambda warps: (_rank(launch, rows[warps], "register_spill"), warps))
    assert order[0] == 16


def test_the_command_proves_a_cure_by_compiling(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    signature = "*bf16:16, *bf16:16, *bf16:16, i32:16, 1, 16384"
    line = ["resources", str(kernels), "--kernel", "held_row", "--signature", signature,
            "--num-warps", "2", "--gpu", "h200", "--cure", "--json"]  # fmt: skip
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 0, done.output
    (cure,) = decode(done.output.encode(), ResourceTable).cures
    assert cure.cause == "register_spill"
    assert (cure.before.spill_store_bytes or 0) > 0
    assert cure.change == "16 warps"
    assert cure.after is not None
    assert cure.after.spill_store_bytes == 0
    assert gpu_by_key(cure.gpu).key == "h200"


def test_a_launch_that_does_not_compile_stands_in_no_cures_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tuned = "".join(
        f"triton.Config({{'ROUNDS': 1, 'BLOCK': {size}}}, num_warps=2), " for size in (16_384, 999)
    )
    path = tmp_path / "tuned.py"
    path.write_text(
        SOURCE.replace("@triton.jit\n", f"@triton.autotune([{tuned}], key=[])\n@triton.jit\n", 1)
    )
    line = ["resources", str(path), "--kernel", "held_row", "--gpu", "h200", "--cure",
            "--signature", "*bf16:16, *bf16:16, *bf16:16, i32:16"]  # fmt: skip
    done = CliRunner().invoke(cli, [*line, "--json"])
    table = decode(done.output.encode(), ResourceTable)
    assert [row.resources.error is None for row in table.kernels] == [True, False]
    assert [cure.change for cure in table.cures] == ["16 warps"]
    fitting = CliRunner().invoke(cli, [*line, "--num-warps", "16"])
    assert "nothing to cure" in fitting.output
