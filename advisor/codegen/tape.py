"""A program under construction: the ops of a plan, and more behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.model.graph import Arg, AttributeValue
from advisor.model.optable import FLOAT_DTYPES, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp
from advisor.model.spaces import OVER, ROWS, Space, join_space, space_of


@dataclass
class Tape:
    """The ops of `plan` and those added since, with space and dtype of every value."""

    plan: FusionPlan
    ops: list[PlanOp] = field(default_factory=list)
    spaces: dict[str, Space] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in self.plan.inputs:
            self.input(item)
        for op in self.plan.ops:
            self._append(op)

    def input(self, item: PlanInput) -> None:
        """One more tensor that the program reads."""
        self.spaces[item.name], self.dtypes[item.name] = space_of(item.spans), item.dtype

    def varies(self, arg: Arg) -> bool:
        """Whether an argument is a floating-point value, not a literal or an integer."""
        return isinstance(arg, str) and self.dtypes.get(arg) in FLOAT_DTYPES

    def op(self, name: str, *args: Arg, dtype: str = "float32") -> str:
        """One more op; the same one only once."""
        return self._added(name, args, dtype, {})

    def cast(self, value: str, dtype: str) -> str:
        """A value rounded to a dtype."""
        return self._added("cast", (value,), dtype, {"dtype": dtype})

    def over_rows(self, value: str) -> str:
        """The sum of a tile over the rows."""
        return self._added("sum", (value,), "float32", {OVER: ROWS})

    def _added(
        self, name: str, args: tuple[Arg, ...], dtype: str, attributes: dict[str, AttributeValue]
    ) -> str:
        key = (name, args, dtype, OVER in attributes)
        if key in self._known:
            return self._known[key]
        space: Space = "scalar"
        for arg in args:
            if isinstance(arg, str) and arg in self.spaces:
                space = join_space(space, self.spaces[arg])
        if spec_of(name).kind == "reduction":
            reduced: Space = "row" if space == "tile" else "scalar"
            space = "column" if OVER in attributes else reduced
        value = f"v{len(self.ops)}"
        self._append(
            PlanOp(name=value, op=name, args=args, dtype=dtype, space=space, attributes=attributes)
        )
        self._known[key] = value
        return value

    def _append(self, op: PlanOp) -> None:
        self.ops.append(op)
        self.spaces[op.name], self.dtypes[op.name] = op.space, op.dtype

    def columns(self) -> str:
        """The number of columns, counted: a sum of ones over a value that spans them."""
        spanning = [name for name, space in self.spaces.items() if space in ("column", "tile")]
        like = min(spanning, key=lambda name: self.spaces[name] == "tile")
        same = self.op("eq", like, like, dtype="bool")
        return self.op("sum", self.op("where", same, 1.0, 1.0))
