"""The host side of a generated source: the launcher and the reference, as text."""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping

from advisor.codegen import abi
from advisor.codegen.expressions import POINTWISE, REDUCTIONS
from advisor.codegen.float8 import is_bounded
from advisor.codegen.layout import docstring, statement
from advisor.codegen.strided import strided
from advisor.model.column_configs import combined_numbers, holds_rows
from advisor.model.gathers import gathers, table_axis
from advisor.model.graph import NON_FINITE, Arg, literal_value
from advisor.model.launch import (
    OVER_ROWS,
    PART_COLUMNS,
    Scheme,
    most_parts_per_warp,
)
from advisor.model.optable import FLOAT8_MAX, RANDOM, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp

LAUNCHER_DOC = (
    "Launch the kernel; every input has one dimension per axis, of size 1 where it is repeated."
)
REFERENCE_DOC = "What the kernel replaces, op by op; tensors have one dimension per axis."
# Options of the launchers with what is sensible without measuring.
OPTIONS: dict[Scheme, str] = {
    "registers": "block_rows=1, num_warps=4",
    "looped": "block_rows=1, block_columns=4096, num_warps=8, num_stages=1, unroll=1",
    "online": "block_rows=1, block_columns=4096, num_warps=8, num_stages=1, unroll=1",
    "split": "block_rows=1, block_columns=2048, splits=8, num_warps=8, num_stages=1, unroll=1",
    "column_sums": "block_rows=1, splits=264, num_warps=8, num_stages=1",
    "blocks": "block_rows=32, block_columns=64, num_warps=4",
    "column_walk": "block_rows=32, block_columns=128, num_warps=4, num_stages=1",
}
# In place of whole rows, where only the rows are reduced.
BLOCKS = "block_rows=32, block_columns=128"


def launcher(
    plan: FusionPlan,
    scheme: Scheme,
    *,
    name: str = "fused",
    options: str | None = None,
    wrap: str = "",
) -> str:
    """The function that allocates what is missing and launches the kernels of a scheme.

    `options` are its keyword arguments with their defaults, `wrap` a function that is applied to a
    kernel before it is launched.
    """
    inputs = [item.name for item in plan.inputs]
    columns = column_names(plan)
    axes = ", ".join((*_axis_names(plan), *columns))
    shapes = ", ".join(_shape_read(item) for item in plan.inputs)
    lines = [
        "",
        *statement(
            f"def {name}({', '.join(inputs)}, *, out=None, {options or _options(plan, scheme)}):"
        ),
        *docstring(LAUNCHER_DOC, 1),
        *statement(f"{axes} = torch.broadcast_shapes({shapes})", 1),
        *([f"    n_columns = {' * '.join(columns)}"] if len(columns) > 1 else []),
    ]
    for item in plan.inputs:
        if item.dense:
            lines += [
                f"    if not {item.name}.is_contiguous():",
                f'        raise ValueError("{item.name} must be contiguous")',
            ]
    lines += [*_allocation(plan), *_launches(plan, scheme, wrap), "    return out"]
    return "\n".join(lines) + "\n"


def _shape_read(item: PlanInput) -> str:
    """What an input says of the sizes of the axes: a table, of the columns alone."""
    return f"{item.name}.shape" + ("[-1:]" if item.gathered is not None else "")


def _options(plan: FusionPlan, scheme: Scheme) -> str:
    in_blocks = scheme == "column_sums" and not holds_rows(plan)
    return OPTIONS[scheme].replace("block_rows=1", BLOCKS) if in_blocks else OPTIONS[scheme]


def _axis_names(plan: FusionPlan) -> list[str]:
    return [f"size_{axis}" for axis in range(plan.row_axes)]


def column_names(plan: FusionPlan) -> list[str]:
    """The sizes of the column axes in a launcher."""
    if plan.column_axes == 1:
        return ["n_columns"]
    return [f"columns_{axis}" for axis in range(plan.column_axes)]


def column_dims(plan: FusionPlan) -> str:
    """The dimensions of the columns, as an argument of a reduction."""
    dims = tuple(range(-plan.column_axes, 0))
    return "-1" if len(dims) == 1 else str(dims)


def _allocation(plan: FusionPlan) -> list[str]:
    """Memory for what the caller gives none, in the order in which it lies at the first site."""
    names, device = (*_axis_names(plan), *column_names(plan)), _device(plan)
    lines = ["    if out is None:", "        out = ("]
    for position, output in enumerate(plan.outputs):
        along = output.along(plan.row_axes, plan.column_axes)
        sizes = [name if spans else "1" for name, spans in zip(names, along, strict=True)]
        order = plan.stored_order(position)
        shape = f"({', '.join(sizes[axis] for axis in order)})"
        text = f"torch.empty({shape}, dtype=torch.{output.dtype}, device={device})"
        if order != sorted(order):
            text += f".permute({', '.join(str(order.index(axis)) for axis in range(len(order)))})"
        lines += statement(f"{text},", 3)
    return [*lines, "        )"]


def _device(plan: FusionPlan) -> str:
    return f"{plan.inputs[0].name}.device"


def _launches(plan: FusionPlan, scheme: Scheme, wrap: str) -> list[str]:
    """The grid, what is shared between kernels, and one call each."""
    rows = " * ".join(_axis_names(plan))
    lines = [f"n_rows = {rows}"] if plan.row_axes > 1 else []
    over_rows = scheme in OVER_ROWS  # a sum of no rows is written too
    lines = [*lines, "if n_rows:"] if plan.row_axes > 1 else [f"if {rows}:"]
    if over_rows:
        lines[-1] = "if n_columns:"
    rows = "n_rows" if plan.row_axes > 1 else rows
    body = []
    if scheme == "registers":
        body.append("block_columns = triton.next_power_of_2(max(n_columns, 1))")
    if scheme == "split":
        share = "triton.cdiv(triton.cdiv(n_columns, splits), block_columns)"
        body += [
            f"split_columns = max({share}, 1) * block_columns",
            "n_splits = max(triton.cdiv(n_columns, split_columns), 1)",
            *(_tile(column_names(plan)) if plan.in_tiles else []),
        ]
        options = f"dtype=torch.{abi.PARTIAL_DTYPE}, device={_device(plan)}"
        body += [
            f"{name} = torch.empty(({rows}, n_splits), {options})"
            for name in abi.partial_names(plan)
        ]
    if over_rows:
        body += _shared_rows(plan, scheme, rows)
    text = [f"    {line}" for line in lines]
    text += [line for part in body for line in statement(part, 2)]
    for kernel in abi.kernels(plan, scheme):
        grid = f"({_grid(kernel, rows)})"
        if wrap:
            text.append(f"        grid = {grid}")
            text.append(f"        {wrap}({kernel.name})[grid](")
        else:
            text.append(f"        {kernel.name}[{grid}](")
        text += [f"            {argument}," for argument in _arguments(plan, kernel, rows)]
        text.append("        )")
    return text


def _tile(columns: list[str]) -> list[str]:
    """How many outer columns a tile takes, as `tile_rows` of the model has it."""
    outer, inner = " * ".join(columns[:-1]), columns[-1]
    square = "1 << (block_columns.bit_length() - 1) // 2"
    return [
        f"n_outer = {outer}",
        f"tile_rows = min({square}, triton.next_power_of_2(max(n_outer, 1)))",
        f"tile_rows = max(tile_rows, block_columns // triton.next_power_of_2(max({inner}, 1)), 1)",
    ]


def _shared_rows(plan: FusionPlan, scheme: Scheme, rows: str) -> list[str]:
    """How the rows are dealt out, and where the partial results of the shares go."""
    if scheme == "column_walk":
        return []
    options = f"dtype=torch.{abi.PARTIAL_DTYPE}, device={_device(plan)}"
    held = ["block_columns = triton.next_power_of_2(n_columns)"] if holds_rows(plan) else []
    return [
        *held,
        f"n_splits = max(min(splits, triton.cdiv({rows}, block_rows)), 1)",
        f"most_parts = {most_parts_per_warp(combined_numbers(plan))} * num_warps",
        "parts = min(triton.next_power_of_2(splits), most_parts)",
        *(
            f"{name} = torch.empty((n_splits, n_columns), {options})"
            for name in abi.row_partial_names(plan)
        ),
    ]


def _grid(kernel: abi.KernelAbi, rows: str) -> str:
    blocks, beside = f"triton.cdiv({rows}, block_rows)", "triton.cdiv(n_columns, block_columns)"
    texts: dict[abi.Grid, str] = {
        "rows": f"{blocks},",
        "rows and splits": f"{blocks}, n_splits",
        "shares and columns": f"n_splits, {beside}",
        "columns": f"{beside},",
        "parts": f"triton.cdiv(n_columns, {PART_COLUMNS}),",
        "blocks": f"{blocks} * {beside},",
    }
    return texts[kernel.grid]


def _arguments(plan: FusionPlan, kernel: abi.KernelAbi, rows: str) -> list[str]:
    outputs = {name: f"out[{place}]" for place, name in enumerate(abi.output_names(plan))}
    strides = {
        name: f"{outputs.get(tensor.name, tensor.name)}.stride({axis})"
        for tensor in strided(plan)
        for axis, name in tensor.strides
    }
    staged = "STAGES" in kernel.constants
    held = not staged and kernel.grid != "blocks"
    constants = {
        "BLOCK_ROWS": "block_rows",
        "BLOCK_COLUMNS": "block_columns",
        "EVEN_ROWS": f"{rows} % block_rows == 0",
        "EVEN_COLUMNS": f"n_columns {'==' if held else '%'} block_columns{'' if held else ' == 0'}",
        "ALIGNED_COLUMNS": f"n_columns % {abi.ALIGNED_COLUMNS} == 0",
        "REST_APART": "0 < n_columns % block_columns and n_columns // block_columns % unroll == 0",
        "STAGES": "num_stages",
        "UNROLL": "unroll",
        "SPLITS": "triton.next_power_of_2(n_splits)",
        "TILE_ROWS": "tile_rows",
        "PARTS": "parts",
        "PART_COLUMNS": str(PART_COLUMNS),
    }
    constants |= {name: f"columns_{axis}" for axis, name in abi.column_size_names(plan)}
    tables = {
        abi.rows_name(item): f"{item.name}.shape[{table_axis(item)}]"
        for item in plan.inputs
        if item.gathered is not None
    }
    known = outputs | strides | tables | {"n_rows": rows}
    found = [known.get(name, name) for name in (*kernel.tensors, *kernel.scalars)]
    found += [f"{name}={constants[name]}" for name in kernel.constants]
    return [*found, "num_warps=num_warps", *(["num_stages=num_stages"] if staged else [])]


UNIFORM = '''
def uniform(seed, shape):
    """What `tl.rand(seed, index)` gives: the first word of Philox-4x32-10, in [0, 1)."""
    with torch._C.DisableTorchFunction():
        word, seed = 0xFFFFFFFF, seed.reshape(())
        c0 = torch.arange(torch.Size(shape).numel(), device=seed.device) & word
        c1 = c2 = c3 = torch.zeros_like(c0)
        k0, k1 = seed & word, (seed >> 32) & word
        for _ in range(10):
            a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c2 = ((b >> 32) & word) ^ c1 ^ k0, ((a >> 32) & word) ^ c3 ^ k1
            c1, c3 = b & word, a & word
            k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
        folded = torch.where(c0 > 0x7FFFFFFF, word - c0, c0)
        return (folded.to(torch.float32) * 4.6566127342e-10).reshape(shape)

'''


GATHERED = '''
def gathered(table, index):
    """The row of a table for each index; all have one dimension per axis."""
    return table.flatten(0, -2)[index[..., 0]]

'''


def reference(plan: FusionPlan) -> str:
    """The same ops in PyTorch, with eager's own dtypes; random numbers are the kernel's."""
    parameters = ", ".join(item.name for item in plan.inputs)
    lines = [UNIFORM.rstrip("\n"), ""] if plan.drawn_values() else []
    lines += [GATHERED.rstrip("\n"), ""] if gathers(plan) else []
    lines += ["", *statement(f"def reference({parameters}):"), *docstring(REFERENCE_DOC, 1)]
    return "\n".join([*lines, *reference_body(plan)]) + "\n"


def reference_body(plan: FusionPlan) -> list[str]:
    """The statements of the reference; they return a tuple."""
    lines: list[str] = []
    drawn = plan.drawn_values()
    for item in plan.inputs:
        if item.gathered is not None:
            lines += statement(f"{item.name} = gathered({item.name}, {item.gathered})", 1)
    dtypes = {item.name: item.dtype for item in plan.inputs}
    axes = tuple(range(plan.row_axes))
    if drawn or any(op.over_rows for op in plan.ops):
        shapes = ", ".join(f"{item.name}.shape" for item in plan.inputs)
        lines += statement(f"sizes = torch.broadcast_shapes({shapes})", 1)
    for item in plan.inputs:
        if item.counts is not None:
            lines += statement(f"{item.name} = {_counted(item)}", 1)
    for op in plan.ops:
        if op.name in drawn:
            text = _drawn(plan, op)
        elif _may_be_too_large(plan, op, dtypes):
            text = f"{op.args[0]}.clamp(-448.0, 448.0).to(torch.{op.dtype})"
        elif op.over_rows:
            text = _over_rows(op, axes)
        else:
            text = typed(op, dtypes, column_dims(plan))
        lines += statement(f"{op.name} = {text}", 1)
        dtypes[op.name] = "float32" if op.name in drawn else op.dtype
    results = ", ".join(
        f"{o.value}.to(torch.{o.dtype})" if o.value in drawn and o.dtype != "float32" else o.value
        for o in plan.outputs
    )
    lines.append(f"    return {results}" + ("," if len(plan.outputs) == 1 else ""))
    return lines


def _counted(item: PlanInput) -> str:
    """What an input that counts holds, whatever is given for it."""
    assert item.counts is not None
    first, step = item.counts
    numbers = f"torch.arange({item.name}.numel(), device={item.name}.device)"
    scaled = numbers if step == 1 else f"({numbers} * {step})"
    shifted = f"({scaled} + {first})" if first else scaled
    return f"{shifted}.reshape({item.name}.shape)"


def _may_be_too_large(plan: FusionPlan, op: PlanOp, dtypes: Mapping[str, str]) -> bool:
    """Whether a cast must take what is too large for e4m3fn to its largest number itself."""
    made = op.dtype == "float8_e4m3fn" and dtypes[str(op.args[0])] != op.dtype
    return made and not is_bounded(plan, op.args[0], FLOAT8_MAX[op.dtype])


def _drawn(plan: FusionPlan, op: PlanOp) -> str:
    """Random numbers, which stay float32 where they are compared in a narrower type."""
    if op.op != RANDOM:
        return str(op.args[0])
    ones = ", ".join(["1"] * (plan.row_axes if op.space == "column" else plan.column_axes))
    shapes = {
        "tile": "sizes",
        "row": f"(*sizes[:{plan.row_axes}], {ones})",
        "column": f"({ones}, *sizes[{plan.row_axes}:])",
    }
    return f"uniform({op.args[0]}, {shapes[op.space]})"


def _over_rows(op: PlanOp, axes: tuple[int, ...]) -> str:
    """A reduction over all row axes, along which its operand may repeat."""
    operand = f"{op.args[0]}.expand(sizes)"
    text = f"{operand}.{op.op}({axes}, keepdim=True)"
    if op.op == "var":
        correction = op.attributes["correction"]
        text = f"{operand}.var({axes}, correction={correction}, keepdim=True)"
    return text


def typed(op: PlanOp, dtypes: dict[str, str], columns: str) -> str:
    """The expression, converted where PyTorch's promotion of tensors gives another dtype."""
    text = _torch_expression(op, columns)
    promoted = op.args[1:] if op.op == "where" else op.args
    operands = {dtypes[str(arg)] for arg in promoted if arg in dtypes}
    if spec_of(op.op).result != "promote" or operands == {op.dtype}:
        return text
    return f"({text}).to(torch.{op.dtype})"


def _torch_expression(op: PlanOp, columns: str) -> str:
    """One op; reductions run over the dimensions of the `columns`."""
    args = [torch_argument(arg) for arg in op.args]
    if op.op == "cast":
        return f"{args[0]}.to(torch.{op.dtype})"
    if op.op == "var":
        return f"{args[0]}.var({columns}, correction={op.attributes['correction']}, keepdim=True)"
    if op.op in ("maximum", "minimum") and any(_is_literal(arg) for arg in op.args):
        value = next(a for a in args if not _is_literal(a))
        bound = next(a for a in args if _is_literal(a))
        return f"torch.clamp({value}, {'min' if op.op == 'maximum' else 'max'}={bound})"
    if op.op == "fma":  # float64 holds the product of two narrower floats exactly
        wide = [text if _is_literal(text) else f"{text}.double()" for text in args]
        return f"({POINTWISE[op.op].torch.format(*wide)}).to(torch.{op.dtype})"
    table = REDUCTIONS if op.op in REDUCTIONS else POINTWISE
    text = table[op.op].torch.format(*args, columns=columns)
    return f"torch.{text}" if text.startswith(("maximum(", "minimum(")) else text


def torch_argument(arg: Arg) -> str:
    if isinstance(arg, str) and not _is_literal(arg):
        return arg
    number = literal_value(arg)
    if not math.isfinite(number):
        return f'float("{number}")'
    return f"({number!r})" if not isinstance(number, bool) and number < 0 else repr(number)


def _is_literal(arg: Arg) -> bool:
    """Whether an argument, or its text in PyTorch, is a number and no value of the program."""
    return (
        not isinstance(arg, str)
        or arg in NON_FINITE
        or not arg.isidentifier()
        or keyword.iskeyword(arg)
    )
