"""Tables of what kernels need: nothing is cut off at the width of a terminal."""

from __future__ import annotations

import pytest

from advisor.model.applied import KernelResources
from advisor.model.resources import LaunchCure, ResourceTable, SizedKernel
from advisor.report.resources import cure_text, render_resources
from advisor.report.text import render
from tests.model.builders import TOOL


def needs(config: str) -> KernelResources:
    return KernelResources(
        gpu="h200", config=config, registers=255, spill_store_bytes=704, spill_load_bytes=732,
        shared_bytes=100 << 10, threads=128, occupancy=0.125, limiter="shared_memory",
    )  # fmt: skip


@pytest.mark.parametrize("config", ["rows=1 warps=4", "BLOCK=32768 num_warps=4 num_stages=3"])
def test_every_column_is_whole(config: str) -> None:
    kernel = SizedKernel(kernel="k", resources=needs(config), verdict="use", why="", first=True)
    text = render(render_resources(ResourceTable(tool=TOOL, source="k.py", kernels=(kernel,))))
    for words in ("Occupancy", "Verdict", "shared memory", "use first", *config.split()):
        assert words in text, words


def test_where_no_launch_cures_it_says_what_would() -> None:
    before = needs("BLOCK=65536 num_warps=4")
    text = cure_text(
        LaunchCure(kernel="k", gpu="h200", cause="register_spill", before=before, tried=3)
    )
    assert "no cure among 3 other launches; it holds too much at once" in text
