"""How values of a row program reach each other, for the names that are made from it."""

from __future__ import annotations

from advisor.model.graph import Arg
from advisor.model.plan import FusionPlan, PlanOp


class PlanValues:
    """The ops of a plan by the value that each makes."""

    def __init__(self, plan: FusionPlan) -> None:
        self.ops = plan.ops
        self._by_name = {op.name: op for op in plan.ops}
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

    def plain(self, value: Arg) -> str:
        """The value that this one is, but for its type and factors that are numbers."""
        while (op := self.of(self.bare(value))) is not None and op.op in ("mul", "div"):
            values = [arg for arg in op.args if isinstance(arg, str)]
            if len(values) != 1 or (op.op == "div" and op.args[0] != values[0]):
                break
            value = values[0]
        return self.bare(value)

    def unguarded(self, value: Arg) -> str:
        """The value that this one is where a guard does not put a number in its place."""
        while (op := self.of(self.bare(value))) is not None and op.op == "where":
            values = [arg for arg in op.args[1:] if isinstance(arg, str) and self.of(arg)]
            if len(values) != 1 or op.args[1] == op.args[2]:
                break
            value = values[0]
        return self.bare(value)

    def users(self, value: str) -> list[PlanOp]:
        """The ops that read a value, or what differs from it by its type alone."""
        return [op for op in self.ops if op.op != "cast" and value in map(self.bare, op.args)]

    def power(self, value: Arg, row: PlanOp) -> int | None:
        """1 where a value grows with that of a row as it is, -1 with its reciprocal, else None.

        Factors, guards and numbers that are added change nothing of that.
        """
        op = self.of(value)
        if op is None or op.space != "row":
            return None
        if op is row:
            return 1
        powers = [self.power(arg, row) for arg in op.args]
        if sum(power is not None for power in powers) != 1:
            return None
        place = next(n for n, power in enumerate(powers) if power is not None)
        here = powers[place] or 0
        if op.op in ("cast", "mul") or (op.op == "div" and place == 0):
            return here
        if op.op == "reciprocal" or op.op == "div":
            return -here
        others = [arg for n, arg in enumerate(op.args) if n != place and op.op != "where"]
        keeps = op.op in ("maximum", "minimum", "add", "where")
        return here if keeps and not any(isinstance(arg, str) for arg in others) else None

    def sources(self, value: str) -> list[PlanOp]:
        """The ops that a value is computed by, its own included, in the order of the plan."""
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

    def reads_row(self, op: PlanOp, row: PlanOp) -> bool:
        """Whether an op reads a value of the row that is made of another and of nothing wider."""
        for arg in op.args:
            made = self.of(arg)
            if made is not None and made.space == "row" and row in self.sources(made.name):
                return True
        return False
