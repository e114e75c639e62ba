"""Imported by the process that compiling children are forked from: what each would do first.

Triton hashes its own library, hundreds of megabytes, before it compiles.
"""

from __future__ import annotations

import triton.compiler  # noqa: F401
from triton.runtime.cache import triton_key

import advisor.verify.binaries  # noqa: F401

triton_key()
