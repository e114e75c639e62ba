"""From a checked plan to Triton source: deterministic text; imports neither torch nor triton."""

from advisor.codegen.families import render
from advisor.codegen.row_program import KernelSource

__all__ = ["KernelSource", "render"]
