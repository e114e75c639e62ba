"""Kernel names: one literal table per family of libraries, searched in this order.

Communication comes first: a collective must never count as compute.
"""

from __future__ import annotations

from analyzers.kernel_knowledge import (
    aten,
    attention,
    communication,
    engines,
    inductor,
    mathlibs,
    serving,
    training,
)
from analyzers.kernel_knowledge.rows import Kernel, Role, Row

TABLE: tuple[Row, ...] = (
    *communication.ROWS,
    *attention.ROWS,
    *inductor.ROWS,
    *training.ROWS,
    *serving.ROWS,
    *engines.ROWS,
    *mathlibs.ROWS,
    *aten.ROWS,
)

__all__ = ["TABLE", "Kernel", "Role", "Row"]
