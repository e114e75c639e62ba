"""How values of a row program reach each other, for the names that are made from it."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.graph import Arg
from advisor.model.plan import PlanOp


class PlanValues:
    """Ops of a plan, all or some, by the value that each makes."""

    def __init__(self, ops: Sequence[PlanOp]) -> None:
        self.ops = ops
        self._by_name = {op.name: op for op in ops}
        self._sources: dict[str, list[PlanOp]] = {}

    def of(self, value: Arg) -> PlanOp | None:
        """The op that makes a value; None for an input or a number."""
        return self._by_name.get(str(value))

    def bare(self, value: Arg) -> str:
        """The value that this one is, but for its type, or whatever else `inner` looks through."""
        op = self.of(value)
        while op is not None and (inner := self.inner(op)) is not None:
            value, op = inner, self.of(inner)
        return str(value)

    def inner(self, op: PlanOp) -> Arg | None:
        """What a cast is applied to; None for other ops."""
        return op.args[0] if op.op == "cast" else None

    def sources(self, value: str) -> list[PlanOp]:
        """The ops that a value is computed by, its own included, in their order."""
        if value not in self._sources:
            found, pending = set[str](), [value]
            while pending:
                op = self._by_name.get(pending.pop())
                if op is not None and op.name not in found:
                    found.add(op.name)
                    pending += map(str, op.args)
            self._sources[value] = [op for op in self.ops if op.name in found]
        return self._sources[value]

    def depends(self, op: PlanOp, on: PlanOp) -> bool:
        """Whether an op is computed from another one's value."""
        return op is not on and on in self.sources(op.name)
