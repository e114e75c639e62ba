"""What a Triton kernel does, read from its source: accesses, special functions, products.

The source is parsed, never run. Constants are those of the launch; sizes that are known at run time
only stay unknown. What cannot be followed makes the reading incomplete: rules then do not use it.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from advisor.model.overfusion import KernelCode, Scalar
from analyzers.overfusion.reading import KernelReading
from analyzers.overfusion.source_walk import walk


def read_kernel(code: KernelCode) -> KernelReading | None:
    """The reading of a kernel's source; None where there is none that can be parsed."""
    if not code.source:
        return None
    key = tuple(sorted((name, value) for name, value in code.constants.items()))
    return _read(code.source, code.name, key, tuple(code.signature.items()))


@lru_cache(maxsize=256)
def _read(
    source: str,
    name: str,
    constants: tuple[tuple[str, Scalar], ...],
    signature: tuple[tuple[str, str], ...],
) -> KernelReading | None:
    functions = _functions(source, name)
    if name not in functions:
        return None
    return walk(functions, name, dict(constants), dict(signature))


def _functions(source: str, name: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file; in a module that Inductor wrote, those of the kernel's own text."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name in found:
        return found
    for node in ast.walk(tree):
        texts = (
            [a.value for a in node.args if isinstance(a, ast.Constant)]
            if isinstance(node, ast.Call)
            else []
        )
        if len(texts) >= 2 and texts[0] == name and isinstance(texts[1], str):
            return _functions(texts[1], name)
    return found
