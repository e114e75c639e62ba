"""Sectors of memory that the programs of a plan touch where they read or write short runs.

Memory moves whole sectors. A program whose elements fill them moves what it needs; one that has a
single element of each moves up to sixteen times as much through the L2 cache, where others find the
rest. Every program counts on its own, also for what several read alike: if not the L2, a request in
pieces costs the L1 a clock for every line (NVIDIA, Nsight Compute, "Memory Tables"). What lies
without gaps, in whatever space, is taken to fill its sectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from advisor.model.gathers import elements_read, gathers
from advisor.model.launch import (
    OVER_ROWS,
    PART_COLUMNS,
    LaunchConfig,
    next_power_of_two,
    row_splits_of,
    splits_of,
    steps_per_split,
    tile_rows,
)
from advisor.model.optable import item_bytes
from advisor.model.plan import FusionPlan, PlanOutput, Site
from advisor.model.site_work import site_bytes
from advisor.model.walks import walk_of

# What the memory of every GPU in the table moves at least.
SECTOR_BYTES = 32
# Steps of a lane whose sectors are read once, where one step is taken after the other.
CACHED_STEPS = 8
# Columns of one request to memory: a warp has one a thread, if no wider run is known of.
REQUEST_COLUMNS = 32


@dataclass(frozen=True)
class _Share:
    """How far along each axis a program reaches: with one block, and in all."""

    block: tuple[int, ...]
    whole: tuple[int, ...]


@dataclass(frozen=True)
class _Access:
    """A tensor with strides, bytes an element; whether it varies along each axis.

    `output` is None of what is read. What is `late` is the second kernel's of `column_sums`.
    """

    width: int
    along: tuple[bool, ...]
    strides: Sequence[int]
    output: PlanOutput | None
    late: bool


def sector_bytes(plan: FusionPlan, site: Site, config: LaunchConfig) -> int:
    """Bytes of all sectors that the programs of a launch touch, each program on its own.

    More than `site_bytes` where runs are short or begin anywhere: what one leaves of a sector
    others take, but from L2.
    """
    total = site_bytes(plan, site)
    if 0 in site.sizes:
        return total
    for position, item in enumerate(plan.inputs):
        if item.gathered is not None:  # a row begins anywhere in the table
            row = site.columns * item_bytes(item.dtype)
            rows = elements_read(plan, site, position) // max(site.columns, 1)
            total += rows * _beside(row, item_bytes(item.dtype))
    first = _share(plan, site, config)
    second = _second_share(site) if config.scheme == "column_sums" else first
    for access in _accesses(plan, site):
        total += _extra(plan, site, config, access, second if access.late else first)
    return total


def unfilled(plan: FusionPlan, site: Site) -> Callable[[LaunchConfig], float]:
    """What share more than is needed the programs of a launch touch."""
    if not gathers(plan) and not any(_accesses(plan, site)):
        return lambda _: 0.0
    needed, known = max(site_bytes(plan, site), 1), dict[tuple[object, ...], float]()

    def share(config: LaunchConfig) -> float:
        key = (config.scheme, config.block_rows, config.block_columns, config.splits)
        if key not in known:
            known[key] = max(sector_bytes(plan, site, config) / needed - 1, 0.0)
        return known[key]

    return share


def writes_along_rows(plan: FusionPlan, site: Site) -> bool:
    """Whether a tile is written without gaps along the last row axis, and not along the columns."""
    last = plan.row_axes - 1
    return any(
        output.strided and output.space == "tile" and strides[last] == 1 < site.row_sizes[last]
        for output, strides in zip(plan.outputs, site.output_strides, strict=False)
        if not output.unit_stride
    )


# --- what a program has ---------------------------------------------------------------------------


def _share(plan: FusionPlan, site: Site, config: LaunchConfig) -> _Share:
    """What a program has, of two kernels one of the first."""
    if plan.states:
        return _scan_share(site, config)
    rows, width = config.block_rows, config.block_columns or site.columns
    columns = site.columns
    if config.scheme == "split":
        columns = -(-columns // splits_of(config, columns))
    elif config.scheme in ("blocks", *OVER_ROWS):
        columns = width
    if config.scheme in OVER_ROWS:
        rows = -(-site.rows // row_splits_of(config, site.rows))
    reached = _reach(site.column_axes, width)
    if config.scheme == "split" and plan.in_tiles:
        *_, outer, inner = site.column_axes
        tall = tile_rows(width, math.prod(site.column_axes[:-1]), inner)
        reached = (*reached[:-2], min(tall, outer), min(width // tall, inner))
    return _Share(
        (*_reach(site.row_sizes, config.block_rows), *reached),
        (*_reach(site.row_sizes, rows), *_reach(site.column_axes, columns)),
    )


def _scan_share(site: Site, config: LaunchConfig) -> _Share:
    """What a program of a scan has: the row axes are lanes, the last one steps."""
    lanes, steps = _reach(site.row_sizes[:-1], config.block_rows), site.row_sizes[-1]
    block = min(steps, config.block_steps or CACHED_STEPS)
    own = steps_per_split(config, steps)
    return _Share((*lanes, block, *site.column_axes), (*lanes, own, *site.column_axes))


def _second_share(site: Site) -> _Share:
    """What a program of the second kernel of `column_sums` has."""
    reached = (*(1 for _ in site.row_sizes), *_reach(site.column_axes, PART_COLUMNS))
    return _Share(reached, (*site.row_sizes, *reached[len(site.row_sizes) :]))


def _reach(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """How far `count` neighbours reach along each axis, the innermost filled first."""
    found: list[int] = []
    for size in reversed(sizes):
        found.insert(0, min(size, count))
        count = -(-count // max(size, 1))
    return tuple(found)


# --- what it touches of a tensor ------------------------------------------------------------------


def _accesses(plan: FusionPlan, site: Site) -> Iterator[_Access]:
    """The tensors that are read and written with strides."""
    ended = walk_of(plan).ended if plan.late_values() else frozenset()
    for item, strides in zip(plan.inputs, site.input_strides, strict=True):
        if item.gathered is None and item.counts is None and not item.dense:
            late = item.name in ended
            yield _Access(item_bytes(item.dtype), plan.along(item), strides, None, late)
    for output, strides in zip(plan.outputs, site.output_strides, strict=False):
        if output.strided:
            along = output.along(plan.row_axes, plan.column_axes)
            late = output.space == "column"
            yield _Access(item_bytes(output.dtype), along, strides, output, late)


def _extra(
    plan: FusionPlan, site: Site, config: LaunchConfig, access: _Access, share: _Share
) -> int:
    """Bytes of its sectors beyond its own, for each program that reads it."""
    block = share.block
    if _in_requests(plan, site, config, access):
        reached = _reach(site.column_axes, min(math.prod(block[plan.row_axes :]), REQUEST_COLUMNS))
        block = (*block[: plan.row_axes], *reached)
    axes = zip(access.strides, block, site.sizes, access.along, strict=True)
    held = [(stride, most, size) for stride, most, size, spans in axes if spans and stride]
    held = [axis for axis in held if axis[2] > 1]
    if not held or (not any(access.along[plan.row_axes :]) and _in_order(held)):
        return 0
    width, elements = access.width, math.prod(size for _, _, size in held)
    run = _run(held) * width
    touched = elements * width * (run + _beside(run, width)) // run
    near = min((stride for stride, most, _ in held if most > 1), default=SECTOR_BYTES)
    if run == width and near * width < SECTOR_BYTES:  # every second element, say
        touched = elements * near * width
    return (touched - elements * width) * _readers(site, access, share)


def _in_requests(plan: FusionPlan, site: Site, config: LaunchConfig, access: _Access) -> bool:
    """Whether each request is on its own: memory goes on along a column axis outside the innermost.

    Not for a `turned` result, whose blocks have an axis for each of both. What a program reads
    again of a sector is in L1, but takes as long as from L2.
    """
    sizes = zip(access.strides, access.along, site.sizes, strict=True)
    axes = [(s, axis) for axis, (s, spans, size) in enumerate(sizes) if spans and s and size > 1]
    if plan.states or not axes:
        return False
    nearest, innermost = min(axes)[1], max(axis for _, axis in axes)
    if nearest < plan.row_axes or nearest == innermost:
        return False
    block = config.block_columns or next_power_of_two(site.columns)
    whole = plan.column_axes == 2 and block % site.column_axes[-1] == 0
    turned = access.output is not None and access.output.turned
    return not (turned and (config.scheme == "split" or whole))


def _in_order(axes: list[tuple[int, int, int]]) -> bool:
    """Whether values lie in the order of their axes without gaps; axes as those of `_run`."""
    step = 1
    for stride, _, size in reversed(axes):
        if stride != step:
            return False
        step *= size
    return True


def _readers(site: Site, access: _Access, share: _Share) -> int:
    """How many programs read the same elements; what is written, one writes."""
    if access.output is not None:
        return 1
    axes = zip(site.sizes, share.whole, access.along, strict=True)
    return math.prod(-(-size // max(whole, 1)) for size, whole, spans in axes if not spans)


def _beside(run: int, width: int) -> int:
    """Bytes of the sectors of a run that are not its own, on average; 0 where it fills sectors."""
    return 0 if run % SECTOR_BYTES == 0 else SECTOR_BYTES - width


def _run(axes: list[tuple[int, int, int]]) -> int:
    """Neighbouring elements that one program takes; axes as (stride, how far it goes, size)."""
    run = 1
    for stride, most, size in sorted(axes):
        if stride != run:
            break
        run *= most
        if most < size:
            break
    return run
