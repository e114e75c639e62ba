"""The random numbers of a kernel, by PyTorch: `tl.rand(seed, index)` and what Inductor draws.

Philox-4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) with the index as
its counter and the seed as its key; the first word of a result, made a number in [0, 1). Every
element is a function of the seed and its own index, so whoever draws, and however often, gets the
same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_ROUNDS, _WORD = 10, 0xFFFFFFFF
_FACTORS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
# The largest number by which every 31-bit integer stays below 1.
_SCALE = 4.6566127342e-10


def uniform(seed: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """float32 in [0, 1) of a shape, by the row-major index of each element; `seed` is one int64."""
    key = seed.reshape(())
    first = torch.arange(math.prod(shape), device=seed.device) & _WORD
    counter = (first, *[torch.zeros_like(first)] * 3)
    low, high = key & _WORD, (key >> 32) & _WORD
    for _ in range(_ROUNDS):
        a, b = counter[0] * _FACTORS[0], counter[2] * _FACTORS[1]
        counter = (
            ((b >> 32) & _WORD) ^ counter[1] ^ low,
            b & _WORD,
            ((a >> 32) & _WORD) ^ counter[3] ^ high,
            a & _WORD,
        )
        low, high = (low + _STEPS[0]) & _WORD, (high + _STEPS[1]) & _WORD
    word = counter[0]
    folded = torch.where(word > _WORD >> 1, _WORD - word, word)
    return (folded.to(torch.float32) * _SCALE).reshape(list(shape))
