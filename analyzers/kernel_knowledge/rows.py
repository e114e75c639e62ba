"""What a row of the kernel tables holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

Role = Literal[
    "communication",
    "gemm",
    "conv",
    "attention",
    "norm",
    "softmax",
    "loss",
    "optimizer",
    "embedding",
    "reduction",
    "scan",
    "sort",
    "rotary",
    "routing",
    "cache",
    "quantize",
    "pool",
    "layout",
    "copy",
    "cast",
    "rng",
    "pointwise",
    "other",
]
# What one launch computes: fixed, or read from the name; None where the name does not tell.
Ops: TypeAlias = "tuple[str, ...] | Callable[[str], tuple[str, ...] | None] | None"


class Row(NamedTuple):
    """One kind of kernel.

    `pattern` is searched in the name; the first row that matches wins, so special rows come before
    general ones. `ops` are the operations one launch computes, as far as the name proves them;
    `exact` is False where the kernel may compute more (an epilogue that the name does not state, or
    states without proof: `gemm_relu` is also used without the ReLU). `source` says where the
    spelling is defined or was seen; `example` is a name that this row, and no earlier one, matches.
    """

    pattern: str
    role: Role
    library: str
    ops: Ops
    source: str
    example: str
    exact: bool = True


class Kernel(NamedTuple):
    """What is known about a kernel; `fuses` is None where the name does not tell."""

    role: Role
    library: str
    ops: tuple[str, ...]
    fuses: bool | None
    source: str
