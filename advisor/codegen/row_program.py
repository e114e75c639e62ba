"""Row programs as Triton source, one file a plan and scheme, sizes at run time.

The text is written from the plan alone: load what is read, compute the ops in order, store what is
needed outside. No pattern has a name here; a norm, a softmax and a program nobody has seen take the
same path. The schemes differ in what stays where: whole rows in registers (here), or streamed in
blocks of columns (`streamed`), or walked over for reductions over the rows (`column_sums`); without
reductions, blocks of rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.codegen import abi, bfloat16, column_sums, float8, folds, gemm, scan, scan_blocks
from advisor.codegen.column_sums import column_kernels
from advisor.codegen.exponentials import pointwise_helpers
from advisor.codegen.expressions import HELPERS, TRITON_DTYPES, reducer
from advisor.codegen.layout import INDENT, wrapped
from advisor.codegen.streamed import PROGRAM, indices, kernel_text, streamed_kernels
from advisor.codegen.values import Values
from advisor.errors import IllegalFusionError
from advisor.model.configs import scheme_schedule, schemes_of
from advisor.model.gathers import table_axis
from advisor.model.launch import OVER_ROWS, SCANS, Scheme
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, PlanOp
from advisor.model.site_work import computed, equation
from advisor.model.spaces import space_of

# Elements of a program from which on vectors wait in memory: each would take as many registers as
# the row, and keep other programs from the multiprocessor. In smaller ones they come with the row.
TILE, LARGE_TILE = "BLOCK_ROWS * BLOCK_COLUMNS", 4096
LAST = "# Beside a large tile vectors would take the registers of other programs: they come last."
IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"
HELPER_TEXT = HELPERS | folds.HELPERS | column_sums.HELPERS | float8.HELPERS | scan_blocks.HELPERS
HELPER_TEXT |= gemm.HELPERS | bfloat16.HELPERS


@dataclass(frozen=True)
class KernelSource:
    """A self-contained module; `launcher` and `reference` take tensors, `kernels` are device code.

    The kernels stand in the order in which the launcher calls them.
    """

    text: str
    kernels: tuple[str, ...]
    scheme: Scheme = "registers"
    launcher: str = "fused"
    reference: str = "reference"


def joined(parts: Iterable[str]) -> str:
    """The text of a module from its parts."""
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def check_renderable(plan: FusionPlan, scheme: Scheme) -> None:
    """Raise `IllegalFusionError` for what no kernel of a scheme can be written of."""
    plan.check()
    for dtype in (*(i.dtype for i in plan.inputs), *(op.dtype for op in plan.ops)):
        if dtype not in TRITON_DTYPES:
            raise IllegalFusionError(f"no kernel is generated for {dtype}")
    if scheme not in schemes_of(plan):
        raise IllegalFusionError(f"its reductions have no {scheme} form")


def device_code(plan: FusionPlan, scheme: Scheme) -> list[str]:
    """The kernels of a scheme, in the order of their launches."""
    if scheme == "registers":
        return [_held_kernel(plan)]
    if scheme == "blocks":
        return [_block_kernel(plan)]
    if scheme in SCANS:
        return scan.scan_kernels(plan, scheme, printable(plan.title or "Scan"))
    if scheme == "gemm":
        return gemm.gemm_kernels(plan, printable(plan.title or "Matrix product"))
    if scheme in OVER_ROWS:
        return column_kernels(plan, scheme, printable(plan.title or "Row program"))
    return streamed_kernels(plan, scheme, printable(plan.title or "Row program"))


def helper_names(plan: FusionPlan, scheme: Scheme) -> list[str]:
    """The device functions that the kernels call, sorted: the keys of `HELPER_TEXT`."""
    converted = float8.helper_names(plan) | bfloat16.helper_names(plan)
    if scheme in SCANS:
        return sorted(scan.scan_helper_names(plan, scheme) | converted)
    if scheme == "gemm":
        return sorted(gemm.gemm_helper_names(plan) | converted)
    used = {h for op in plan.ops if (h := _reducer(op, scheme)) is not None}
    used |= pointwise_helpers(plan) | converted
    if scheme in OVER_ROWS:
        used |= column_sums.helper_names(plan, scheme)
    elif scheme not in ("registers", "blocks"):
        side = Values(plan).side_by_side()
        passes = scheme_schedule(plan, scheme).passes
        used |= {h for one in passes for fold in one.folds for h in folds.helpers(fold, side)}
    return sorted(used)


def _reducer(op: PlanOp, scheme: Scheme) -> str | None:
    """The device function that a reduction of whole rows combines by."""
    held = scheme == "registers" or (scheme in OVER_ROWS and not op.over_rows)
    return reducer(op.op) if held else None


def _held_kernel(plan: FusionPlan) -> str:
    """Whole rows in registers, every op once."""
    (kernel,) = abi.kernels(plan, "registers")
    title = printable(plan.title or "Row program")
    text = f"{title}; one program computes BLOCK_ROWS whole rows."
    return kernel_text(kernel, text, held_body(plan))


def held_body(plan: FusionPlan, program: str = PROGRAM, *, large: bool = True) -> list[str]:
    """The statements of the program with a number that computes whole rows, `large` ones too."""
    values = Values(plan)
    waiting = _read_after_reductions(plan) if large else {}
    body = [
        *indices(columns=values.columns(""), program=program),
        *values.axes(),
        *values.column_axes(),
        *(values.load(item) for item in plan.inputs if item.name not in waiting),
    ]
    if waiting:
        loads = (values.load(item) for item in plan.inputs if item.name in waiting)
        body += [LAST, f"if {TILE} < {LARGE_TILE}:", *(INDENT + load for load in loads)]
    for op in plan.ops:
        for name in (name for name, reader in waiting.items() if reader == op.name):
            load = values.load(values.inputs[name])
            body += [f"if {TILE} >= {LARGE_TILE}:", INDENT + load]
        body.append(values.assign(op))
    places = range(len(plan.outputs))
    return body + [line for position in places for line in values.stores(position, "")]


def _read_after_reductions(plan: FusionPlan) -> dict[str, str]:
    """The vectors along the columns that nothing reads before a reduction, and who reads them."""
    vectors = {i.name for i in plan.inputs if space_of(i.spans) == "column" and i.counts is None}
    found: dict[str, str] = {}
    reduced = False
    for op in plan.ops:
        for name in (arg for arg in op.args if arg in vectors):
            vectors.remove(name)
            if reduced:
                found[str(name)] = op.name
        reduced |= spec_of(op.op).kind == "reduction"
    return found


def _block_kernel(plan: FusionPlan) -> str:
    """A block of rows and columns, every op once; rows without columns beside the first one."""
    (kernel,) = abi.kernels(plan, "blocks")
    title = printable(plan.title or "Pointwise program")
    text = f"{title}; one program computes a block of it."
    return kernel_text(kernel, text, block_body(plan))


def block_body(plan: FusionPlan, program: str = PROGRAM) -> list[str]:
    """The statements of the program with a number that computes a block."""
    values = Values(plan)
    body = [
        "beside = tl.cdiv(n_columns, BLOCK_COLUMNS)",
        f"block = {program} % beside",
        f"row_block = {program} // beside",
        "rows = row_block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]",
        *values.columns("block * BLOCK_COLUMNS"),
        "row_ok = (rows < n_rows) | EVEN_ROWS",
        "column_ok = (columns < n_columns) | EVEN_COLUMNS",
        "row_start = rows.to(tl.int64) * n_columns",
        *values.axes(),
        *values.column_axes("block * BLOCK_COLUMNS"),
        *(values.load(item) for item in plan.inputs),
        *(values.assign(op) for op in plan.ops),
    ]
    for position, output in enumerate(plan.outputs):
        alone = "row_ok & (block == 0)" if output.space == "row" else "row_ok"
        body.append(values.store(position, alone))
    return body


# --- prose ----------------------------------------------------------------------------------------


def header(plan: FusionPlan, notes: Sequence[str] = ()) -> str:
    """The docstring of a module: what is computed from what; `notes` are whole lines of it."""
    lines = [*wrapped('"""' + printable(plan.title or "Row program")), ""]
    lines += gemm.product_lines(plan)
    lines += [f"    {op.name} = {equation(op)}" for op in plan.ops]
    lines += [
        f"    {state.name} = {state.value} of the step before, at first {state.initial}"
        for state in plan.states
    ]
    axes = _axes_text(plan)
    lines += ["", f"Axes: {', '.join(axes)}."]
    for item in plan.inputs:
        layout = "" if item.dense else ", strided"
        layout += ", the last step first" if item.reverse else ""
        layout += computed(item)
        shape = [name if span else "1" for name, span in zip(axes, plan.along(item), strict=True)]
        if item.gathered is not None:
            shape = ["1"] * plan.row_axes + shape[-1:]
            shape[table_axis(item)] = "rows of the table"
        lines.append(f"{item.name}: [{', '.join(shape)}] {item.dtype}{layout}")
    for position, output in enumerate(plan.outputs):
        text = {"tile": "[rows, columns]", "row": "[rows]"}.get(output.space, "[columns]")
        text += " of the last step" if output.last else ""
        layout = ", strided" if output.strided else ""
        lines.append(f"out{position} = {output.value}: {text} {output.dtype}{layout}")
    lines += [
        *notes,
        "",
        f"Generated by fusion-advisor from plan {plan.id}: the same plan gives the same bytes.",
        '"""',
        "",
    ]
    return "\n".join(lines)


def printable(text: str) -> str:
    """Free text made safe inside a docstring: printable, one line, no quotes or backslashes."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')[:200]


def _axes_text(plan: FusionPlan) -> list[str]:
    """The names of the axes; several column axes have numbers too."""
    names = [f"rows {axis}" for axis in range(plan.row_axes)]
    if plan.product is not None:
        names[-1] = "depth"
    if plan.states:
        names = [*(f"lanes {axis}" for axis in range(plan.row_axes - 1)), "steps"]
    if plan.column_axes == 1:
        return [*names, "columns"]
    return [*names, *(f"columns {axis}" for axis in range(plan.column_axes))]
