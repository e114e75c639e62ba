"""One rank of a search over a model that is sharded or replicated; started by a test, twice.

Arguments: how the model is spread (`ddp`, `fsdp`), and where the verdicts go. The steps really run,
with their collectives; how long they take is scripted, so that ranks can be made to disagree.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from advisor.apply.recipe import Recipe
from advisor.errors import AbortedError, AdvisorError, WorkloadError
from advisor.model.applied import Comparison
from advisor.pipeline.likeness import Results
from advisor.pipeline.measure import STEP_ROUNDS, Bench, Variant
from advisor.pipeline.peers import Peers, Ranks, peers_of, peers_of_group
from advisor.pipeline.ranks import rank_here
from advisor.pipeline.search import Search
from advisor.pipeline.trials import Trial
from advisor.pipeline.verdicts import action_verdicts
from advisor.verify.statistics import compare
from advisor.verify.timing import time_steps
from collectors.live.workload import Workload, load_workload

US = 1_000
KIND = "fused_optimizer"


def make(spread: str) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """A training step of a small network, spread over the ranks."""
    dist.init_process_group("gloo")
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    if spread == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    data = torch.randn(16, 32, generator=torch.Generator().manual_seed(dist.get_rank()))
    return model, optimizer, lambda part: part(data).square().mean()


def ddp() -> object:
    """Replicated."""
    return make("ddp")


def fsdp() -> object:
    """Sharded, parameters as DTensor."""
    return make("fsdp")


class Scripted(Bench):
    """Runs what is compared, then says what the script wants: a rank saves, loses, or fails."""

    gain_us, wrong, fails, leaves = 100, False, False, False

    def build(self, recipe: Recipe) -> Variant:
        variant = super().build(recipe)
        if self.fails:
            raise WorkloadError("out of memory", why="planted")
        return variant

    def step_time(self, variants: Sequence[Variant]) -> dict[str, list[int]]:
        if self.leaves:
            raise WorkloadError("out of memory", why="in the middle of a step")
        time_steps({v.name: v.step for v in variants}, rounds=2, warmup=0)
        gains = {v.name: self.gain_us * US * (KIND in v.recipe.actions) for v in variants}
        return {n: [1_000 * US - gains[n] + i % 5 for i in range(STEP_ROUNDS)] for n in gains}

    def gpu_time(self, before: Variant, after: Variant) -> Comparison:
        before.step()
        after.step()
        gain = self.gain_us * US * (KIND in after.recipe.actions)
        base = [1_000 * US + i % 5 for i in range(16)]
        return compare(base, [value - gain for value in base], "gpu_busy")

    def results(self, variant: Variant) -> Results:
        found = super().results(variant)
        return found._replace(ours=[t + 1.0 for t in found.ours]) if self.wrong else found


def search(bench: Bench, peers: Peers) -> dict[str, object]:
    """The verdict on one action."""
    trial = Trial(KIND, action=KIND)
    found = Search(bench, {}, [trial], Path(), lambda *_, **__: None, peers=peers)
    _, result = found.run()
    verdicts = action_verdicts([trial], result)
    return {
        "set": result.verdict,
        "reason": verdicts[0].reason,
        "votes": [[vote.rank, vote.keep] for vote in verdicts[0].votes],
        "set_votes": [vote.rank for vote in result.votes],
        "curves": result.loss_divergence is not None or result.loss_note,
    }


def main(spread: str, out: Path) -> None:
    """Five searches: all would keep it; rank 1 is slower, wrong, or fails, or fails in a step."""
    rank = rank_here()
    assert rank is not None
    device = torch.device("cpu")
    load = partial(load_workload, f"{__file__}:{spread}", device)
    peers = peers_of(rank)
    work: Workload = load()
    if spread == "fsdp":  # as a process that is in a group already, by whatever launcher
        own, peers = peers_of_group("a run")
        assert own == rank
    other = rank.rank == 1
    found: dict[str, object] = {}
    bench = Scripted(work, load, peers)
    found["fine"] = search(bench, peers)
    bench.gain_us = -50 if other else 100
    found["slower"] = search(bench, peers)
    bench.gain_us, bench.wrong = 100, other
    found["wrong"] = search(bench, peers)
    bench.wrong, bench.fails = False, other
    found["fails"] = search(bench, peers)
    bench.fails, bench.leaves = False, other
    assert isinstance(peers, Ranks)
    peers.after_failure_s = 2.0
    try:
        search(bench, peers)
    except AbortedError as error:
        found["leaves"] = error.what
        peers.leave(error.line())
    (out / f"{rank.rank}.json").write_text(json.dumps(found))
    # Rank 0 waits in a collective for rank 1: the end of its process lets go of it.
    os._exit(0)


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except AdvisorError as error:
        sys.exit(error.line())
