"""Triton's interpreter as Triton 3.6 has it; imported by programs that interpret kernels."""

from __future__ import annotations

from typing import Any

import triton
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def older(tensor: Any, *scope: Any) -> None:
    """An index is made of a scalar by `int`, which takes no array of one dimension any more."""
    _patch(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data)


interpreter._patch_lang_tensor = older
triton.__version__ = "3.6.0"
