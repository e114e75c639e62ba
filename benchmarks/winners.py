"""Writes the table of winners that ships for a GPU from what was measured on it.

    python benchmarks/winners.py                    # sample_traces/runs and kernels.json, H200
    python benchmarks/winners.py --gpu h200 RUN...  # from these runs and kernels.json

Of each kernel and size the fastest is kept, and only what came near a copy's bandwidth
(`advisor.pipeline.winners.WORTH_SHIPPING`): another search has little left to find there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.base import encode
from advisor.model.winners import Winner, Winners, bucket_of, kernel_key
from advisor.pipeline.winners import SHIPPED, WORTH_SHIPPING, winners_of_run
from advisor.store import RunDirectory

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "sample_traces" / "runs"
ROWS = HERE / "kernels.json"
sys.path[:0] = [str(HERE)]


def table_of(runs: list[Path], rows: Path, gpu: Gpu) -> Winners:
    """The winners of runs that were applied on this GPU and of benchmark rows, by kernel, size."""
    best: dict[tuple[str, tuple[int, int]], Winner] = {}
    for winner in [*_of_runs(runs, gpu), *_of_rows(rows, gpu)]:
        key = (winner.kernel, winner.bucket)
        if key not in best or winner.kernel_ns < best[key].kernel_ns:
            best[key] = winner
    return Winners(gpu=gpu.key, winners=tuple(best[key] for key in sorted(best)))


def _of_runs(runs: list[Path], gpu: Gpu) -> Iterator[Winner]:
    for path in runs:
        run = RunDirectory.at(path)
        applied = run.applied()
        if applied is not None and find_gpu(applied.device) == gpu:
            plans = [run.plan(plan_id) for plan_id in run.plan_ids()]
            yield from winners_of_run(applied, plans, gpu)


def _of_rows(path: Path, gpu: Gpu) -> Iterator[Winner]:
    """Benchmarked kernels near a copy's speed; what spills was dropped before they were timed."""
    from kernel_rows import read

    for row in read(path).rows:
        if row.plan is None or row.launch is None or row.why or find_gpu(row.gpu) != gpu:
            continue
        assert row.ours_ns is not None
        assert row.copy_ns is not None
        if row.copy_ns / row.ours_ns >= WORTH_SHIPPING:
            yield Winner(
                gpu=gpu.key,
                device=row.gpu,
                kernel=kernel_key(row.plan),
                bucket=bucket_of(row.plan.sites[0]),
                config=row.launch,
                shape="×".join(map(str, row.plan.sites[0].sizes)),
                kernel_ns=row.ours_ns,
                copy_bandwidth_fraction=row.copy_ns / row.ours_ns,
                triton=row.triton,
                created=row.day,
            )


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--gpu", default="h200")
    arguments = parser.parse_args()
    gpu = gpu_by_key(arguments.gpu)
    runs = arguments.runs or sorted(RUNS.iterdir())
    table = table_of(runs, ROWS, gpu)
    path = SHIPPED / f"{gpu.key}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode(table))
    sys.stdout.write(f"{path}: {len(table.winners)} winners\n")


if __name__ == "__main__":
    main()
