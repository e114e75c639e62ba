"""Two ranks on two GPUs, DDP over NCCL: profiled, applied, one verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

from advisor.store import RunDirectory
from tests.pipeline.test_ranks_search import ranks_of

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
TARGET = """
import os
import torch
import torch.distributed as dist
from torch import nn
from tests.builders.captured import RMSNorm

def make():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    layers = [part for _ in range(4) for part in (RMSNorm(2048), nn.Linear(2048, 2048))]
    model = nn.Sequential(*layers).to(torch.bfloat16).cuda()
    if "SHARDED" in os.environ:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    data = torch.randn(4096, 2048, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    return model, optimizer, lambda part: part(data).float().square().mean()
"""
MAIN = [sys.executable, "-m", "advisor.cli.main"]


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_both_ranks_keep_the_same(
    sharded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sharded:
        monkeypatch.setenv("SHARDED", "1")
    (tmp_path / "net.py").write_text(TARGET)
    ranks_of([*MAIN, "profile", "net.py:make", "--steps", "5", "--out", "job"], tmp_path)
    plan = max(
        map(RunDirectory.at(tmp_path / "job" / "rank0").plan,
            RunDirectory.at(tmp_path / "job" / "rank0").plan_ids()),
        key=lambda item: len(item.sites),
    )  # fmt: skip
    ranks_of([*MAIN, "apply", "job", "--only", plan.id, "--only", "fused_optimizer"], tmp_path)
    first, second = (RunDirectory.at(tmp_path / "job" / f"rank{k}").applied() for k in range(2))
    assert first is not None
    assert second is not None
    assert (first.set.verdict, first.set.plans, first.set.actions) == (
        second.set.verdict, second.set.plans, second.set.actions,
    )  # fmt: skip
    for one, other in zip(
        (*first.plans, *first.actions), (*second.plans, *second.actions), strict=True
    ):
        assert (one.verdict, one.reason) == (other.verdict, other.reason)
        assert one.votes == other.votes
    tried = [item for item in first.actions if item.step is not None]
    assert tried
    assert [vote.rank for vote in tried[0].votes] == [0, 1]
