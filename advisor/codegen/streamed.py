"""Kernels that stream rows in blocks of columns: one pass a level of reductions, or split rows."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.codegen import abi, folds
from advisor.codegen.layout import INDENT, docstring, statement
from advisor.codegen.values import Values
from advisor.model.configs import scheme_schedule
from advisor.model.launch import Scheme
from advisor.model.passes import Fold, Pass
from advisor.model.plan import FusionPlan, PlanInput

# Columns left over after whole blocks have a loop of their own, so that whole blocks need no masks;
# not where these do not fill their turns of UNROLL: there the rest goes in the last turn.
PARTS = "for PART in tl.static_range(2 if REST_APART else 1):"
LOOP = (
    "for start in tl.range({first} if PART == 0 else whole, whole if PART == 0 else {last}, "
    "BLOCK_COLUMNS, num_stages=STAGES, loop_unroll_factor=UNROLL if PART == 0 else 1):"
)
# The number of a program, where it is dealt nothing else than this kernel.
PROGRAM = "tl.program_id(0)"
# Which part of a row is a program's.
SPLIT = "split = tl.program_id(1)"


def streamed_kernels(plan: FusionPlan, scheme: Scheme, title: str) -> list[str]:
    """The device functions of a streaming scheme, in the order of their launches."""
    writer = _Writer(plan, scheme)
    names = abi.kernels(plan, scheme)
    if scheme != "split":
        count = len(writer.schedule.passes)
        passes = "pass" if count == 1 else "passes"
        does = f"one program reads BLOCK_ROWS rows block by block, in {count} {passes}."
        return [kernel_text(names[0], f"{title}; {does}", writer.looped())]
    first = "one program reduces its share of BLOCK_ROWS rows."
    second = "combines the shares of a row, then writes its own."
    return [
        kernel_text(names[0], f"{title}, first part; {first}", writer.partials()),
        kernel_text(names[1], f"{title}, second part; {second}", writer.finish()),
    ]


def kernel_text(kernel: abi.KernelAbi, doc: str, body: list[str]) -> str:
    """A jitted function; lines of the body carry their own depth as leading blanks."""
    constants = (f"{name}: tl.constexpr" for name in kernel.constants)
    parameters = [*kernel.tensors, *kernel.scalars, *constants]
    lines = ["", "@triton.jit", f"def {kernel.name}(", *(f"    {p}," for p in parameters), "):"]
    lines += docstring(doc, 1)
    for text in body:
        bare = text.lstrip(" ")
        lines += statement(bare, 1 + (len(text) - len(bare)) // len(INDENT))
    return "\n".join(lines) + "\n"


def indices(*, columns: Sequence[str] = (), program: str = PROGRAM) -> list[str]:
    """The rows of a program with a number, and the `columns` (their lines) if it holds all."""
    lines = [f"rows = {program} * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]", *columns]
    lines.append("row_ok = (rows < n_rows) | EVEN_ROWS")
    if columns:
        lines.append("column_ok = (columns < n_columns) | EVEN_COLUMNS")
    return [*lines, "row_start = rows.to(tl.int64) * n_columns"]


class _Writer:
    """The bodies of one plan's streaming kernels."""

    def __init__(self, plan: FusionPlan, scheme: Scheme) -> None:
        self.plan, self.values = plan, Values(plan)
        self.schedule = scheme_schedule(plan, scheme)
        self.side = self.values.side_by_side()

    # --- whole rows -------------------------------------------------------------------------------

    def looped(self) -> list[str]:
        """Every pass of a row by one program."""
        passes = self.schedule.passes
        lines = [*indices(), *self._lanes(), *self.values.axes(), *self._row_inputs()]
        lines.append(
            "whole = n_columns // BLOCK_COLUMNS * BLOCK_COLUMNS if REST_APART else n_columns"
        )
        lines += [self.values.assign(op) for op in self.schedule.before]
        for number, one in enumerate(passes):
            lines.append(f"# Pass {number + 1} of {len(passes)}: {self._purpose(one)}.")
            lines += self._walk(number, one, "0", "n_columns")
            lines += self._ends(one, "lanes", "seen_lanes", "n_columns", whole=True)
            lines += [self.values.assign(op) for op in one.after]
        return [*lines, *self._row_outputs("row_ok")]

    # --- split rows -------------------------------------------------------------------------------

    def partials(self) -> list[str]:
        """The folds of one part of a row, to memory."""
        one = self.schedule.passes[0]
        lines = [*indices(), SPLIT, *self._part(), *self._lanes(), *self.values.axes()]
        lines += self._row_inputs()
        lines += [self.values.assign(op) for op in self.schedule.before]
        lines += self._walk(0, one, "first", "last")
        lines += self._ends(one, "lanes", "seen_lanes", "(last - first)", whole=False)
        lines.append("part = rows.to(tl.int64) * n_splits + split")
        return lines + [
            f"tl.store({name} + part, {state.name}, mask=row_ok)"
            for name, state in self._states(one)
        ]

    def finish(self) -> list[str]:
        """The parts of a row combined, then one part of it written."""
        first, *rest = self.schedule.passes
        part = self._part() if rest and not self.plan.in_tiles else []
        lines = [*indices(), SPLIT, *part, *self.values.axes(), *self._row_inputs()]
        lines += [
            "splits = tl.arange(0, SPLITS)[None, :]",
            "split_ok = splits < n_splits",
            "parts = rows.to(tl.int64) * n_splits + splits",
        ]
        for name, state in self._states(first):
            options = f"mask=row_ok & split_ok, other={state.identity}"
            lines.append(f"{state.name}_parts = tl.load({name} + parts, {options})")
        if any(fold.kind == "moments" for fold in first.folds):
            share = "tl.minimum(split_columns, n_columns - splits * split_columns)"
            lines.append(f"counts = tl.where(split_ok, {share}, 0)")
        lines += [self.values.assign(op) for op in self.schedule.before]
        lines += self._ends(first, "parts", "counts", "n_columns", whole=True)
        lines += [self.values.assign(op) for op in first.after]
        for number, one in enumerate(rest, 1):
            in_tiles = self.plan.in_tiles
            lines += (
                self._tiled(number, one) if in_tiles else self._walk(number, one, "first", "last")
            )
        return [*lines, *self._row_outputs("row_ok & (split == 0)")]

    def _lanes(self) -> list[str]:
        """How many lanes a block has, if something is folded into them.

        Of rows that are not aligned a thread has no columns side by side: to fold them it would
        exchange each, which costs more than a state of its own; not more than two moments do.
        """
        kinds = {fold.kind for one in self.schedule.passes for fold in one.folds}
        if self.side == 1 or not kinds:
            return []
        wide = f"{self.side} if BLOCK_COLUMNS >= {self.side} else BLOCK_COLUMNS"
        lines = ["# A lane: as many columns as a thread takes at once."]
        if "moments" in kinds:
            lines.append(f"SIDE: tl.constexpr = {wide}")
        else:
            lines.append(f"SIDE: tl.constexpr = ({wide}) if ALIGNED_COLUMNS else 1")
        return [*lines, "LANES: tl.constexpr = BLOCK_COLUMNS // SIDE"]

    def _part(self) -> list[str]:
        """The columns of a program that reads a part of a row."""
        return [
            "first = split * split_columns",
            "last = tl.minimum(first + split_columns, n_columns)",
            "blocks = (last - first) // BLOCK_COLUMNS",
            "whole = first + blocks * BLOCK_COLUMNS if REST_APART else last",
        ]

    def _states(self, one: Pass) -> list[tuple[str, folds.State]]:
        """The partial tensors with what they hold."""
        found = [state for fold in one.folds for state in folds.states(fold)]
        return list(zip(abi.partial_names(self.plan), found, strict=True))

    # --- parts of a kernel ------------------------------------------------------------------------

    def _walk(self, number: int, one: Pass, first: str, last: str) -> list[str]:
        """The loop of one pass, with what its folds start from."""
        lines = [line for fold in one.folds for line in folds.starts(fold, self.values, self.side)]
        body = [
            *self.values.columns("start"),
            "column_ok = (columns < n_columns) | EVEN_COLUMNS | (REST_APART & (PART == 0))",
            *self.values.column_axes("start"),
        ]
        body += self._loads(number, one)
        body += [self.values.assign(op) for op in one.ops]
        body += [folds.step(fold, self.values, self.side, first) for fold in one.folds]
        body += [line for position in one.writes for line in self.values.stores(position, "start")]
        lines += [PARTS, INDENT + LOOP.format(first=first, last=last)]
        lines += [2 * INDENT + line for line in body]
        total = last if first == "0" else f"({last} - {first})"
        return [*lines, *folds.walked(one, self.side, total)]

    def _tiled(self, number: int, one: Pass) -> list[str]:
        """The loop of a pass without folds over every `n_splits`th tile of outer × inner columns.

        What is written along the inner ones fills sectors, and what is along the outer ones.
        """
        inner = abi.column_size_names(self.plan)[-1][1]
        lines = [
            "# Tiles are as wide as they are tall: results go along both of their axes.",
            "TILE_COLUMNS: tl.constexpr = BLOCK_COLUMNS // TILE_ROWS",
            f"beside = tl.cdiv({inner}, TILE_COLUMNS)",
            "tiles = tl.cdiv(n_outer, TILE_ROWS) * beside",
            "for tile in tl.range(split, tiles, n_splits, num_stages=STAGES):",
        ]
        body = [*self.values.tile_columns(), *self._loads(number, one)]
        body += [self.values.assign(op) for op in one.ops]
        body += [self.values.store(position) for position in one.writes]
        return [*lines, *(INDENT + line for line in body)]

    def _loads(self, number: int, one: Pass) -> list[str]:
        """What a pass reads of each block."""
        items = (self.values.inputs[name] for name in one.reads)
        return [self.values.load(item, self._policy(item, number)) for item in items]

    def _policy(self, item: PlanInput, number: int) -> str:
        """What is read again should stay in the caches, by this row or by others; the rest not."""
        own = all(item.spans) and item.gathered is None  # a table's row may be named again
        return (
            "evict_first" if own and self.schedule.last_read(item.name) == number else "evict_last"
        )

    def _ends(self, one: Pass, parts: str, counts: str, total: str, *, whole: bool) -> list[str]:
        return [
            line
            for fold in one.folds
            for line in folds.ends(fold, parts, counts, total, whole=whole)
        ]

    def _row_inputs(self) -> list[str]:
        return [self.values.load(item) for item in self.plan.inputs if not item.spans[-1]]

    def _row_outputs(self, mask: str) -> list[str]:
        return [
            self.values.store(position, mask)
            for position, output in enumerate(self.plan.outputs)
            if output.space == "row"
        ]

    def _purpose(self, one: Pass) -> str:
        """What a pass finds and writes, in words."""
        results = [name for fold in one.folds for name in _results(fold)]
        writes = [f"out{position}" for position in one.writes]
        found = [", ".join(results)] if results else []
        return " and ".join([*found, *([f"writes {', '.join(writes)}"] if writes else [])])


def _results(fold: Fold) -> tuple[str, ...]:
    both = fold.kind in ("exponentials", "moments") and fold.partner
    return (fold.partner, fold.result) if both else (fold.result,)
