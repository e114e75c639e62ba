"""From a checked plan to Triton source: deterministic text, with neither torch nor triton imported."""

from advisor.codegen.row_program import KernelSource, render

__all__ = ["KernelSource", "render"]
