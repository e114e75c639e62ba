"""`apply` by two ranks: what one of them refuses is refused, for the reason that it gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="applying needs torch")
pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.cli.main import run as command
from advisor.store import RunDirectory
from tests.builders import bad_kernels
from tests.builders.forked import Forked
from tests.pipeline.test_ranks_search import ranks_of

TARGET = f"""
import os
if os.environ["RANK"] == "0":
    os.environ.pop({bad_kernels.VARIABLE!r}, None)
import torch.distributed as dist
from tests.builders import bad_workload

def make():
    dist.init_process_group("gloo")
    return bad_workload.small()
"""
MAIN = [sys.executable, "-m", "tests.builders.forked_command"]


def test_a_rank_that_disagrees_vetoes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    forked: Forked,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text(TARGET)
    profile = [*MAIN, "profile", "net.py:make", "--gpu", "h200", "--out", "job"]
    said = ranks_of(profile, tmp_path, popen=forked.popen)
    assert "torchrun --nproc_per_node 2 --no-python fusion-advisor apply job" in said[0]
    runs = [RunDirectory.at(tmp_path / "job" / f"rank{rank}") for rank in range(2)]
    plans = runs[0].plan_ids()
    assert plans == runs[1].plan_ids()
    asked = [part for plan in plans[:2] for part in ("--only", plan)]
    monkeypatch.setenv(bad_kernels.VARIABLE, f"wrong={plans[0]}")
    said = ranks_of([*MAIN, "apply", "job", *asked], tmp_path, popen=forked.popen)
    assert "rank 1: not measured" in said[1]
    for run in runs:
        applied = run.applied()
        assert applied is not None
        found = {v.plan_id: (v.verdict, v.reason) for v in applied.plans}
        assert set(found) == set(plans[:2])
        assert found[plans[0]][0] == "refused"
        assert found[plans[0]][1].startswith("rank 1: numerics (")
        assert found[plans[1]][0] == "not_measured"
    capsys.readouterr()
    # Outside the launcher the directory is no run, and says what is there.
    assert command(["apply", str(tmp_path / "job")]) == 2
    assert "not a run directory" in capsys.readouterr().err
