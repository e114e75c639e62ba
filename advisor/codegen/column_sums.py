"""Kernels with reductions over the rows: programs walk over rows and keep states of their columns.

Every lane of a block keeps its own state along the walk, so that the loop needs no exchange between
threads; the lanes of a program are combined at its end. Of `column_sums`, each program writes what
it found of its share of the rows, and a second kernel combines the shares, always in the same
order. Of `column_walk`, one program reads all rows of its columns and has the result itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.codegen import abi
from advisor.codegen.expressions import IDENTITY
from advisor.codegen.layout import INDENT
from advisor.codegen.streamed import kernel_text
from advisor.codegen.values import Values, row_divisor
from advisor.model.launch import Scheme
from advisor.model.plan import FusionPlan, PlanInput, PlanOp
from advisor.model.walks import walk_of

COMBINERS = {"amax": "max_nan", "amin": "min_nan"}

HELPERS: dict[str, str] = {
    "add_to_mean": '''
@triton.jit
def add_to_mean(mean, squares, x, ok, share):
    """Mean and sum of squared deviations with one more x in every lane (Welford).

    `share` is 1 / the number of values so far; lanes that are not `ok` keep theirs.
    """
    apart = x - mean
    moved = mean + apart * share
    return tl.where(ok, moved, mean), tl.where(ok, squares + apart * (x - moved), squares)
''',
    "merge_moments": '''
@triton.jit
def merge_moments(count, mean, squares, count_2, mean_2, squares_2):
    """Number, mean and sum of squared deviations of two sets together (Chan, Golub, LeVeque)."""
    total = count + count_2
    share = tl.where(total > 0, count_2 / tl.maximum(total, 1.0), 0.0)
    apart = mean_2 - mean
    return total, mean + apart * share, squares + squares_2 + apart * apart * count * share
''',
}


@dataclass(frozen=True)
class _State:
    """One reduction over the rows: what it is called, and what its lanes start with."""

    op: PlanOp

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers kept for every column."""
        return (f"{self.op.name}_mean", self.op.name) if self.op.op == "var" else (self.op.name,)

    @property
    def identity(self) -> str:
        """What changes no result."""
        return IDENTITY.get(self.op.op, "0.0")


def helper_names(plan: FusionPlan, scheme: Scheme) -> set[str]:
    """The device functions that the states call: of this module, of `folds`, of the op table."""
    kinds = {op.op for op in plan.ops if op.over_rows}
    found = {COMBINERS[kind] for kind in kinds if kind in COMBINERS}
    if "var" in kinds:
        found.add("add_to_mean")
        found |= {"merge_moments"} if scheme == "column_sums" else set()
    return found


def column_kernels(plan: FusionPlan, scheme: Scheme, title: str) -> list[str]:
    """The device functions of a scheme, in the order of their launches."""
    writer = _Writer(plan)
    names = abi.kernels(plan, scheme)
    if scheme == "column_walk":
        does = "one program walks over all rows of its columns, BLOCK_ROWS at a time."
        return [kernel_text(names[0], f"{title}; {does}", writer.walk_all())]
    first = "programs walk over the rows in turn, BLOCK_ROWS at a time."
    second = "combines what the programs found for each column, in order."
    return [
        kernel_text(names[0], f"{title}, first part; {first}", writer.walk_share()),
        kernel_text(names[1], f"{title}, second part; {second}", writer.combine()),
    ]


class _Writer:
    """The bodies of one plan's kernels."""

    def __init__(self, plan: FusionPlan) -> None:
        self.plan, self.values = plan, Values(plan)
        self.parts = walk_of(plan)
        self.states = [_State(op) for op in plan.ops if op.over_rows]
        self.moments = any(state.op.op == "var" for state in self.states)

    # --- kernels ----------------------------------------------------------------------------------

    def walk_share(self) -> list[str]:
        """The walk over a share of the rows; what it found, to memory.

        Programs take blocks of rows in turn: what they read at a time lies side by side in memory,
        and they end together.
        """
        lines = [
            "share = tl.program_id(0)",
            "first = share * BLOCK_ROWS",
            "step = tl.num_programs(0) * BLOCK_ROWS",
            "block = tl.program_id(1)",
            *self._columns(self.parts.walked, self.parts.fixed),
            *self._walk("first", "step"),
            "place = share.to(tl.int64) * n_columns + columns",
        ]
        lines += self._counts("first", "step")
        lines += self._ends("tl.sum(counts, axis=0)[None, :]", whole=False)
        names = [name for state in self.states for name in state.names]
        return lines + [
            f"tl.store({partial} + place, {name}, mask=column_ok)"
            for partial, name in zip(abi.row_partial_names(self.plan), names, strict=True)
        ]

    def walk_all(self) -> list[str]:
        """The walk over all rows, and all that follows from it."""
        fixed = [op for op in self.plan.ops if op in self.parts.fixed + self.parts.early]
        lines = [
            "block = tl.program_id(0)",
            *self._columns(self.parts.walked | self.parts.ended, fixed),
            *self._walk("0", "BLOCK_ROWS"),
            *self._counts("0", "BLOCK_ROWS"),
        ]
        return [*lines, *self._ends("n_rows", whole=True), *self._late()]

    def combine(self) -> list[str]:
        """The shares of all programs combined, and what follows from them."""
        lines = [
            "columns = tl.program_id(0) * PART_COLUMNS + tl.arange(0, PART_COLUMNS)[None, :]",
            "column_ok = columns < n_columns",
            *self.values.column_axes(),
        ]
        lines += self._starts("(PARTS, PART_COLUMNS)")
        if self.moments:
            lines.append("counts = tl.full((PARTS, 1), 0.0, tl.float32)")
        body = [
            "shares = start + tl.arange(0, PARTS)[:, None]",
            "part_ok = (shares < n_splits) & column_ok",
            "place = shares.to(tl.int64) * n_columns + columns",
        ]
        if self.moments:
            body += [
                "first = shares * block_rows",
                "step = n_splits * block_rows",
                "blocks = (n_rows - first + step - 1) // step",
                "over = tl.maximum(first + (blocks - 1) * step + block_rows - n_rows, 0)",
                "left = blocks * block_rows - over",
                "taken = tl.where(shares < n_splits, left, 0).to(tl.float32)",
            ]
        partials = iter(abi.row_partial_names(self.plan))
        for state in self.states:
            for name in state.names:
                options = f"mask=part_ok, other={state.identity}"
                body.append(f"{name}_part = tl.load({next(partials)} + place, {options})")
            body.append(_merge(state))
        if self.moments:
            body.append("counts += taken")
        # Mostly once: copies on their way through shared memory would only add their own wait.
        lines.append("for start in tl.range(0, n_splits, PARTS, num_stages=1):")
        lines += [INDENT + line for line in body]
        lines += self._ends("n_rows", whole=True)
        loads = [self.values.load(item) for item in self._inputs(self.parts.ended)]
        early = [self.values.assign(op) for op in self.parts.early]
        return [*lines, *loads, *early, *self._late()]

    # --- parts of a kernel ------------------------------------------------------------------------

    def _columns(self, reads: frozenset[str], ops: Sequence[PlanOp]) -> list[str]:
        """The columns of a program with what is the same for all of its rows."""
        fixed = [item for item in self._inputs(reads) if not any(item.spans[:-1])]
        return [
            *self.values.columns("block * BLOCK_COLUMNS"),
            "column_ok = (columns < n_columns) | EVEN_COLUMNS",
            *self.values.column_axes(),
            *(self.values.load(item) for item in fixed),
            *(self.values.assign(op) for op in ops),
        ]

    def _walk(self, first: str, step: str) -> list[str]:
        """The loop over blocks of rows, one every `step` rows."""
        lines = self._starts("(BLOCK_ROWS, BLOCK_COLUMNS)")
        body = [
            "rows = start + tl.arange(0, BLOCK_ROWS)[:, None]",
            "row_ok = (rows < n_rows) | EVEN_ROWS",
            "row_start = rows.to(tl.int64) * n_columns",
            *self.values.axes(),
        ]
        if self.moments:
            done = "start" if first == "0" else f"start - {first}"
            body.append(f"weight = {step} / ({done} + {step})")
        moving = [item for item in self._inputs(self.parts.walked) if any(item.spans[:-1])]
        body += [self.values.load(item) for item in moving]
        for op in self.parts.moving:
            body.append(self._step(op) if op.over_rows else self.values.assign(op))
        body += [
            self.values.store(position, self._row_mask(output.space))
            for position, output in enumerate(self.plan.outputs)
            if output.space != "column"
        ]
        lines.append(f"for start in tl.range({first}, n_rows, {step}, num_stages=STAGES):")
        return lines + [INDENT + line for line in body]

    def _row_mask(self, space: str) -> str:
        """Where a program stores: a row value only beside the first block of columns."""
        return "row_ok & (block == 0)" if space == "row" else "row_ok"

    def _starts(self, shape: str) -> list[str]:
        return [
            f"{name}_lanes = tl.full({shape}, {state.identity}, tl.float32)"
            for state in self.states
            for name in state.names
        ]

    def _step(self, op: PlanOp) -> str:
        """The elements of a block taken into their lanes."""
        x, lanes = self.values.operand(op.args[0], "float32"), f"{op.name}_lanes"
        if op.op == "var":
            means = f"{op.name}_mean_lanes"
            call = f"add_to_mean({means}, {lanes}, {x}, row_ok & column_ok, weight)"
            return f"{means}, {lanes} = {call}"
        taken = f"tl.where(row_ok & column_ok, {x}, {_State(op).identity})"
        if op.op in COMBINERS:
            return f"{lanes} = {COMBINERS[op.op]}({lanes}, {taken})"
        return f"{lanes} += {taken}"

    def _counts(self, first: str, step: str) -> list[str]:
        """How many rows each lane took, where that matters."""
        if not self.moments:
            return []
        begin = "" if first == "0" else f" - {first}"
        rows = "tl.arange(0, BLOCK_ROWS)[:, None]"
        return [f"counts = (n_rows{begin} + {step} - 1 - {rows}) // {step}"]

    def _ends(self, total: str, *, whole: bool) -> list[str]:
        """The lanes of each column combined; a `whole` result is divided as its op says."""
        lines = []
        for state in self.states:
            lines += _combined(state, total)
            if whole and (scale := _scale(state.op)):
                lines.append(f"{state.op.name} = {state.op.name}{scale}")
        return lines

    def _late(self) -> list[str]:
        """The values per column that need all rows, computed and stored."""
        lines = [self.values.assign(op) for op in self.parts.late]
        return lines + [
            self.values.store(position)
            for position, output in enumerate(self.plan.outputs)
            if output.space == "column"
        ]

    def _inputs(self, names: frozenset[str]) -> list[PlanInput]:
        return [item for item in self.plan.inputs if item.name in names]


def _merge(state: _State) -> str:
    """A part of every lane of the second kernel taken into it."""
    name = state.op.name
    if state.op.op == "var":
        mine = f"{name}_mean_lanes, {name}_lanes"
        call = f"merge_moments(counts, {mine}, taken, {name}_mean_part, {name}_part)"
        return f"_, {mine} = {call}"
    if state.op.op in COMBINERS:
        return f"{name}_lanes = {COMBINERS[state.op.op]}({name}_lanes, {name}_part)"
    return f"{name}_lanes += {name}_part"


def _combined(state: _State, total: str) -> list[str]:
    """The lanes of a block combined along its rows."""
    name = state.op.name
    if state.op.op in COMBINERS:
        return [f"{name} = tl.reduce({name}_lanes, 0, {COMBINERS[state.op.op]})[None, :]"]
    if state.op.op != "var":
        return [f"{name} = {_sum(f'{name}_lanes')}"]
    mean, apart = f"{name}_mean", f"{name}_apart"
    return [
        f"{mean} = {_sum(f'counts * {mean}_lanes')} / tl.maximum({total}, 1)",
        f"{apart} = {mean}_lanes - {mean}",
        f"{name} = {_sum(f'{name}_lanes + counts * {apart} * {apart}')}",
    ]


def _sum(text: str) -> str:
    return f"tl.sum({text}, axis=0)[None, :]"


def _scale(op: PlanOp) -> str:
    """The division that makes a mean or a variance of a sum."""
    if op.op == "mean":
        return " / n_rows"
    return f" / ({row_divisor(op)})" if op.op == "var" else ""
