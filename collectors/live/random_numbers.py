"""The generators that a workload may draw from: PyTorch's, and those of Python and NumPy.

Copies of a workload, and runs of it, start from equal numbers of all of them: batches and time
steps are drawn from any.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def seed_all(seed: int) -> None:
    """Start every generator of the process from a seed; NumPy's if it is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := _numpy()) is not None:
        numpy.seed(seed)


@contextmanager
def kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Within it, what draws on the host or on devices leaves the generators as they were."""
    numpy, python = _numpy(), random.getstate()
    held = numpy.get_state() if numpy is not None else None
    with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.set_state(held)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The same, from a seed: of every generator that a step on a device draws from."""
    with kept([device]):
        seed_all(seed)
        yield


def _numpy() -> Any:
    """NumPy's global generator; None where nobody has imported it."""
    return sys.modules.get("numpy.random")
