"""The calling convention of generated kernels: one for source, launch, rewrite and resources.

Parameters, in order: tensors read, tensors written, `n_rows`, `n_columns`, for shared work
`n_splits` and `split_columns` or `block_rows`, the sizes of the inner row axes (only where an input
needs them), where columns are taken in tiles `n_outer` of them, the strides of tensors that are not
dense, then the compile-time constants, among them the sizes of the inner column axes: every element
is divided by these. A kernel takes what belongs to its own tensors, where it has not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from advisor.codegen.strided import strided
from advisor.model.column_configs import partial_numbers
from advisor.model.configs import scheme_schedule
from advisor.model.gemm import operands
from advisor.model.launch import OVER_ROWS, SCANS, Scheme
from advisor.model.plan import FusionPlan, PlanInput
from advisor.model.scan import lane_axes
from advisor.model.walks import walk_of

BLOCKS = ("BLOCK_ROWS", "BLOCK_COLUMNS", "EVEN_ROWS", "EVEN_COLUMNS")
PARTS = ("PARTS", "PART_COLUMNS")
# Triton knows of an argument that is a multiple of this, and loads rows of such lengths 16 bytes a
# time; those of others element by element.
ALIGNED_COLUMNS = 16
PARTIAL_DTYPE = "float32"
# The partial results of a share of a scan's steps: what it does to a state, s' = a s + b.
LINEAR = ("partial_a", "partial_b")
# What programs are numbered by: blocks of rows, also with parts of a row; shares of the rows with
# blocks of columns; blocks of columns; columns whose partial results are combined; blocks of rows
# and columns, one after the other; blocks of lanes, also with shares of the steps.
Grid = Literal[
    "rows", "rows and splits", "shares and columns", "columns", "parts", "blocks",
    "lanes", "lanes and shares",
]  # fmt: skip


@dataclass(frozen=True)
class KernelAbi:
    """One kernel of a source: its name and its parameters by kind, each in order."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    scalars: tuple[str, ...]
    constants: tuple[str, ...]
    grid: Grid = "rows"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Pointer parameters."""
        return self.reads + self.writes


def _outer_axes(plan: FusionPlan) -> int:
    """The axes that a program's number is decomposed into: not steps, and not a depth."""
    return lane_axes(plan) if plan.stepped else plan.row_axes


def needs_axes(plan: FusionPlan) -> bool:
    """Whether a tensor is addressed along separate row axes, so that rows must be decomposed."""
    several = _outer_axes(plan)
    tensors = [t for t in strided(plan) if t.name not in operands(plan)]
    return several > 1 and any(any(t.along[:several]) for t in tensors)


def needs_column_axes(plan: FusionPlan) -> bool:
    """Whether a tensor is addressed along separate column axes."""
    return plan.column_axes > 1 and any(any(t.along[plan.row_axes :]) for t in strided(plan))


def size_names(plan: FusionPlan) -> tuple[tuple[int, str], ...]:
    """(axis, parameter name) of the row-axis sizes that the kernel takes: all but the outermost."""
    several = _outer_axes(plan)
    return tuple((axis, f"size_{axis}") for axis in range(1, several)) if needs_axes(plan) else ()


def column_size_names(plan: FusionPlan) -> tuple[tuple[int, str], ...]:
    """(axis, constant's name) of the sizes of the column axes, the outermost left out."""
    return (
        tuple((axis, f"COLUMNS_{axis}") for axis in range(1, plan.column_axes))
        if needs_column_axes(plan)
        else ()
    )


def input_names(plan: FusionPlan) -> tuple[str, ...]:
    """The tensors that are read."""
    return tuple(item.name for item in plan.inputs)


def output_names(plan: FusionPlan) -> tuple[str, ...]:
    """The tensors that the caller gets."""
    return tuple(f"out{position}" for position in range(len(plan.outputs)))


def partial_names(plan: FusionPlan) -> tuple[str, ...]:
    """The partial results of a split row: one tensor a state of a fold."""
    count = sum(len(fold.states) for fold in scheme_schedule(plan, "split").passes[0].folds)
    return tuple(f"partial{number}" for number in range(count))


def row_partial_names(plan: FusionPlan) -> tuple[str, ...]:
    """The partial results of shares of the rows: one tensor a number kept for every column."""
    return tuple(f"partial{number}" for number in range(partial_numbers(plan)))


def kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels of a scheme, in the order of their launches."""
    if scheme in SCANS:
        return _scan_kernels(plan, scheme)
    if scheme == "gemm":
        return (_gemm_kernel(plan),)
    if scheme in OVER_ROWS:
        return _column_kernels(plan, scheme)
    name = f"row_program_{plan.id[:8]}"
    reads, writes = tuple(item.name for item in plan.inputs), output_names(plan)
    shape = ("n_rows", "n_columns")
    rest = tuple(name for _, name in size_names(plan))
    blocks = (*BLOCKS, *(name for _, name in column_size_names(plan)))
    own = _strides(plan, (*reads, *writes))
    if scheme == "registers":
        return (KernelAbi(name, reads, writes, (*shape, *rest, *own), blocks),)
    if scheme == "blocks":
        scalars = (*shape, *rest, *own)
        return (KernelAbi(f"{name}_blocks", reads, writes, scalars, blocks, "blocks"),)
    streamed = (*blocks, "ALIGNED_COLUMNS", "REST_APART", "STAGES", "UNROLL")
    if scheme != "split":
        scalars = (*shape, *rest, *own)
        return (KernelAbi(f"{name}_{scheme}", reads, writes, scalars, streamed),)
    partials = partial_names(plan)
    scalars = (*shape, "n_splits", "split_columns", *rest)
    first = (*scalars, *_strides(plan, reads))
    tiles = any(output.space == "tile" for output in plan.outputs)
    outer, tall = (("n_outer",), ("TILE_ROWS",)) if plan.in_tiles else ((), ())
    return (
        KernelAbi(f"{name}_partials", reads, partials, first, streamed, "rows and splits"),
        KernelAbi(
            f"{name}_finish",
            reads + partials,
            writes,
            (*scalars, *outer, *own),
            (*streamed, "SPLITS", *tall),
            "rows and splits" if tiles else "rows",
        ),
    )


def _scan_kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels of a scan: one, or one that says what each share of the steps does to a state."""
    name, reads, writes = f"scan_{plan.id[:8]}", input_names(plan), output_names(plan)
    shape = ("n_lanes", "n_steps", "n_columns")
    sizes = tuple(size for _, size in size_names(plan))

    def rest(names: tuple[str, ...]) -> tuple[str, ...]:
        offsets = (f"{name}_offset" for name in names if name in reads)
        return (*sizes, *offsets, *_strides(plan, names))

    constants = (*BLOCKS, "STAGES", "UNROLL", "EVEN_STEPS")
    if scheme == "scan_steps":
        return (
            KernelAbi(name, reads, writes, (*shape, *rest(reads + writes)), constants, "lanes"),
        )
    if scheme == "scan_blocks":
        scalars, held = (*shape, *rest(reads + writes)), (*BLOCKS, "STAGES", "BLOCK_STEPS")
        return (KernelAbi(f"{name}_blocks", reads, writes, scalars, held, "lanes"),)
    shared = (*shape, "n_splits", "split_steps")
    first, all_ = (*shared, *rest(reads)), (*shared, *rest(reads + writes))
    return (
        KernelAbi(f"{name}_shares", reads, LINEAR, first, constants, "lanes and shares"),
        KernelAbi(f"{name}_finish", reads + LINEAR, writes, all_, constants, "lanes and shares"),
    )


def _gemm_kernel(plan: FusionPlan) -> KernelAbi:
    """The kernel of a product with what follows it."""
    reads, writes = input_names(plan), output_names(plan)
    sizes = tuple(size for _, size in size_names(plan))
    scalars = ("n_rows", "n_columns", "n_depth", *sizes, *_strides(plan, reads + writes))
    constants = (*BLOCKS, "BLOCK_STEPS", "EVEN_STEPS", "GROUP_ROWS", "STAGES")
    return KernelAbi(f"gemm_{plan.id[:8]}", reads, writes, scalars, constants, "blocks")


def _column_kernels(plan: FusionPlan, scheme: Scheme) -> tuple[KernelAbi, ...]:
    """The kernels that reduce over the rows: one, or one for the shares and one for the rest."""
    name = f"row_program_{plan.id[:8]}_{scheme}"
    walk, shape = walk_of(plan), ("n_rows", "n_columns")
    inner = tuple(name for _, name in column_size_names(plan))
    streamed = (*BLOCKS, *inner, "STAGES")
    sizes = tuple(name for _, name in size_names(plan))
    late = plan.late_values()
    rest = [
        name
        for name, output in zip(output_names(plan), plan.outputs, strict=True)
        if output.value not in late
    ]
    ends = [name for name in output_names(plan) if name not in rest]
    if scheme == "column_walk":
        read, writes = _reads(plan, walk.walked | walk.ended), output_names(plan)
        scalars = (*shape, *sizes, *_strides(plan, (*read, *writes)))
        return (KernelAbi(name, read, writes, scalars, streamed, "columns"),)
    partials, shared = row_partial_names(plan), (*shape, "n_splits", "block_rows")
    read, again = _reads(plan, walk.walked), _reads(plan, walk.ended)
    return (
        KernelAbi(
            f"{name}_shares",
            read,
            (*rest, *partials),
            (*shape, *sizes, *_strides(plan, (*read, *rest))),
            streamed,
            "shares and columns",
        ),
        KernelAbi(
            f"{name}_combine",
            (*again, *partials),
            tuple(ends),
            (*shared, *_strides(plan, (*again, *ends))),
            (*PARTS, *inner),
            "parts",
        ),
    )


def _reads(plan: FusionPlan, names: frozenset[str]) -> tuple[str, ...]:
    """The inputs with these names, in order."""
    return tuple(item.name for item in plan.inputs if item.name in names)


def _strides(plan: FusionPlan, names: Sequence[str]) -> tuple[str, ...]:
    """The parameters of the strides of these tensors, and of how many rows tables have."""
    found = [name for t in strided(plan) if t.name in names for _, name in t.strides]
    return (*found, *(rows_name(i) for i in plan.inputs if i.gathered and i.name in names))


def rows_name(item: PlanInput) -> str:
    """The parameter that says how many rows a table has."""
    return f"{item.name}_rows"
