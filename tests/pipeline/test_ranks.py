"""Jobs of several ranks: each knows itself and writes a run of its own; rank 0 names the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.errors import UsageError
from advisor.model.base import load
from advisor.model.report import Report
from advisor.pipeline.ranks import Rank, rank_directory, rank_here, ranks_summary

FACTORY = """
import torch
import torch.distributed as dist

class Shards(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        return torch.softmax(self.layer(x) * 0.5 + 1, -1)

def make():
    dist.init_process_group("gloo")
    assert dist.get_world_size() == 2
    return Shards(), (torch.randn(32, 64),)
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}, Rank(3, 4, 1)),
        ({"WORLD_SIZE": "4", "RANK": "3"}, Rank(3, 4, 3)),
        ({"WORLD_SIZE": "many"}, None),
    ],
)
def test_the_rank_that_the_launcher_gave(
    environment: dict[str, str], expected: Rank | None
) -> None:
    assert rank_here(environment) == expected


@pytest.mark.parametrize("rank", ["", "4", "x"])
def test_a_rank_that_cannot_be_is_refused(rank: str) -> None:
    with pytest.raises(UsageError, match="does not know its rank"):
        rank_here({"WORLD_SIZE": "4", "RANK": rank})


def test_every_rank_needs_the_same_directory() -> None:
    assert rank_directory(Path("runs/x"), Rank(2, 4, 2)) == Path("runs/x/rank2")
    with pytest.raises(UsageError, match="one directory"):
        rank_directory(None, Rank(2, 4, 2))


def test_the_summary_names_the_other_runs() -> None:
    text = ranks_summary("runs/x/rank0", Rank(0, 3, 0), traced=True)
    assert "rank1, rank2" in text
    assert "fusion-advisor analyze runs/x/rank*/trace.json.gz" in text
    assert "analyze" not in ranks_summary("runs/x/rank0", Rank(0, 3, 0), traced=False)


def test_two_ranks_write_two_runs(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    command = [sys.executable, "-m", "advisor.cli.main", "profile", "net.py:make", "--out", "job"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = []
    for rank in range(2):
        environment = os.environ | {
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "NO_COLOR": "1",
        }
        both.append(
            subprocess.Popen(
                [*command, "--gpu", "h200"],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=240)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    assert "2 ranks, each a run in job" in said[0]
    assert said[1].strip().endswith("rank 1: job/rank1")
    reports = [load(tmp_path / "job" / f"rank{k}" / "report.json", Report) for k in range(2)]
    assert [(r.workload.rank, r.workload.world_size) for r in reports] == [(0, 2), (1, 2)]
    assert reports[0].plans
