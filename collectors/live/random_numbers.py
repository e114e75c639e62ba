"""The generators that a workload may draw from: PyTorch's, and those of Python and NumPy.

Copies of a workload, and runs of it, start from equal numbers of all of them: batches and time
steps are drawn from any.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Start every generator of the process from a seed; NumPy's takes 32 bits of it."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


@contextmanager
def kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Within it, what draws on the host or on devices leaves the generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The same, from a seed: of every generator that a step on a device draws from."""
    with kept([device]):
        seed_all(seed)
        yield
