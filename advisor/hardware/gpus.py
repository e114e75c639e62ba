"""The GPUs that prices, occupancy and compile targets are known for, and how to find one."""

from __future__ import annotations

import re
from difflib import get_close_matches

from advisor.errors import UsageError
from advisor.hardware.amd import AMD
from advisor.hardware.gpu import Gpu
from advisor.hardware.nvidia import NVIDIA

GPUS: tuple[Gpu, ...] = (*NVIDIA, *AMD)

_VENDOR_WORDS = re.compile(
    r"\b(nvidia|amd|geforce|instinct|radeon|tesla|quadro|gpu|generation|graphics)\b"
)
# What a driver may add to a name without it being another product. A MIG slice, a laptop part or
# a `Ti` has other figures and is not matched.
_MEMORY = re.compile(r"([0-9]{2,3})gb")
_FORM_FACTOR = re.compile(r"(sxm[0-9]?|pcie|[0-9]+gb|hbm[0-9]e?|ac|oam|mi[0-9]+x?)*")


def _squeezed(text: str) -> str:
    """Lower case, vendor words and punctuation removed: `NVIDIA GeForce RTX 4090` is `rtx4090`."""
    return re.sub(r"[^a-z0-9]", "", _VENDOR_WORDS.sub(" ", text.lower()))


def find_gpu(text: str) -> Gpu | None:
    """The GPU that `text` names (key, marketing name or device name), or None.

    An exact name wins; otherwise a known name followed by a form factor or memory size only, the
    longest first, so that a variant is not taken for its base model.
    """
    wanted = _squeezed(text)
    names = {_squeezed(n): gpu for gpu in GPUS for n in (gpu.key, gpu.name, *gpu.aliases)}
    for name in sorted(names, key=len, reverse=True):
        rest = wanted[len(name) :]
        if wanted.startswith(name) and _FORM_FACTOR.fullmatch(rest) and _fits(names[name], rest):
            return names[name]
    return None


def _fits(gpu: Gpu, form: str) -> bool:
    """Whether a memory size in the form factor is that of the GPU, give or take a tenth."""
    sizes = [int(size) for size in _MEMORY.findall(form)]
    return all(abs(size * 1e9 / gpu.dram_bytes - 1) < 0.1 for size in sizes)


def gpu_by_key(text: str) -> Gpu:
    """The GPU that `text` names; else `UsageError` with the names near it and all keys."""
    found = find_gpu(text)
    if found is None:
        keys = [gpu.key for gpu in GPUS]
        near = get_close_matches(_squeezed(text), keys, n=3, cutoff=0.5)
        known = f"known: {', '.join(keys)}"
        raise UsageError(
            f"unknown GPU {text[:60]!r}",
            remedy=f"near: {', '.join(near)}; {known}" if near else known,
        )
    return found
