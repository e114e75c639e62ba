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

from advisor.hardware.gpus import gpu_by_key
from advisor.model.launch import LaunchConfig, Scheme
from advisor.pipeline.sizing import requests, scheme_source
from advisor.verify.resources import resources_of
from tests.codegen import plans

ROOT = Path(__file__).parents[2]
OPTIONS: dict[Scheme, LaunchConfig] = {
    "registers": LaunchConfig(block_rows=2, num_warps=4),
    "looped": LaunchConfig(
        scheme="looped", block_rows=1, block_columns=1024, num_warps=4, unroll=2
    ),
    "online": LaunchConfig(scheme="online", block_rows=1, block_columns=1024, num_stages=3),
    "split": LaunchConfig(scheme="split", block_rows=1, block_columns=1024, splits=2),
}


@pytest.mark.parametrize(
    ("rows", "columns", "schemes"), [(48, 4096, OPTIONS), (1, 4097, ("registers", "split"))]
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
