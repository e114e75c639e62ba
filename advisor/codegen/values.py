"""Ops and loads as Triton expressions: what a value is called, how it is typed and masked.

Low-precision values are widened on load and rounded only where the program casts or stores.
"""

from __future__ import annotations

import math

from advisor.codegen import abi
from advisor.codegen.bfloat16 import TO_BFLOAT16
from advisor.codegen.exponentials import (
    DIVIDED,
    DRAW,
    ERF_BESIDE,
    INVERSE,
    TANH_16,
    divided_by_exponentials,
    divided_by_rows,
    erfs_beside_numbers,
    exponentials_told_from_0,
    is_short_tanh,
)
from advisor.codegen.expressions import (
    BOOLEAN,
    IDENTITY,
    POINTWISE,
    REDUCTIONS,
    SQUARED_DEVIATIONS,
    TRITON_DTYPES,
)
from advisor.codegen.float8 import ONE_AT, copies, is_bounded, nowhere, read_beside_store, read_for
from advisor.codegen.strided import strided
from advisor.model.comparisons import compared, operand_dtype
from advisor.model.graph import Arg, literal_value
from advisor.model.optable import FLOAT8_MAX, KERNEL_FLOATS, RANDOM, item_bytes, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp
from advisor.model.spaces import space_of

# What a thread stores at most in one instruction.
STORE_BYTES = 16
# Of a float32: from half a place beyond the largest one on it is infinite.
LARGEST, SMALLEST_NORMAL = (2 - 2**-24) * 2.0**127, 2.0**-126
# The linear index of an element, by where it varies.
_LINEAR = {"tile": "(row_start + columns)", "row": "rows", "column": "columns"}


class Values:
    """The expressions of one plan; masks are called `row_ok` and `column_ok`."""

    def __init__(self, plan: FusionPlan) -> None:
        self.plan = plan
        self.inputs = {item.name: item for item in plan.inputs}
        self.dtypes = {item.name: item.dtype for item in plan.inputs} | {
            op.name: op.dtype for op in plan.ops
        }
        self.spaces = {item.name: space_of(item.spans) for item in plan.inputs} | {
            op.name: op.space for op in plan.ops
        }
        self.drawn = plan.drawn_values()
        self.inverted = divided_by_exponentials(plan.ops)
        self.shared = divided_by_rows(plan)
        self.beside = erfs_beside_numbers(plan)
        self.told = exponentials_told_from_0(plan.ops)
        self.rounded, self.copies = read_beside_store(plan), copies(plan)
        self.strided = {tensor.name: tensor for tensor in strided(plan)}

    # --- memory -----------------------------------------------------------------------------------

    def columns(self, first: str) -> list[str]:
        """The columns of a block from `first` on.

        Triton lays out each load and store by the elements that 16 bytes hold of its type, and
        moves a tile through shared memory from one layout to another. Told that fewer columns are
        adjacent, it takes those of the widest result for all.
        """
        block = "tl.arange(0, BLOCK_COLUMNS)[None, :]"
        lines = [f"columns = {first} + {block}" if first else f"columns = {block}"]
        count = self._adjacent()
        if count is None:
            return lines
        told = f"tl.max_contiguous(tl.multiple_of(columns, [1, {count}]), [1, {count}])"
        why = "# As many together as a thread stores at once: one layout for loads and stores."
        return [*lines, why, f"if BLOCK_COLUMNS >= {count}:", f"    columns = {told}"]

    def side_by_side(self) -> int:
        """Columns that a thread takes at once: as many as its stores and its narrowest load."""
        if self.plan.reads_columns_apart:
            return 1
        stored, read = self._widths()
        narrowest = min(stored + read, default=STORE_BYTES)
        return self._adjacent() or STORE_BYTES // narrowest

    def _adjacent(self) -> int | None:
        """Columns that a thread stores at once, if some access would take more of them."""
        stored, read = self._widths()
        widest = max(stored, default=0)
        return STORE_BYTES // widest if min(stored + read, default=0) < widest else None

    def _widths(self) -> tuple[list[int], list[int]]:
        """Bytes of an element of what is stored for all, and of what is read along the columns."""
        stored = [item_bytes(o.dtype) for o in self.plan.outputs if o.space == "tile"]
        read = [item_bytes(i.dtype) for i in self.plan.inputs if i.spans[-1]]
        return stored, read

    def axes(self) -> list[str]:
        """The index along every row axis, innermost first, where some input needs them."""
        if not abi.needs_axes(self.plan):
            return []
        lines, rest = [], "rows"
        for axis in range(self.plan.row_axes - 1, 0, -1):
            lines.append(f"axis_{axis} = {rest} % size_{axis}")
            lines.append(f"above_{axis} = {rest} // size_{axis}")
            rest = f"above_{axis}"
        return [*lines, f"axis_0 = {rest}"]

    def column_axes(self, block: str | None = None) -> list[str]:
        """The index along every column axis, innermost first, where some tensor needs them.

        `block` names the first column of a block: one that lies in a single segment, the innermost
        axis being a multiple of it, has one index along all axes above.
        """
        names = abi.column_size_names(self.plan)
        lines, rest = [], "columns"
        for axis, size in reversed(names):
            lines.append(f"column_{axis} = {rest} % {size}")
            above = f"above_column_{axis}" if axis > 1 else "column_0"
            divided = f"{above} = {rest} // {size}"
            if block is None or rest != "columns":
                lines.append(divided)
            else:
                lines += [
                    f"if {size} % BLOCK_COLUMNS == 0:",
                    f"    {above} = tl.full((1, 1), {block} // {size}, tl.int32)",
                    "else:",
                    f"    {divided}",
                ]
            rest = above
        return lines

    def tile_columns(self) -> list[str]:
        """The columns of a `tile` of the outer × the inner ones, and the index along every axis."""
        names = abi.column_size_names(self.plan)
        last, size = names[-1]
        parts = any(item.segments and item.segments[-1] for item in self.plan.inputs)
        lines = [
            "outer = tile // beside * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]",
            "inner = tile % beside * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]",
            f"columns = outer * {size} + inner",
            f"column_ok = (outer < n_outer) & (inner < {size})",
            # A value of a part of a row is read without a mask of columns.
            f"column_{last} = " + (f"tl.minimum(inner, {size} - 1)" if parts else "inner"),
        ]
        rest = "outer"
        for axis, size in reversed(names[:-1]):
            above = f"above_column_{axis}" if axis > 1 else "column_0"
            lines += [f"column_{axis} = {rest} % {size}", f"{above} = {rest} // {size}"]
            rest = above
        return lines if rest != "outer" else [*lines, "column_0 = outer"]

    def load(self, item: PlanInput, policy: str = "") -> str:
        """An input into registers; `policy` is what the caches should do with it."""
        if item.counts is not None:
            first, step = item.counts
            index = f"{'columns' if item.spans[-1] else 'rows'}.to(tl.int64)"
            scaled = index if step == 1 else f"{index} * {step}"
            return f"{item.name}_value = {scaled}" + (f" + {first}" if first else "")
        loaded = widened(
            item, self._loaded(item, self._input_address(item), self._mask(item), policy)
        )
        if item.gathered is not None:  # beyond the table nothing is read: there it is NaN
            loaded = f'tl.where({_is_row_of(item)}, {loaded}, float("nan"))'
        return f"{item.name}_value = {loaded}"

    def _loaded(self, item: PlanInput, address: str, mask: str, policy: str = "") -> str:
        """What lies at an address where the mask, if there is one, lets it be read."""
        nothing = "0.0" if item.dtype in FLOAT8_MAX else "0"
        options = f", mask={mask}, other={nothing}" if mask else ""
        if policy:
            options += f', eviction_policy="{policy}"'
        return f"tl.load({address}{options})"

    def _mask(self, item: PlanInput) -> str:
        """Where there is something to read; what is read must have no more elements than this."""
        masks = ["row_ok"] if any(item.spans[:-1]) else []
        if item.segments:  # one element for a segment that a block lies in, so no mask of columns
            inner = "".join(f" * {name}" for _, name in abi.column_size_names(self.plan))
            masks += [f"(column_0{inner} < n_columns)"] if item.segments[0] else []
        elif item.spans[-1]:
            masks.append("column_ok")
        masks += [_is_row_of(item)] if item.gathered is not None else []
        return " & ".join(masks)

    def _input_address(self, item: PlanInput) -> str:
        if item.gathered is not None:
            stride = "n_columns" if item.dense else self.strided[item.name].strides[0][1]
            return f"{item.name} + {item.gathered}_value.to(tl.int64) * {stride} + columns"
        if not item.dense:
            return self._strided_address(item.name)
        offset = {
            "tile": " + row_start + columns",
            "row": " + rows",
            "column": " + columns",
            "scalar": "",
        }[space_of(item.spans)]
        return item.name + offset

    def _strided_address(self, name: str) -> str:
        tensor = self.strided[name]
        terms = [name]
        terms += [f"{self._index(axis)}.to(tl.int64) * {stride}" for axis, stride in tensor.strides]
        if tensor.unit is not None:
            terms.append(self._index(tensor.unit))
        return " + ".join(terms)

    def _index(self, axis: int) -> str:
        """The index along one axis of the iteration space."""
        plan = self.plan
        if axis < plan.row_axes:
            return "rows" if plan.row_axes == 1 else f"axis_{axis}"
        return "columns" if plan.column_axes == 1 else f"column_{axis - plan.row_axes}"

    def stores(self, position: int, first: str) -> list[str]:
        """An output to memory, one that is turned along the outer of two column axes if it can be.

        `first` is the first column of the block, "" for 0. Triton stores a tile along the axis of
        it in which memory is contiguous, so a block of whole segments is given one axis more.
        """
        plan, store = self.plan, self.store(position)
        if not plan.outputs[position].turned or plan.column_axes > 2:
            return [store]
        name, value = f"out{position}", plan.outputs[position].value
        *rows, (_, apart) = self.strided[name].strides
        terms = [name, "segments", f"within.to(tl.int64) * {apart}"]
        terms += [f"{self._index(a)}[:, :, None].to(tl.int64) * {step}" for a, step in rows]
        ((_, size),) = abi.column_size_names(plan)
        count = f"BLOCK_COLUMNS // {size}"
        begin = f"tl.multiple_of({first} // {size}, {count}) + " if first else ""
        return [
            f"if BLOCK_COLUMNS % {size} == 0:",
            "    # Segments have an axis of their own, along which memory is contiguous.",
            f"    segments = {begin}tl.arange(0, {count})[None, :, None]",
            f"    within = tl.arange(0, {size})[None, None, :]",
            f"    segment_ok = (segments < n_columns // {size}) | EVEN_COLUMNS",
            f"    turned = tl.reshape({value}, (BLOCK_ROWS, {count}, {size}))",
            f"    tl.store({' + '.join(terms)}, turned, mask=row_ok[:, :, None] & segment_ok)",
            "else:",
            f"    {store}",
        ]

    def store(self, position: int, row_mask: str = "row_ok") -> str:
        """An output to memory."""
        output = self.plan.outputs[position]
        pointer = f"out{position}"
        offset, mask = {
            "column": (" + columns", "column_ok"),
            "row": (" + rows", row_mask),
        }.get(output.space, (" + row_start + columns", "row_ok & column_ok"))
        place = self._strided_address(pointer) if output.strided else pointer + offset
        return f"tl.store({place}, {output.value}, mask={mask})"

    # --- ops --------------------------------------------------------------------------------------

    def assign(self, op: PlanOp) -> str:
        """An op as a statement; reductions run over the columns that are in registers."""
        return f"{op.name} = {self._expression(op)}"

    def _expression(self, op: PlanOp) -> str:
        if op.op == "cast" and op.name in self.drawn:
            return str(op.args[0])  # Inductor compares what was drawn, whatever type eager has
        if op.op == "cast":
            return self._cast(str(op.args[0]), op.dtype, op.name)
        if op.op == RANDOM:
            return f"{DRAW}({op.args[0]}_value, {_LINEAR[op.space]})"
        if op.op == "var":
            return self._variance(op)
        if spec_of(op.op).kind == "reduction":
            operand = self.operand(op.args[0], op.dtype)
            return REDUCTIONS[op.op].triton.format(masked(operand, IDENTITY[op.op]))
        wide = self._operand_dtype(op)
        wanted = [wide] * len(op.args)
        if op.op == "where":
            wanted[0] = "bool"
        args = compared(op, self.dtypes, self.drawn)
        operands = [self.operand(a, w) for a, w in zip(args, wanted, strict=True)]
        if op.op == "pow":  # the device function looks at bits, so it needs tensors
            operands = [
                o if arg in self.dtypes else f"tl.full((1, 1), {o}, tl.float32)"
                for o, arg in zip(operands, op.args, strict=True)
            ]
        if op.op == "relu" and op.dtype not in KERNEL_FLOATS:
            # Beside 0.0 an integer would become a float32, which holds 24 bits of it.
            return POINTWISE["maximum"].triton.format(*operands, "0")
        if op.name in self.told:
            return f"tl.exp({operands[0]})"
        if is_short_tanh(op):
            return f"{TANH_16}({operands[0]})"
        if op.name in self.beside:
            return f"{ERF_BESIDE}({operands[0]})"
        if op.name in self.inverted:
            inverse = f"{INVERSE}({operands[-1]})"
            return inverse if op.op == "reciprocal" else f"{operands[0]} * {inverse}"
        if op.name in self.shared:
            return f"{DIVIDED}({', '.join(operands)})"
        name = BOOLEAN.get(op.op, op.op) if op.dtype == "bool" else op.op
        return POINTWISE[name].triton.format(*operands)

    def _variance(self, op: PlanOp) -> str:
        operand = self.operand(op.args[0], op.dtype)
        return f"{SQUARED_DEVIATIONS}({operand}, column_ok, n_columns) / ({divisor(op)})"

    def _operand_dtype(self, op: PlanOp) -> str:
        """What a pointwise op's operands become: the result's type, or theirs if it is a test."""
        return op.dtype if op.dtype != "bool" else operand_dtype(op, self.dtypes)

    def operand(self, arg: Arg, wanted: str) -> str:
        """An argument as an expression in the register type that `wanted` computes in."""
        if isinstance(arg, str) and arg in self.dtypes:
            name = self._wide(arg)
            have = self.dtypes[arg]
            if have in FLOAT8_MAX:
                return name
            if wanted in KERNEL_FLOATS and have not in KERNEL_FLOATS:
                return f"{name}.to(tl.float32)"
            if wanted == "bool" and have != "bool":
                return f"({name} != 0)"
            return name
        number = literal_value(arg)
        if isinstance(number, bool):
            return str(number) if wanted == "bool" else str(int(number))
        if not math.isfinite(number):
            return f'float("{number}")'
        if wanted in KERNEL_FLOATS:
            return _float32(float(number))
        return f"({number!r})" if number < 0 else repr(number)

    def _name(self, arg: str) -> str:
        return f"{arg}_value" if arg in self.inputs else arg

    def _wide(self, arg: str) -> str:
        """A value; of eight bits as float32, which inputs are from their load on."""
        have = self.dtypes[arg]
        eight = have in FLOAT8_MAX and arg not in self.inputs
        return f"from_{have}({self._eight_bits(arg)})" if eight else self._name(arg)

    def _eight_bits(self, name: str, copy: str = "") -> str:
        """A value of eight bits that was made here, for ops that read it or a copy of that name."""
        op = self.rounded.get(name)
        return name if op is None else self._rounded(str(op.args[0]), op.dtype, copy)

    def _rounded(self, arg: str, dtype: str, again: str | None = None) -> str:
        """A value rounded to eight bits; `again` by an instruction of its own, or by arithmetic.

        It is of its own for each copy, of which it is the name, and "" for the ops that read.
        """
        wide, have = self._wide(arg), self.dtypes[arg]
        if have not in KERNEL_FLOATS and have not in FLOAT8_MAX:
            wide += ".to(tl.float32)"
        pointer = None if again is None else read_for(self.plan, arg)
        if again is not None and pointer is not None:
            wide += f" * {ONE_AT}({pointer}, {nowhere(self.plan, again)})"
        elif again is not None:
            return f"bits_of_{dtype}({wide})"
        if dtype == "float8_e4m3fn":
            return f"to_{dtype}({wide})"
        return f"to_{dtype}({wide}, {is_bounded(self.plan, arg, FLOAT8_MAX[dtype])})"

    def _cast(self, arg: str, dtype: str, made: str) -> str:
        """Round to a narrow float and widen again; integers and booleans change register type.

        What is only stored, eight bits, stays narrow.
        """
        name, have = self._wide(arg), self.dtypes[arg]
        source = self.copies.get(made)
        if source is not None and source in (arg, *self.rounded):
            return self._eight_bits(source, made)
        if dtype in FLOAT8_MAX:
            return self._rounded(arg, dtype)
        if have in FLOAT8_MAX:
            have = "float32"
        if dtype == "bfloat16":
            return f"{TO_BFLOAT16}({name if have in KERNEL_FLOATS else f'{name}.to(tl.float32)'})"
        if dtype == "float16":
            return f"{name}.to(tl.float16).to(tl.float32)"
        if dtype == "float32":
            return name if have in KERNEL_FLOATS else f"{name}.to(tl.float32)"
        if dtype == "bool":
            return f"{name} != 0"
        return f"{name}.to({TRITON_DTYPES[dtype]})"


def _float32(number: float) -> str:
    """A number as a float32: Triton makes one that is too large or small for it a float64."""
    size = abs(number)
    if size > LARGEST:
        return 'float("inf")' if number > 0 else 'float("-inf")'
    text = f"({number!r})" if number < 0 else repr(number)
    return f"tl.full((), {text}, tl.float32)" if 0 < size < SMALLEST_NORMAL else text


def widened(item: PlanInput, loaded: str) -> str:
    """What was loaded of an input, as a program computes with it."""
    if item.dtype in ("float16", "bfloat16"):
        return f"{loaded}.to(tl.float32)"
    if item.dtype in FLOAT8_MAX:
        return f"from_{item.dtype}({loaded})"
    return f"{loaded} != 0" if item.dtype == "bool" else loaded


def _is_row_of(table: PlanInput) -> str:
    """Whether the index of a table is a row of it: eager fails where it is none."""
    index = f"{table.gathered}_value"
    return f"({index} >= 0) & ({index} < {abi.rows_name(table)})"


def masked(operand: str, identity: str) -> str:
    """The operand where there is a column, else what changes nothing."""
    return f"tl.where(column_ok, {operand}, {identity})"


def row_divisor(op: PlanOp) -> str:
    """The same for a `var` over the rows, of which there may be none."""
    return f"tl.maximum(n_rows - {op.correction!r}, 0.0)"


def divisor(op: PlanOp) -> str:
    """What the sum of squared deviations of a `var` is divided by."""
    text = f"n_columns - {op.correction!r}"
    # More than a row may have: never below zero, as in torch.var.
    return f"tl.maximum({text}, 0.0)" if op.correction > 1 else text
