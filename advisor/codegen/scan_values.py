"""What all schemes of a scan share: where tensors lie, what all steps have in common, the states.

Row axes are [lanes..., steps]: a program has BLOCK_ROWS lanes and walks along their steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.codegen import abi
from advisor.codegen.values import Values, widened
from advisor.model.plan import FusionPlan, PlanInput
from advisor.model.scan import PlanState, fixed_values, lane_axes


class ScanValues(Values):
    """The expressions of one scan; masks are called `lane_ok`, `column_ok` and `step_ok`."""

    # How an index along lanes and one along columns become tiles.
    lane_tile, column_tile, ones = "[:, None]", "[None, :]", "(1, 1)"

    def __init__(self, plan: FusionPlan) -> None:
        super().__init__(plan)
        self.lanes, self.axis = lane_axes(plan), plan.row_axes - 1
        self.dtypes |= {state.name: state.dtype for state in plan.states}
        self.spaces |= {state.name: state.space for state in plan.states}
        self.fixed = fixed_values(plan)

    # --- places in memory -------------------------------------------------------------------------

    def begin(self) -> list[str]:
        """The lanes and columns of a program, and zero as wide as an index must be."""
        lines = [
            f"lanes = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS){self.lane_tile}",
            f"columns = tl.arange(0, BLOCK_COLUMNS){self.column_tile}",
            "lane_ok = (lanes < n_lanes) | EVEN_ROWS",
            "column_ok = (columns < n_columns) | EVEN_COLUMNS",
            f"zero = tl.zeros({self.ones}, tl.int64)",
        ]
        rest = "lanes"
        for axis, size in reversed(abi.size_names(self.plan)):
            lines += [f"axis_{axis} = zero + {rest} % {size}", f"above_{axis} = {rest} // {size}"]
            rest = f"above_{axis}"
        return [*lines, f"axis_0 = zero + {rest}"]

    def place(self, name: str) -> str:
        """Where a tensor of the first step lies, for every lane and column."""
        tensor = self.strided[name]
        terms = [name] + ([f"{name}_offset"] if name in self.inputs else [])
        for axis, stride in tensor.strides:
            if axis != self.axis:
                terms.append(f"{self._index(axis)} * {stride}")
        if tensor.unit is not None:
            terms.append("columns")
        return " + ".join(terms)

    def _index(self, axis: int) -> str:
        return "columns" if axis > self.axis else f"axis_{axis}"

    def along_steps(self, name: str, *, reverse: bool) -> str:
        """How far from there a step lies."""
        stride = dict(self.strided[name].strides).get(self.axis)
        if stride is None:
            return ""
        return f" + {'back' if reverse else 'ahead'} * {stride}"

    def mask(self, spans: Sequence[bool], *more: str) -> str:
        """Where there is something to read or write."""
        found = ["lane_ok"] if any(spans[: self.lanes]) else []
        found += ["column_ok"] if spans[-1] else []
        return " & ".join([*found, *(more if spans[self.axis] else ())])

    def read(self, item: PlanInput, *more: str) -> str:
        """An input of this step, or of all."""
        return f"{item.name}_value = {widened(item, self.stored(item, *more))}"

    def stored(self, item: PlanInput, *more: str) -> str:
        """The same as it is in memory."""
        walked = item.spans[self.axis]
        at = self.here(item.name, reverse=item.reverse) if walked else self.place(item.name)
        return self._loaded(item, at, self.mask(item.spans, *more))

    def here(self, name: str, *, reverse: bool) -> str:
        """Where a tensor that is walked along the steps has these."""
        return f"{name}_at{self.along_steps(name, reverse=reverse)}"

    def write(self, position: int, value: str, *more: str) -> str:
        """An output of this step, or of the last."""
        output = self.plan.outputs[position]
        name = f"out{position}"
        spans = (*(True,) * self.lanes, not output.last, output.space == "tile")
        where = (
            self.mask(spans, *more) if not output.last else " & ".join([self.mask(spans), *more])
        )
        at = self.place(name) if output.last else self.here(name, reverse=output.reverse)
        return f"tl.store({at}, {value}, mask={where})"

    def places(self, names: Sequence[str]) -> list[str]:
        """Where those tensors begin that are walked along the steps."""
        walked = [i.name for i in self.plan.inputs if i.spans[self.axis]]
        walked += [f"out{n}" for n, output in enumerate(self.plan.outputs) if not output.last]
        return [f"{name}_at = {self.place(name)}" for name in names if name in walked]

    # --- what runs when ---------------------------------------------------------------------------

    def before(self) -> list[str]:
        """What is the same in all steps."""
        lines = [self.read(item) for item in self.plan.inputs if not item.spans[self.axis]]
        return lines + [self.assign(op) for op in self.plan.ops if op.name in self.fixed]

    def shape(self, state: PlanState) -> str:
        """The tile of a state."""
        return f"(BLOCK_ROWS, {'BLOCK_COLUMNS' if state.space == 'tile' else '1'})"

    def first(self, state: PlanState) -> str:
        """A state before the first step."""
        if isinstance(state.initial, str) and state.initial in self.inputs:
            return f"{state.name} = tl.broadcast_to({state.initial}_value, {self.shape(state)})"
        number = self.operand(state.initial, "float32")
        return f"{state.name} = tl.full({self.shape(state)}, {number}, tl.float32)"
