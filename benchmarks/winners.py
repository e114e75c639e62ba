"""Writes the table of winners that ships for a GPU from what recorded applications measured.

    python benchmarks/winners.py                    # from sample_traces/runs, for the H200
    python benchmarks/winners.py --gpu h200 RUN...  # from other runs of this GPU

Of each kernel and size the fastest is kept, and only what came near a copy's bandwidth
(`advisor.pipeline.winners.WORTH_SHIPPING`): another search has little left to find there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.base import encode
from advisor.model.winners import Winner, Winners
from advisor.pipeline.winners import SHIPPED, winners_of_run
from advisor.store import RunDirectory

RUNS = Path(__file__).resolve().parents[1] / "sample_traces" / "runs"


def table_of(runs: list[Path], gpu: Gpu) -> Winners:
    """The winners of runs that were applied on this GPU, by kernel and size."""
    best: dict[tuple[str, tuple[int, int]], Winner] = {}
    for path in runs:
        run = RunDirectory.at(path)
        applied = run.applied()
        if applied is None or find_gpu(applied.device) != gpu:
            continue
        plans = [run.plan(plan_id) for plan_id in run.plan_ids()]
        for winner in winners_of_run(applied, plans, gpu):
            key = (winner.kernel, winner.bucket)
            if key not in best or winner.kernel_ns < best[key].kernel_ns:
                best[key] = winner
    return Winners(gpu=gpu.key, winners=tuple(best[key] for key in sorted(best)))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--gpu", default="h200")
    arguments = parser.parse_args()
    gpu = gpu_by_key(arguments.gpu)
    runs = arguments.runs or sorted(RUNS.iterdir())
    table = table_of(runs, gpu)
    path = SHIPPED / f"{gpu.key}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode(table))
    sys.stdout.write(f"{path}: {len(table.winners)} winners\n")


if __name__ == "__main__":
    main()
