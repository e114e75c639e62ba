"""Where caches, stored measurements and the signing key of this user lie.

XDG Base Directory Specification: one folder of ours below each of the base directories.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from advisor.errors import StorageError

_APPLICATION = "fusion-advisor"


def _folder(variable: str, default: str) -> Path:
    """Ours below the base directory that a variable names, by default below the user's own.

    Raises `StorageError` for a user without one: what is kept among the files of all is not safe.
    """
    named = os.environ.get(variable, "")
    # The specification tells to ignore a path that is not absolute.
    if Path(named).is_absolute():
        return Path(named) / _APPLICATION
    try:
        return Path.home() / default / _APPLICATION
    except RuntimeError as error:
        raise StorageError(
            "there is no folder to write in",
            why="this user has no home directory",
            remedy=f"name one in HOME, or in {variable}",
        ) from error


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/fusion-advisor`, by default below `~/.cache`: may be deleted at any time."""
    return _folder("XDG_CACHE_HOME", ".cache")


def triton_cache() -> Path | None:
    """Where kernels lie that are compiled to be launched by children of this process.

    The folder that Triton or PyTorch's compiler has been told of, else one of ours, absolute: not
    all children work in the same folder. None where nothing can be written.
    """
    named = os.environ.get("TRITON_CACHE_DIR")
    try:
        folder = Path(named).absolute() if named else cache_folder() / "triton"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, StorageError):
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
    # As Triton has it: "~" itself below the current folder for a user without a home directory.
    home = Path(environment.get("TRITON_HOME") or os.path.expanduser("~"))  # noqa: PTH111
    triton = Path(environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    # By default among the temporary files.
    inductor = Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir())
    if direct or "TRITON_CACHE_DIR" in environment:
        found.append(("TRITON_CACHE_DIR", triton))
    return [*found, ("TORCHINDUCTOR_CACHE_DIR", inductor)]


def state_folder() -> Path:
    """`$XDG_STATE_HOME/fusion-advisor`, by default below `~/.local/state`."""
    return _folder("XDG_STATE_HOME", ".local/state")
