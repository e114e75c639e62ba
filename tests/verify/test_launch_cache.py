"""What is compiled to size a plan is what its launches find: nothing is compiled twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from advisor.folders import triton_cache
from advisor.hardware.gpus import gpu_by_key
from advisor.model.launch import LaunchConfig, Scheme
from advisor.pipeline.sizing import requests, scheme_source
from advisor.verify.resources import resources_of
from tests.codegen import plans

ROOT = Path(__file__).parents[2]
OPTIONS: dict[Scheme, LaunchConfig] = {
    "registers": LaunchConfig(block_rows=2, num_warps=4),
    "online": LaunchConfig(scheme="online", block_columns=1024, num_stages=3, unroll=2),
    "split": LaunchConfig(scheme="split", block_columns=1024, splits=2),
}


@pytest.mark.parametrize(
    ("rows", "columns", "schemes"), [(48, 4096, ("registers", "online")), (1, 4097, ("split",))]
)
def test_launches_find_what_was_sized(
    rows: int,
    columns: int,
    schemes: Collection[Scheme],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where sizes are 1, which a launch compiles in, and where rows are not aligned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = plans.log_softmax("bfloat16", columns=columns, sizes=(rows,))
    kept = tmp_path / "kept"
    jobs, wanted = [], []
    for scheme in schemes:
        config = OPTIONS[scheme]
        wanted += requests(plan, config)
        shapes = [([rows, columns], item.dtype) for item in plan.inputs]
        jobs.append((str(scheme_source(plan, scheme)), shapes, config.options()))
    sized = resources_of(wanted, [gpu_by_key("h200")], launched=kept)
    assert [row.error for (row,) in sized] == [None] * len(wanted)
    before = sorted(path.name for path in kept.iterdir())
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(
        [sys.executable, "-m", "tests.verify.launching_child", str(tmp_path / "jobs.json")],
        check=True, cwd=ROOT, env=os.environ | {"TRITON_CACHE_DIR": str(kept)}, timeout=300,
    )  # fmt: skip
    assert len(before) >= len(wanted)
    assert sorted(path.name for path in kept.iterdir()) == before


def test_a_folder_that_nothing_can_be_kept_in_condemns_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be stored is no fault of what is compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert triton_cache() is None
    plan = plans.log_softmax("bfloat16", columns=64, sizes=(4,))
    wanted = requests(plan, OPTIONS["registers"])
    ((row,),) = resources_of(wanted, [gpu_by_key("h200")], launched=triton_cache())
    assert row.error is None


def test_children_of_other_folders_share_one_that_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", "kept")
    assert triton_cache() == tmp_path / "kept"
