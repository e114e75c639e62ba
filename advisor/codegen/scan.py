"""Scans as Triton source: the state of every lane in registers, from the first step to the last.

`scan_steps` takes one step after the other, whatever a step does; loads of later steps are on their
way meanwhile, by the pipeline of the loop or because several steps are read before the first one.
Where a step is linear in its state, s' = a s + b, steps can be joined: `scan_blocks` computes a
block of them at once, `scan_chunks` gives shares of the steps to several programs, for few lanes
with many steps; each says what its share does to a state, then takes its steps again from the state
that the shares before it leave.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from advisor.codegen import abi
from advisor.codegen.exponentials import pointwise_helpers
from advisor.codegen.expressions import reducer
from advisor.codegen.layout import INDENT, indented
from advisor.codegen.linear_steps import linear_step, plus, times
from advisor.codegen.scan_blocks import ScanBlocks
from advisor.codegen.scan_values import ScanValues
from advisor.codegen.streamed import kernel_text
from advisor.codegen.values import widened
from advisor.model.launch import Scheme
from advisor.model.plan import FusionPlan, PlanInput
from advisor.model.scan import stateful

WALK = "for start in tl.range({first}, {last}, UNROLL, num_stages=STAGES):"
TURNS = "for turn in tl.static_range(UNROLL):"
READ_TOGETHER = "# What UNROLL steps read is on its way together."


def scan_kernels(plan: FusionPlan, scheme: Scheme, title: str) -> list[str]:
    """The kernels of a scheme, in the order of their launches."""
    kernels = abi.kernels(plan, scheme)
    if scheme == "scan_blocks":
        doc = f"{title}; one program takes BLOCK_ROWS lanes through BLOCK_STEPS steps at once."
        return [kernel_text(kernels[0], doc, ScanBlocks(plan).body())]
    steps = _Steps(plan)
    if scheme == "scan_steps":
        doc = f"{title}; one program takes BLOCK_ROWS lanes through all steps."
        return [kernel_text(kernels[0], doc, steps.body())]
    first = f"{title}: what each share of the steps does to a state."
    return [
        kernel_text(kernels[0], first, steps.share()),
        kernel_text(kernels[1], f"{title}; each share of the steps.", steps.finish()),
    ]


def scan_helper_names(plan: FusionPlan, scheme: Scheme) -> set[str]:
    """The device functions that the kernels call."""
    reduced = (reducer(op.op) for op in plan.ops)
    found = pointwise_helpers(plan) | {helper for helper in reduced if helper is not None}
    return found | ({"then"} if scheme == "scan_blocks" else set())


class _Steps(ScanValues):
    """One step after the other."""

    def here(self, name: str, *, reverse: bool) -> str:
        return f"{name}_step"

    def body(self) -> list[str]:
        """All steps."""
        return [
            *self._until_steps(),
            *(self.first(state) for state in self.plan.states),
            *self._steps("0", "n_steps"),
            *self._last(),
        ]

    def finish(self) -> list[str]:
        """The steps of a share, from the state that the shares before it leave."""
        return [
            *self._until_steps(),
            *self._share_places(),
            *(self.first(state) for state in self.plan.states),
            "for before in range(0, share):",
            f"{INDENT}past_a = tl.load(partial_a + begin_at + before * size, mask=ok, other=0.0)",
            f"{INDENT}past_b = tl.load(partial_b + begin_at + before * size, mask=ok, other=0.0)",
            f"{INDENT}s0 = past_a * s0 + past_b",
            *self._share_range(),
            *self._steps("begin", "end"),
            *self._last("(share == n_splits - 1)"),
        ]

    def share(self) -> list[str]:
        """What a share of the steps does to a state: s' = total_a s + total_b."""
        (state,) = self.plan.states
        lines, a, b = linear_step(self)
        known = stateful(self.plan)
        needed = self._needed_for(" ".join([*lines, a, b]), known)
        return [
            *self.begin(),
            *self.before(),
            *self.places([item.name for item in self.plan.inputs if item.name in needed]),
            *self._share_places(),
            f"total_a = tl.full({self.shape(state)}, 1.0, tl.float32)",
            f"total_b = tl.full({self.shape(state)}, 0.0, tl.float32)",
            *self._share_range(),
            *self._walk(
                "begin",
                "end",
                [item for item in self._streamed() if item.name in needed],
                [],
                [
                    *(
                        self.assign(op)
                        for op in self.plan.ops
                        if op.name in needed and op.name not in self.fixed
                    ),
                    *lines,
                    _kept("total_b", plus(times(a, "total_b"), b)),
                    _kept("total_a", times(a, "total_a")),
                ],
            ),
            "tl.store(partial_a + begin_at + share * size, total_a, mask=ok)",
            "tl.store(partial_b + begin_at + share * size, total_b, mask=ok)",
        ]

    def _needed_for(self, text: str, known: frozenset[str]) -> set[str]:
        """The values without state that some statements read, with all that these are made of."""
        words = set(re.findall(r"\w+", text))
        found = {op.name for op in self.plan.ops if op.name in words and op.name not in known}
        found |= {item.name for item in self.plan.inputs if f"{item.name}_value" in words}
        for op in reversed(self.plan.ops):
            if op.name in found:
                found |= {arg for arg in op.args if isinstance(arg, str)}
        return found

    def _share_places(self) -> list[str]:
        wide = self.plan.states[0].space == "tile"
        column = " * n_columns + columns" if wide else ""
        return [
            "share = tl.program_id(1)",
            f"size = (zero + n_lanes){' * n_columns' if wide else ''}",
            f"begin_at = (zero + lanes){column}",
            f"ok = {'lane_ok & column_ok' if wide else 'lane_ok'}",
        ]

    def _share_range(self) -> list[str]:
        return [
            "begin = share * split_steps",
            "end = tl.minimum(begin + split_steps, n_steps)",
        ]

    def _until_steps(self) -> list[str]:
        names = [item.name for item in self.plan.inputs]
        return [*self.begin(), *self.before(), *self.places([*names, *abi.output_names(self.plan)])]

    def _streamed(self) -> list[PlanInput]:
        return [item for item in self.plan.inputs if item.spans[self.axis]]

    def _steps(self, first: str, last: str) -> list[str]:
        """The steps of a range, one after the other."""
        places = [n for n, output in enumerate(self.plan.outputs) if not output.last]
        body = [self.assign(op) for op in self.plan.ops if op.name not in self.fixed]
        for n in places:
            output = self.plan.outputs[n]
            body.append(self.write(n, output.value, "step_ok"))
            body += self._next(f"out{n}", reverse=output.reverse)
        body += [_kept(state.name, state.value) for state in self.plan.states]
        return self._walk(first, last, self._streamed(), places, body)

    def _walk(
        self,
        first: str,
        last: str,
        reads: Sequence[PlanInput],
        places: Sequence[int],
        body: Sequence[str],
    ) -> list[str]:
        """A loop over the steps of a range, UNROLL a turn.

        Its body has the values of `reads`, and where the outputs at `places` have this step.
        """
        ok = f"step_ok = (start + turn < {last}) | EVEN_STEPS"
        walked = [(item.name, item.reverse) for item in reads]
        walked += [(f"out{n}", self.plan.outputs[n].reverse) for n in places]
        lines = ["ahead = zero + start"]
        lines += ["back = n_steps - 1 - ahead"] if any(back for _, back in walked) else []
        for name, back in walked:
            lines.append(f"{name}_step = {super().here(name, reverse=back)}")
        if reads:
            lines += [READ_TOGETHER, *(f"{item.name}_turns = ()" for item in reads)]
            loads = [ok]
            for item in reads:
                loads.append(f"{item.name}_turns += ({self.stored(item, 'step_ok')},)")
                loads += self._next(item.name, reverse=item.reverse)
            lines += [TURNS, *indented(loads)]
        values = [f"{i.name}_value = {widened(i, f'{i.name}_turns[turn]')}" for i in reads]
        lines += [TURNS, *indented([ok, *values, *body])]
        return [WALK.format(first=first, last=last), *indented(lines)]

    def _next(self, name: str, *, reverse: bool) -> list[str]:
        """Where a tensor has the next step: a sum, not a product for every access."""
        stride = dict(self.strided[name].strides).get(self.axis)
        return [] if stride is None else [f"{name}_step {'-' if reverse else '+'}= {stride}"]

    def _last(self, *more: str) -> list[str]:
        held = {state.value: state.name for state in self.plan.states}
        return [
            self.write(n, held[output.value], *more)
            for n, output in enumerate(self.plan.outputs)
            if output.last
        ]


def _kept(name: str, value: str) -> str:
    """What a step makes of a state; a turn beyond the last step leaves it."""
    return f"{name} = {value} if EVEN_STEPS else tl.where(step_ok, {value}, {name})"
