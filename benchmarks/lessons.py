"""Writes what ships as learned of a GPU's predictions, from the plans that were applied there.

python benchmarks/lessons.py     # the zoo's and the samples' (calibration.py), all of one GPU
"""

from __future__ import annotations

import sys

from advisor.hardware.gpus import find_gpu
from advisor.hardware.learned import SHIPPED, LearnedIntervals, save_learned
from advisor.model.scores import Scores


def lesson(found: Scores) -> LearnedIntervals:
    """What plans teach; they are of one GPU."""
    (device,) = {item.gpu for item in found.plans}
    gpu = find_gpu(device)
    assert gpu is not None, device
    assert found.residuals is not None, "too few plans"
    plans = sum(item.residual is not None for item in found.plans)
    return LearnedIntervals(gpu=gpu.key, residuals=found.residuals, plans=plans)


def main() -> None:
    """Write the file."""
    from calibration import scores  # beside this file

    found = lesson(scores())
    path = save_learned(found, SHIPPED / f"{found.gpu}.json")
    sys.stdout.write(f"{path}: of {found.plans} plans\n")


if __name__ == "__main__":
    main()
