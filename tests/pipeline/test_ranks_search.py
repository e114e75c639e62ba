"""Two ranks, one verdict: DDP and FSDP2 on the CPU, collectives real, times scripted."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="ranks run torch")

from tests.builders.forked import Forked

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "builders" / "ranked.py"


def ranks_of(
    command: list[str],
    folder: Path,
    count: int = 2,
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> list[str]:
    """What every rank of a command printed, once all have ended well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank in range(count):
        environment = os.environ | {
            "WORLD_SIZE": str(count),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
        }
        running.append(
            popen(
                command,
                cwd=folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * count, said
    return said


@pytest.mark.parametrize("spread", ["ddp", "fsdp"])
def test_all_ranks_come_to_one_verdict(spread: str, tmp_path: Path, forked: Forked) -> None:
    command = [sys.executable, str(SCRIPT), spread, str(tmp_path)]
    ranks_of(command, tmp_path, popen=forked.popen)
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for name in ("fine", "slower", "wrong", "fails"):
        first, second = (item[name] for item in both)
        assert (first["set"], first["reason"]) == (second["set"], second["reason"])
        assert first["votes"] == second["votes"]
    found = both[0]
    assert found["fine"]["set"] == "kept"
    assert found["fine"]["votes"] == [[0, True], [1, True]]
    assert found["fine"]["set_votes"] == [0, 1]
    assert found["fine"]["curves"], "the losses of a training run were looked at"
    assert found["slower"]["set"] == "reverted"
    assert found["slower"]["reason"].startswith("rank 1: the step takes 50 µs more")
    assert found["slower"]["votes"] == [[0, True], [1, False]]
    assert found["wrong"]["reason"].startswith("rank 1: results differ from eager's")
    assert found["fails"]["reason"] == "rank 1: out of memory: planted"
    # One rank cannot join the others any more: neither hangs.
    assert both[1]["leaves"] == "rank 0 does not answer"
    assert both[0]["leaves"] in (
        "rank 1 has ended",
        "the ranks of the job cannot be reached any more",
    )
