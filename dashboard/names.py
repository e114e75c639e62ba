"""Kernel names as the terminal says them: what tells kernels apart, without templates."""

from __future__ import annotations

from analyzers.demangle import short_name


def kernel_name(name: str) -> str:
    """The name without what only a compiler needs; two kernels may get the same."""
    return short_name(name)
