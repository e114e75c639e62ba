"""Triton's interpreter beside newer versions of NumPy."""

from __future__ import annotations

import os
from typing import Any


def mend_loops() -> None:
    """Let interpreted kernels loop with NumPy 2.4 and later; once a process.

    A scalar is an array of one element there. Up to Triton 3.6 its index is made by `int`, which
    NumPy takes of arrays without axes only: every loop over a number of the launch failed, and a
    right kernel was refused. Triton 3.7 does what this does.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if getattr(patch, "is_mended", False):
        return

    def mended(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        # What the scope kept before is what it puts back in the end.
        tensor.__index__ = lambda self: int(self.handle.data.reshape(-1)[0])

    mended.is_mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = mended
