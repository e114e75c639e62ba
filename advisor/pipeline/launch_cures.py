"""Other launches of anybody's Triton kernel: what spills or cannot fill a GPU, launched better.

Candidates change as little as they can, one thing at a time: warps, a bound on registers, stages,
the size of a tile. They are compiled for the GPU; what is better there is the cure, and still has
to be timed by whoever has the GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from advisor.hardware.gpu import Gpu
from advisor.model.applied import KernelResources
from advisor.model.dtypes import TRITON_ITEM_BYTES
from advisor.model.overfusion import Cause
from advisor.model.resources import LaunchCure
from advisor.pipeline.sizing import TOLERATED_SPILL_BYTES, spilled_bytes, spills
from advisor.store.files import read_bounded
from advisor.verify.kernel_file import MAX_FILE_BYTES
from advisor.verify.kernel_tiles import Tile, has_products, tiles_of
from advisor.verify.resources import ResourceRequest, resources_of

MOST_WARPS, MOST_TILE = 32, 16_384
# Above half of what a thread can have, the assembler has little room left to reorder loads.
ROOMY_REGISTERS = 128
# More resident warps than this hide no more latency of memory; fewer than this are few.
ENOUGH, FEW = 0.5, 0.25
BOUNDS = (128, 96, 80, 64, 48, 40, 32)
LEAST_OF_PRODUCTS = 16


@dataclass(frozen=True)
class Relaunch:
    """A launch of the same kernel; `tiles` are sizes that changed, (old, new), by name."""

    request: ResourceRequest
    words: str
    tiles: Mapping[str, tuple[int, int]]
    of_product: bool = False

    @property
    def shrinks(self) -> float:
        """How many times smaller a tile is than it was."""
        return math.prod(old / new for old, new in self.tiles.values())


def relaunches(
    request: ResourceRequest, cause: Cause, known: Mapping[str, int] | None = None
) -> list[Relaunch]:
    """Launches that may cure a cause, the least change first; none for causes of other kinds.

    `known` are run-time sizes by argument: a tile that covers one may shrink to it.
    """
    source = read_bounded(Path(request.source), MAX_FILE_BYTES).decode()
    tiles = tiles_of(source, request.kernel)
    products = has_products(source, request.kernel)
    ways = {
        "register_spill": (_unbound, _more_warps, _smaller),
        "gemm_epilogue": (_more_warps, _smaller),
        "occupancy_registers": (_bound, _smaller, _more_warps),
        "occupancy_shared_memory": (_fewer_stages, _smaller),
        "stale_config": (_fitting,),
        "uncoalesced_access": (_even,),
        "lost_vectorisation": (_larger,),
        "too_few_programs": (_smaller,),
    }
    found = [one for way in ways.get(cause, ()) for one in way(request, tiles, known or {})]
    if products:
        found = [
            dataclasses.replace(one, of_product=True) for one in found if _is_product(one, tiles)
        ]
    return list({(one.request.label, one.words): one for one in found}.values())


def cause_of(row: KernelResources) -> Cause | None:
    """What the binary alone says is wrong with a launch; None where nothing is sure to cost."""
    if spilled_bytes(row) > TOLERATED_SPILL_BYTES:
        return "register_spill"
    if row.occupancy == 0 and row.limiter == "shared_memory":
        return "occupancy_shared_memory"
    return None


def proved(
    requests: Sequence[tuple[ResourceRequest, Cause, Mapping[str, int]]],
    gpu: Gpu,
    *,
    timeout_s: float = 60.0,
    cache: Path | None = None,
    processes: int | None = None,
) -> list[list[tuple[Relaunch, KernelResources]]]:
    """For every request, the launches that are free of its cause on a GPU, likeliest first.

    All are compiled together.
    """
    asked = [relaunches(request, cause, known) for request, cause, known in requests]
    flat = [one.request for group in asked for one in group]
    rows = iter(resources_of(flat, [gpu], timeout_s=timeout_s, cache=cache, processes=processes))
    found = []
    for (_, cause, _), group in zip(requests, asked, strict=True):
        sized = [(one, next(rows)[0]) for one in group]
        ranked = [(_rank(one, row, cause), one, row) for one, row in sized if not spills(row)]
        ranked.sort(key=lambda item: item[0])
        found.append([(one, row) for _, one, row in ranked])
    return found


def cures_of(
    requests: Sequence[ResourceRequest],
    rows: Sequence[Sequence[KernelResources]],
    gpus: Sequence[Gpu],
    *,
    timeout_s: float = 60.0,
    cache: Path | None = None,
) -> tuple[LaunchCure, ...]:
    """For every kernel of a file whose launches are all bad on a GPU, one that is not.

    `rows` holds what each request needs on each GPU.
    """
    cures = []
    for place, gpu in enumerate(gpus):
        sized = [
            (r, row[place], cause_of(row[place])) for r, row in zip(requests, rows, strict=True)
        ]
        # A launch that does not compile is no way out for one that spills.
        fine = {r.kernel for r, row, cause in sized if cause is None and row.error is None}
        bad = [(r, cause, row) for r, row, cause in sized if cause and r.kernel not in fine]
        asked = [(request, cause, dict[str, int]()) for request, cause, _ in bad]
        found = proved(asked, gpu, timeout_s=timeout_s, cache=cache)
        for (request, cause, row), launches in zip(bad, found, strict=True):
            cure = LaunchCure(
                kernel=request.kernel, gpu=gpu.key, cause=cause, before=row,
                tried=len(relaunches(request, cause)),
            )  # fmt: skip
            if launches:
                best, after = launches[0]
                cure = replace(cure, change=_change(best), after=after)
            cures.append(cure)
    return tuple(cures)


def _rank(one: Relaunch, row: KernelResources, cause: Cause) -> tuple[float, ...]:
    """Orders launches that spill nothing; equal ones stay in the order of least change.

    Matrix products live on few warps and many registers: theirs keep their tiles large.
    """
    held = row.occupancy or 0.0
    if cause in ("occupancy_registers", "occupancy_shared_memory"):
        return (-min(held, FEW if one.of_product else ENOUGH), one.shrinks)
    if one.of_product:
        return (one.shrinks,)
    cramped = (row.registers or 0) > ROOMY_REGISTERS and held < ENOUGH
    return (float(cramped), float(held < FEW))


# --- one thing changed ----------------------------------------------------------------------------

Known = Mapping[str, int]
Tiles = Mapping[str, Tile]


def _more_warps(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    warps = 2 * request.num_warps
    while warps <= MOST_WARPS:
        yield Relaunch(replace(request, num_warps=warps, config=""), f"{warps} warps", {})
        warps *= 2


def _unbound(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    if request.max_registers is not None:
        free = replace(request, max_registers=None, config="")
        yield Relaunch(free, "no bound on registers", {})


def _bound(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    for most in BOUNDS:
        if most < (request.max_registers or 256):
            bound = replace(request, max_registers=most, config="")
            yield Relaunch(bound, f"at most {most} registers a thread", {})


def _fewer_stages(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    for stages in sorted({2, 3, 4, request.num_stages // 2} & set(range(1, request.num_stages))):
        fewer = replace(request, num_stages=stages, config="")
        yield Relaunch(fewer, f"{stages} stages", {})


def _smaller(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    for tile in tiles.values():
        old = _size(request, tile)
        # What only covers a size would no longer do so.
        if old is None or not (tile.axes or tile.walked):
            continue
        for parts in (2, 4, 8):
            if old // parts >= 1:
                yield _with_tiles(request, {tile.name: old // parts})


def _larger(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    """Tiles of which every thread can load 16 bytes at once, those next to that size first."""
    items = [
        TRITON_ITEM_BYTES.get(kind.lstrip("*"), 4)
        for kind in request.signature.values()
        if "*" in kind
    ]
    wide = 16 // min(items, default=4) * 32 * request.num_warps
    for tile in tiles.values():
        old = _size(request, tile)
        if old is None or not tile.axes:
            continue
        sizes = [old * times for times in (2, 4, 8, 16, 32) if old * times <= MOST_TILE]
        for size in sorted(sizes, key=lambda size: abs(math.log2(size / wide))):
            yield _with_tiles(request, {tile.name: size})


def _fitting(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    """Tiles as large as what they cover, with as many warps as they then need."""
    for tile in tiles.values():
        old, size = _size(request, tile), known.get(tile.covers or "")
        if old is None or size is None or tile.axes:
            continue
        new = 1 << max(size - 1, 1).bit_length()
        if new >= old:
            continue
        for warps in (1, 2, 4, 8, 16):
            if 4 <= new // (32 * warps) <= 32:
                fewer = replace(request, num_warps=warps)
                yield _with_tiles(fewer, {tile.name: new}, f", {warps} warps")


def _even(request: ResourceRequest, tiles: Tiles, known: Known) -> Iterator[Relaunch]:
    """Two axes of a tile alike, so that rows and columns both fill sectors of memory."""
    sizes = {t.name: _size(request, t) for t in tiles.values() if t.axes}
    if len(sizes) != 2 or None in sizes.values():
        return
    total = 1
    for size in sizes.values():
        total *= size or 1
    for elements in (total, total // 2, total // 4, 2 * total):
        half = (elements.bit_length() - 1) // 2
        if half >= 4:
            first, second = sizes
            yield _with_tiles(request, {first: 1 << half, second: elements >> half})


def _with_tiles(request: ResourceRequest, sizes: Mapping[str, int], more: str = "") -> Relaunch:
    constants = {**request.constexprs, **sizes}
    words = ", ".join(f"{name}={size}" for name, size in sizes.items())
    old = {name: int(str(request.constexprs[name])) for name in sizes}
    return Relaunch(
        replace(request, constexprs=constants, config=""),
        words + more,
        {name: (old[name], size) for name, size in sizes.items()},
    )


def _size(request: ResourceRequest, tile: Tile) -> int | None:
    value = request.constexprs.get(tile.name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_product(one: Relaunch, tiles: Tiles) -> bool:
    """Matrix products need 16 rows, columns and depths of a tile."""
    sizes = [_size(one.request, tile) for tile in tiles.values()]
    return all(size is None or size >= LEAST_OF_PRODUCTS for size in sizes)


def grown(one: Relaunch, tiles: Tiles) -> dict[int, tuple[int, int]]:
    """By axis of the grid, tile sizes (before, now): there are before / now times the programs.

    Without this a launch would leave a part undone, or do it twice. A grid computed from the tile
    follows by itself; a tile that a loop walks by changes nothing.
    """
    found: dict[int, tuple[int, int]] = {}
    for name, (old, new) in one.tiles.items():
        tile = tiles[name]
        if tile.axes and not tile.walked:
            axis = min(tile.axes)
            before, now = found.get(axis, (1, 1))
            found[axis] = before * old, now * new
    return found


def _change(one: Relaunch) -> str:
    """The launch in words, with what becomes of a grid that is written as numbers."""
    source = read_bounded(Path(one.request.source), MAX_FILE_BYTES).decode()
    parts = [one.words]
    for axis, (old, new) in sorted(grown(one, tiles_of(source, one.request.kernel)).items()):
        step = math.gcd(old, new)
        more, fewer = old // step, new // step
        if more != fewer:
            times = f" × {more}" * (more > 1) + f" / {fewer}" * (fewer > 1)
            parts.append(f"grid[{axis}]{times}")
    return ", ".join(parts)
