"""What a command needs beyond the base installation, asked before anything is imported."""

from __future__ import annotations

import importlib.util

from advisor.errors import INSTALL_TORCH, MissingDependencyError


def need_torch(command: str) -> None:
    """Raise `MissingDependencyError` if torch or triton is not installed."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"`{command}` needs {' and '.join(missing)}",
            remedy=f"{INSTALL_TORCH}; `fusion-advisor doctor` says what else is missing",
        )
