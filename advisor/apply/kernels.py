"""Kernels ready to be launched: source regenerated from a checked plan, loaded, configured."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.codegen import KernelSource, render
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.store.files import make_directory, write_atomic
from advisor.verify.kernel_module import load_module


@dataclass(frozen=True)
class ReadyKernel:
    """A plan, its source and how it is launched.

    `functions` are its Triton kernels in the order of their launches, each bound to its options.
    """

    plan: FusionPlan
    source: KernelSource
    config: LaunchConfig
    path: Path
    functions: tuple[Any, ...]

    def key(self) -> str:
        """Changes whenever the compiled result could: for compile-cache keys."""
        # The sizes that were seen decide where it serves others.
        seen = (f"{site.sizes} {site.executions}" for site in self.plan.sites)
        text = "\0".join((self.source.text, self.config.label(), self.plan.signature(), *seen))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_source(
    plan: FusionPlan, folder: Path, scheme: Scheme = "registers", name: str | None = None
) -> tuple[KernelSource, Path]:
    """Generate a plan's source and write it as `ID.py` (or `NAME.py`).

    A stored kernel file is never read back.
    """
    source = render(plan, scheme)
    make_directory(folder, parents=True)
    path = folder / f"{name or plan.id}.py"
    write_atomic(path, source.text.encode())
    return source, path


def load_kernel(plan: FusionPlan, folder: Path, config: LaunchConfig) -> ReadyKernel:
    """Generate, write and import the kernel of a plan, bound to one configuration."""
    import triton

    source, path = write_source(plan, folder, config.scheme)
    module = load_module(path)
    options = triton.Config({}, num_warps=config.num_warps, num_stages=config.num_stages)
    bound = triton.autotune(configs=[options], key=[])
    functions = tuple(bound(getattr(module, name)) for name in source.kernels)
    return ReadyKernel(plan=plan, source=source, config=config, path=path, functions=functions)
