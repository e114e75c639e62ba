"""Where caches, stored measurements and the signing key of this user lie.

XDG Base Directory Specification: one folder of ours below each of the base directories.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

_APPLICATION = "fusion-advisor"


def _folder(variable: str, default: Path) -> Path:
    named = os.environ.get(variable, "")
    # The specification tells to ignore a path that is not absolute.
    base = Path(named) if Path(named).is_absolute() else default
    return base / _APPLICATION


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/fusion-advisor`, by default below `~/.cache`: may be deleted at any time."""
    return _folder("XDG_CACHE_HOME", Path.home() / ".cache")


def triton_cache() -> Path | None:
    """Where kernels lie that are compiled to be launched by children of this process.

    The folder that Triton or PyTorch's compiler has been told of, else one of ours, absolute: not
    all children work in the same folder. None where nothing can be written.
    """
    named = os.environ.get("TRITON_CACHE_DIR")
    folder = Path(named).absolute() if named else cache_folder() / "triton"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def written_by_compilers(
    environment: Mapping[str, str], *, direct: bool = True
) -> list[tuple[str, Path]]:
    """Where Triton, its assembler and PyTorch's compiler write in a process with this environment.

    Each with the variable that names another folder. What is interpreted writes temporary files;
    where Triton is not called `direct`, it writes in a folder of PyTorch's compiler.
    """
    found = [("TMPDIR", Path(tempfile.gettempdir()))]
    if environment.get("TRITON_INTERPRET") == "1":
        return found
    home = Path(environment.get("TRITON_HOME") or Path.home())
    triton = Path(environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    # By default among the temporary files.
    inductor = Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir())
    if direct or "TRITON_CACHE_DIR" in environment:
        found.append(("TRITON_CACHE_DIR", triton))
    return [*found, ("TORCHINDUCTOR_CACHE_DIR", inductor)]


def state_folder() -> Path:
    """`$XDG_STATE_HOME/fusion-advisor`, by default below `~/.local/state`."""
    return _folder("XDG_STATE_HOME", Path.home() / ".local" / "state")
