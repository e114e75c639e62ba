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

# Lanes, trips and results of one line: with programs and bytes they stay far within a float.
MOST_OF_A_KERNEL = 1 << 48


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
    found = walk(functions, name, dict(constants), dict(signature))
    return found if _is_possible(found) else None


def _is_possible(reading: KernelReading) -> bool:
    """Whether its numbers can be those of a kernel: no source makes arithmetic overflow."""
    counts = [n for a in reading.accesses for n in (a.lanes, a.run, a.trips or 0, a.dealt)]
    counts += [n for s in reading.specials for n in (s.results, s.trips or 0)]
    counts += [n for p in reading.products for n in (p.rows, p.columns)]
    return all(0 <= count <= MOST_OF_A_KERNEL for count in counts)


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
