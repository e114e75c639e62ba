"""From a checked plan to Triton source: deterministic text; imports neither torch nor triton."""

from advisor.codegen.row_program import KernelSource, render

__all__ = ["KernelSource", "render"]
