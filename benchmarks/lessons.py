"""Writes what ships as learned of a GPU's predictions, from the plans that the zoo applied there.

python benchmarks/lessons.py     # from zoo.json, for the GPU that it was measured on
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from msgspec import convert

from advisor.hardware.gpus import find_gpu
from advisor.hardware.learned import SHIPPED, LearnedIntervals, save_learned
from advisor.model.applied import Applied
from analyzers.scores import score

ZOO = Path(__file__).resolve().with_name("zoo.json")


def lesson(path: Path) -> LearnedIntervals:
    """What the plans of a file of zoo results teach; they are of one GPU."""
    rows = json.loads(path.read_text())
    scores = score((row["model"], convert(row["applied"], Applied)) for row in rows)
    (device,) = {item.gpu for item in scores.plans}
    gpu = find_gpu(device)
    assert gpu is not None, device
    assert scores.residuals is not None, "too few plans"
    plans = sum(item.residual is not None for item in scores.plans)
    return LearnedIntervals(gpu=gpu.key, residuals=scores.residuals, plans=plans)


def main() -> None:
    """Write the file."""
    found = lesson(ZOO)
    path = save_learned(found, SHIPPED / f"{found.gpu}.json")
    sys.stdout.write(f"{path}: of {found.plans} plans\n")


if __name__ == "__main__":
    main()
