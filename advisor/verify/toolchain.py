"""Which Triton and which assembler would compile here, found without importing Triton."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from advisor.errors import INSTALL_TORCH, MissingDependencyError
from advisor.hardware.gpu import Target

_FIRST_BLACKWELL = 100


def triton_version() -> str:
    """Triton's version; raises `MissingDependencyError` where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise MissingDependencyError(
            "kernel resources need triton",
            remedy=f"{INSTALL_TORCH}, on Linux",
        )
    return importlib.metadata.version("triton")


def assembler(target: Target) -> str:
    """The assembler of a target with its version: `ptxas 12.8.93, triton 3.7.1`."""
    version = triton_version()
    if target.backend == "hip":
        return f"llvm, triton {version}"
    return f"ptxas {_ptxas_version(_ptxas_path(target))}, triton {version}"


def cannot_compile(target: Target) -> str | None:
    """Why nothing can be compiled here for a target, None if there is what it takes."""
    version = triton_version()
    if target.backend == "hip":
        if (_backends() / "amd" / "compiler.py").is_file():
            return None
        return f"triton {version} is here without its AMD backend"
    path = _ptxas_path(target)
    return None if path.is_file() else f"there is no assembler at {path}"


def _backends() -> Path:
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "backends"


def _ptxas_path(target: Target) -> Path:
    """The ptxas that Triton runs: from compute capability 10 on its Blackwell one, if any."""
    folder = _backends() / "nvidia" / "bin"
    blackwell = folder / "ptxas-blackwell"
    if int(target.arch) >= _FIRST_BLACKWELL and blackwell.exists():
        return Path(os.environ.get("TRITON_PTXAS_BLACKWELL_PATH", blackwell))
    return Path(os.environ.get("TRITON_PTXAS_PATH", folder / "ptxas"))


@functools.cache
def _ptxas_version(path: Path) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    return found[1] if found else "unknown"
