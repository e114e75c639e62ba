"""What a kernel does, whose it is and what it fuses, told from its name and its operator.

The tables are in `analyzers.kernel_knowledge`; the first row that matches wins. A name proves
little (`gemm_relu` does not prove a ReLU), so `fuses` is None where the name leaves it open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from analyzers.kernel_knowledge import TABLE, Kernel, Row
from analyzers.kernel_knowledge.operators import refined

__all__ = ["TABLE", "UNKNOWN", "Kernel", "Row", "classify", "is_communication", "row_of"]

UNKNOWN = Kernel("other", "unknown", (), None, "no row matches")
_ROWS = tuple((re.compile(row.pattern), row) for row in TABLE)
# Template arguments of a kernel can run to kilobytes; what tells is at the front.
_LONGEST = 2_048


@lru_cache(maxsize=1 << 14)
def row_of(name: str) -> Row | None:
    """The first row of the tables that matches."""
    head = name[:_LONGEST]
    return next((row for pattern, row in _ROWS if pattern.search(head)), None)


@lru_cache(maxsize=1 << 16)
def classify(name: str, op: str | None = None) -> Kernel:
    """Role, library and operations of a kernel; `op` is the innermost operator around its launch.

    `ops` are those the name proves; `fuses` is True for two or more, False for one where the name
    states all, else None.
    """
    if op == name:  # compiled kernels are also recorded as operators of their own name
        op = None
    row = row_of(name)
    if row is None:
        return UNKNOWN if op is None else UNKNOWN._replace(role=refined("other", op))
    ops = row.ops(name[:_LONGEST]) if callable(row.ops) else row.ops
    role = row.role if op is None else refined(row.role, op)
    if ops is None:
        return Kernel(role, row.library, (), None, row.source)
    certain = [part for part in ops if not part.startswith("(")]
    fuses = True if len(certain) > 1 else (False if row.exact else None)
    return Kernel(role, row.library, ops, fuses, row.source)


def is_communication(names: Iterable[object]) -> list[bool]:
    """Which of these kernel names are collectives or their disguises."""
    return [classify(str(name)).role == "communication" for name in names]
