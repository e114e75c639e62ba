"""Kernels ready to be launched: source regenerated from a checked plan, loaded, with one configuration each."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.codegen import KernelSource, render
from advisor.errors import InvalidRecordError
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.store.files import write_atomic


@dataclass(frozen=True)
class ReadyKernel:
    """A plan, its source and the configuration it is launched with; `function` is the Triton kernel."""

    plan: FusionPlan
    source: KernelSource
    config: LaunchConfig
    path: Path
    function: Any

    def key(self) -> str:
        """Changes whenever the compiled result could: for compile-cache keys."""
        text = "\0".join((self.source.text, self.config.label(), self.plan.signature()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_source(plan: FusionPlan, folder: Path) -> tuple[KernelSource, Path]:
    """Generate a plan's source and write it as `ID.py`; a stored kernel file is never read back."""
    source = render(plan)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plan.id}.py"
    write_atomic(path, source.text.encode())
    return source, path


def load_kernel(plan: FusionPlan, folder: Path, config: LaunchConfig) -> ReadyKernel:
    """Generate, write and import the kernel of a plan, bound to one configuration."""
    import triton

    source, path = write_source(plan, folder)
    name = f"fusion_advisor_kernel_{plan.id}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidRecordError("cannot load the generated kernel", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    bare = getattr(module, source.kernel)
    options = triton.Config({}, num_warps=config.num_warps, num_stages=config.num_stages)
    function = triton.autotune(configs=[options], key=[])(bare)
    return ReadyKernel(plan=plan, source=source, config=config, path=path, function=function)
