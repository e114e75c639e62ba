"""What was read from a Triton kernel's source: accesses, special functions, products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Results of the special function unit for one element, as the hardware computes them: a sigmoid is
# an exponential and a reciprocal.
SPECIALS = {
    "exp": 1, "exp2": 1, "log": 1, "log2": 1, "log1p": 1, "expm1": 1, "sqrt": 1, "sqrt_rn": 1,
    "rsqrt": 1, "sigmoid": 2, "tanh": 2, "sin": 1, "cos": 1, "erf": 1, "pow": 2, "fdiv": 1,
    "div_rn": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """One load, store or atomic addition of the source, as one program does it.

    `lanes` elements at a time, `run` of them side by side; `trips` times, None if unknown; `fixed`
    are the program axes on which the address does not depend. `inside` names the loops around it,
    `follows` those that move it; `side` is the branch of programs that does it, one of `dealt`.
    """

    kind: str
    pointer: str
    lanes: int
    run: int
    trips: int | None
    fixed: frozenset[str]
    inside: tuple[str, ...] = ()
    side: str = ""
    follows: frozenset[str] = frozenset()
    dealt: int = 1


@dataclass(frozen=True)
class Special:
    """Results of the special function unit that one program asks for, per execution of the line.

    `loaded` are the pointers (and sites) whose data it is computed from.
    """

    results: int
    trips: int | None
    loaded: frozenset[tuple[str, int]]
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Product:
    """A `tl.dot`: rows and columns of its result, whether tensor cores can do it, its data."""

    rows: int
    columns: int
    tensor_cores: bool
    inside: tuple[str, ...] = ()
    loaded: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class KernelReading:
    """All of a kernel; `branches` are groups of programs that do different work.

    `ragged`: the length of a loop is read from memory, so programs have unequal shares.
    """

    name: str
    accesses: tuple[Access, ...]
    specials: tuple[Special, ...]
    products: tuple[Product, ...]
    branches: int
    ragged: bool
    complete: bool
    item_bytes: Mapping[str, int] = field(default_factory=dict)

    def loads(self) -> tuple[Access, ...]:
        """The loads."""
        return tuple(access for access in self.accesses if access.kind == "load")
