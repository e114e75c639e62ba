"""A scan by blocks of steps: linear steps, s' = a s + b, joined by a tree.

`tl.associative_scan` gives every step what it and those before it in the block do to a state
(Blelloch 1990, "Prefix sums and their applications"); the next block begins with the last one.
"""

from __future__ import annotations

from advisor.codegen import abi
from advisor.codegen.layout import indented
from advisor.codegen.linear_steps import linear_step
from advisor.codegen.scan_values import ScanValues
from advisor.model.optable import spec_of
from advisor.model.plan import PlanOp
from advisor.model.scan import PlanState, linear_path, stateful

HELPERS: dict[str, str] = {
    "then": '''
@triton.jit
def then(a, b, next_a, next_b):
    """Two steps s' = a s + b as one, the second after the first."""
    return next_a * a, next_a * b + next_b
''',
}


class ScanBlocks(ScanValues):
    """Blocks of steps at once: tiles of lanes, steps and columns."""

    lane_tile, column_tile, ones = "[:, None, None]", "[None, None, :]", "(1, 1, 1)"

    def shape(self, state: PlanState, steps: str = "1") -> str:
        return f"(BLOCK_ROWS, {steps}, {'BLOCK_COLUMNS' if state.space == 'tile' else '1'})"

    def _expression(self, op: PlanOp) -> str:
        """Reductions run over the columns, here the third axis."""
        text = super()._expression(op)
        if spec_of(op.op).kind != "reduction":
            return text
        for flat, deep in (
            (", axis=1)[:, None]", ", axis=2)[:, :, None]"),
            (", 1, max_nan)[:, None]", ", 2, max_nan)[:, :, None]"),
            (", 1, min_nan)[:, None]", ", 2, min_nan)[:, :, None]"),
        ):
            text = text.replace(flat, deep)
        return text

    def body(self) -> list[str]:
        """All blocks of steps."""
        (state,) = self.plan.states
        names = [item.name for item in self.plan.inputs]
        last = [n for n, output in enumerate(self.plan.outputs) if output.last]
        return [
            *self.begin(),
            *self.before(),
            *self.places([*names, *abi.output_names(self.plan)]),
            "steps = tl.arange(0, BLOCK_STEPS)[None, :, None]",
            self.first(state),
            "for start in tl.range(0, n_steps, BLOCK_STEPS, num_stages=STAGES):",
            *indented(self._block(state)),
            *(self.write(n, state.name) for n in last),
        ]

    def _block(self, state: PlanState) -> list[str]:
        """One block of steps: what needs no state, then all its states at once, then the rest."""
        known = stateful(self.plan)
        lines, a, b = linear_step(self)
        path = {op.name for op in linear_path(self.plan) or ()}
        tile = self.shape(state, "BLOCK_STEPS")
        moving = [op for op in self.plan.ops if op.name not in self.fixed and op.name not in known]
        rest = [op for op in self.plan.ops if op.name in known and op.name not in path]
        streamed = [item for item in self.plan.inputs if item.spans[self.axis]]
        back = {item.reverse for item in self.plan.inputs} | {o.reverse for o in self.plan.outputs}
        written = [(n, output) for n, output in enumerate(self.plan.outputs) if not output.last]
        return [
            "ahead = zero + start + steps",
            *(["back = n_steps - 1 - ahead"] if any(back) else []),
            "step_ok = ahead < n_steps",
            *(self.read(item, "step_ok") for item in streamed),
            *(self.assign(op) for op in moving),
            *lines,
            # Steps past the last one leave the state as it is.
            f"step_a = tl.broadcast_to(tl.where(step_ok, {a}, 1.0), {tile})",
            f"step_b = tl.broadcast_to(tl.where(step_ok, {b}, 0.0), {tile})",
            "all_a, all_b = tl.associative_scan((step_a, step_b), 1, then)",
            f"{state.value} = all_a * {state.name} + all_b",
            *(self.assign(op) for op in rest),
            *(self.write(n, output.value, "step_ok") for n, output in written),
            f"at_end = tl.where(steps == BLOCK_STEPS - 1, {state.value}, 0.0)",
            f"{state.name} = tl.sum(at_end, axis=1)[:, None, :]",
        ]
