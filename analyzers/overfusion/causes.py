"""Why a fused kernel lost: one function a cause, each with what speaks for it and its cost.

A rule says what it sees in times, launches, operands, source and binary, never in names. Its share
is the part of the loss that the mechanism accounts for at the device's rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from advisor.hardware.occupancy import Occupancy
from advisor.model.findings import Evidence
from advisor.model.overfusion import Candidate, Cause
from advisor.model.step_record import Launch
from advisor.units import format_bytes, format_fraction
from analyzers.overfusion.group import (
    Group,
    occupancy_of,
    reading_of,
    redundancy,
    requested,
    spilled_bytes,
)
from analyzers.overfusion.reading import Access

# A cause that accounts for so much of the loss explains it; below the second it is not named.
EXPLAINS, NAMED = 0.3, 0.15
SECTOR_BYTES, WORD_BYTES = 32, 4
# Atomic additions to few places that an H200 does in a second (measured: 16.8 M in 0.5 ms).
ATOMICS_PER_S = 3e10
CROWD, FEWEST_SPILLED = 64, 16
LOW_OCCUPANCY, FEW_RESIDENT = 0.25, 0.2
# Of ATen's pointwise ops: results of special functions for one element.
ATEN_SPECIALS = {
    "silu": 2, "sigmoid": 2, "gelu": 2, "tanh": 2, "exp": 1, "softplus": 2, "silu_backward": 2,
    "gelu_backward": 3, "softmax": 2, "log_softmax": 2, "erf": 1, "sin": 1, "cos": 1, "sqrt": 1,
    "rsqrt": 1, "log": 1, "logsumexp": 1, "addcdiv": 1, "mish": 4, "elu": 1,
}  # fmt: skip


def _candidate(cause: Cause, share: float, text: str, **values: float | str | None) -> Candidate:
    evidence = Evidence(kind="resources", text=text, values=dict(values))
    return Candidate(cause=cause, share=round(min(share, 1.0), 4), evidence=evidence)


# --- matrix products ------------------------------------------------------------------------------


def no_tensor_core(group: Group) -> Candidate | None:
    """A product in full float32: its factors were widened, or its precision is asked for."""
    reading = group.reading
    if reading is None or not reading.products or any(p.tensor_cores for p in reading.products):
        return None
    text = "its products are computed in float32 outside the tensor cores"
    return _candidate("no_tensor_core", 1.0, text, products=len(reading.products))


def occupancy_shared_memory(group: Group) -> Candidate | None:
    """Shared memory lets fewer blocks reside than registers would."""
    found = occupancy_of(group.main, group.gpu)
    if found is None or found.limiter != "shared_memory" or found.fraction > LOW_OCCUPANCY:
        return None
    others = {name: blocks for name, blocks in found.limits.items() if name != "shared_memory"}
    if found.blocks * 4 > min(others.values()) * 3:
        return None
    share = 0.8 if _better(group, found) else 0.2
    text = (
        f"{format_bytes(group.main.shared_bytes or 0)} of shared memory a block let {found.blocks} "
        f"reside on a multiprocessor, where registers would allow {others['registers']}"
    )
    return _candidate(
        "occupancy_shared_memory", share, text, occupancy=found.fraction,
        shared_bytes=group.main.shared_bytes,
    )  # fmt: skip


def gemm_epilogue(group: Group) -> Candidate | None:
    """The product and its epilogue in one kernel, where the library's product was given up."""
    reading = group.reading
    if reading is None:
        return _by_operands(group)
    if not reading.products:
        return None
    products = [launch for launch in group.members if launch.role == "gemm"]
    if group.members and (not products or len(group.members) < 2):
        return None
    loops = {loop for product in reading.products for loop in product.inside}
    operands = {access.pointer for access in reading.loads() if not loops & set(access.inside)}
    text = "a product and what follows it in one kernel"
    if operands:
        text += f", which loads {len(operands)} more operand(s) for every tile"
    if products:
        text += "; apart, the product runs as a kernel of the library"
    found = occupancy_of(group.main, group.gpu)
    return _candidate(
        "gemm_epilogue", 0.7, text, extra_operands=len(operands),
        occupancy=None if found is None else found.fraction,
    )  # fmt: skip


def _by_operands(group: Group) -> Candidate | None:
    """Without source: operands and result of a product that no other reading of them explains."""
    found = group.main.factors
    if found is None or found[2] in found[:2] or group.main.role == "gemm":
        return None
    extra = len([t for t in group.main.operands if t.elements >= found[0] * found[1]]) - 1
    text = f"a product {found[0]} by {found[1]} by {found[2]} in a kernel that no library chose"
    return _candidate("gemm_epilogue", 0.7, text, extra_operands=extra)


# --- work done more than once ---------------------------------------------------------------------


def recompute(group: Group) -> Candidate | None:
    """Special functions computed more often than the members do."""
    found = _of_prologue(group) or _of_all(group)
    if found is None:
        return None
    extra, often, text = found
    share = group.share(group.specials_ns(extra))
    return _candidate("recompute", share, text, times=round(often, 3), extra_results=extra)


def _of_prologue(group: Group) -> tuple[float, float, str] | None:
    """An operand of a product that is computed again for every tile that reads it."""
    reading = group.reading
    if reading is None or not reading.products or not group.main.operands:
        return None
    product = reading.products[0]
    rows = group.main.operands[0].shape[0]
    prepared = [
        special
        for special in reading.specials
        if special.inside and special.inside == product.inside and special.loaded <= product.loaded
    ]
    often = group.programs * product.rows / rows if rows else 1.0
    if not prepared or often < 1.5:
        return None
    tile = max(product.rows, 1)
    each = sum(special.results for special in prepared)
    lanes = max((a.lanes for a in reading.loads() if a.inside == product.inside), default=tile)
    extra = (often - 1) * group.main.operands[0].elements * each / lanes
    return extra, often, f"what comes before the product is computed {often:.1f} times"


def _of_all(group: Group) -> tuple[float, float, str] | None:
    mine = _specials(group.fused)
    if mine is None or not group.members:
        return _of_itself(group)
    theirs = _specials(group.members)
    if not theirs or mine < 1.25 * theirs:
        return None if theirs is not None else _of_itself(group)
    text = f"special functions are computed {mine / theirs:.1f} times as often as by the members"
    return mine - theirs, mine / theirs, text


def _of_itself(group: Group) -> tuple[float, float, str] | None:
    """What the source alone shows: data that every program prepares anew, or at several places."""
    reading = group.reading
    if reading is None or reading.products:
        return None
    extra = total = 0.0
    sites: dict[str, int] = {}
    for special in reading.specials:
        if special.trips is None or special.results < WORD_BYTES:
            continue
        results = special.results * special.trips * group.programs
        total += results
        accesses = [reading.accesses[number - 1] for _, number in special.loaded]
        again = min((redundancy(access, group.main) for access in accesses), default=1)
        extra += results * (1 - 1 / again)
        if len(accesses) == 1 and again == 1:
            pointer, number = next(iter(special.loaded))
            sites[f"{pointer} {number}"] = sites.get(f"{pointer} {number}", 0) + results
    by_pointer: dict[str, list[float]] = {}
    for key, results in sites.items():
        by_pointer.setdefault(key.split()[0], []).append(results)
    for pointer, each in by_pointer.items():
        asked = sum(requested(a, group.main) for a in reading.loads() if a.pointer == pointer)
        if len(each) > 1 and group.elements and asked > 1.5 * group.elements:
            extra += sum(each) - max(each)
    if not extra or extra < 0.2 * total:
        return None
    often = total / (total - extra) if total > extra else float(group.programs)
    return extra, often, f"what it reads goes through special functions {often:.1f} times"


def _specials(launches: Sequence[Launch]) -> float | None:
    """Results of special functions of all launches; None where some cannot be counted."""
    total = 0.0
    for launch in launches:
        reading = reading_of(launch)
        if reading is None:
            bare = (launch.op or "").rpartition("::")[2].strip("_")
            if launch.library != "aten" and launch.is_kernel:
                return None
            total += ATEN_SPECIALS.get(bare, 0) * launch.largest
            continue
        for special in reading.specials:
            if special.trips is None:
                return None
            total += special.results * special.trips * (launch.programs or 1)
    return total


def reread_inputs(group: Group) -> Candidate | None:
    """Inputs that do not fit into caches are asked for several times."""
    reading, size = group.reading, group.elements
    if reading is None or reading.products or not size:
        return None
    worst, extra = 1.0, 0.0
    for pointer in {access.pointer for access in reading.loads()}:
        own = [access for access in reading.loads() if access.pointer == pointer]
        distinct = sum(requested(a, group.main) / redundancy(a, group.main) for a in own)
        if distinct * 4 < size:
            continue
        times = sum(requested(a, group.main) for a in own) / size
        extra += max(times - 1, 0) * size * reading.item_bytes.get(pointer, WORD_BYTES)
        worst = max(worst, times)
    if worst < 1.4:
        return None
    text = f"an input is read {worst:.1f} times, {format_bytes(round(extra))} more than once"
    return _candidate("reread_inputs", group.share(group.bytes_ns(extra)), text, times=worst)


def widened_traffic(group: Group) -> Candidate | None:
    """Tensors of a wider type than the members moved."""
    if not group.members or not group.elements:
        return None
    by_size: dict[int, int] = {}
    for launch in group.members:
        for tensor in launch.operands:
            if tensor.item_bytes is not None:
                by_size[tensor.elements] = max(by_size.get(tensor.elements, 0), tensor.item_bytes)
    extra = sum(
        (tensor.item_bytes - by_size[tensor.elements]) * tensor.elements
        for launch in group.fused
        for tensor in launch.operands
        if tensor.item_bytes is not None and tensor.item_bytes > by_size.get(tensor.elements, 99)
    )
    if not extra:
        return None
    text = f"its tensors are of a wider type than the members': {format_bytes(extra)} more a step"
    return _candidate("widened_traffic", group.share(group.bytes_ns(extra)), text, bytes=extra)


# --- access to memory -----------------------------------------------------------------------------


def uncoalesced_access(group: Group) -> Candidate | None:
    """Lanes that lie far apart in memory: whole sectors move for single elements."""
    reading = group.reading
    if reading is None:
        return None
    extra, least = 0.0, float(SECTOR_BYTES)
    for access in reading.accesses:
        item = reading.item_bytes.get(access.pointer, WORD_BYTES)
        side_by_side = access.run * item
        if access.lanes < SECTOR_BYTES or side_by_side >= SECTOR_BYTES:
            continue
        bytes_asked = requested(access, group.main) * item
        extra += bytes_asked * (SECTOR_BYTES / side_by_side - 1)
        least = min(least, side_by_side)
    if not extra:
        return None
    share = group.share(group.bytes_ns(extra))
    text = f"{least:.0f} bytes of a {SECTOR_BYTES}-byte sector lie side by side in an access"
    return _candidate("uncoalesced_access", share, text, sector_bytes_used=least)


def lost_vectorisation(group: Group) -> Candidate | None:
    """Loads and stores of less than a word a thread."""
    mine = narrowest(group.main, group)
    if mine is None or mine >= WORD_BYTES:
        return None
    theirs = [w for m in group.members if (w := narrowest(m, group)) is not None]
    if theirs and max(theirs) <= mine:
        return None
    text = f"its threads load and store {mine} byte(s) at a time"
    if theirs:
        text += f", the members' up to {max(theirs)}"
    return _candidate("lost_vectorisation", 0.8, text, bytes_an_access=mine)


def narrowest(launch: Launch, group: Group) -> int | None:
    """Bytes that a thread moves at once, at most, in the narrowest access to large tensors."""
    reading, threads = reading_of(launch), launch.threads
    if reading is None or reading.products or launch.code is None or not threads:
        return _by_launch(launch)
    widths = [
        _width(access, reading.item_bytes.get(access.pointer, WORD_BYTES), launch, threads)
        for access in reading.accesses
        if access.kind != "atomic"
        and access.lanes >= threads
        and access.run * SECTOR_BYTES >= access.lanes
        and requested(access, launch) * 8 >= (launch.largest or 1)
    ]
    return min(widths, default=None)


def _width(access: Access, item: int, launch: Launch, threads: int) -> int:
    code = launch.code
    if code is not None and access.pointer not in code.aligned:
        return item
    return min(16, item * max(1, min(access.lanes // threads, access.run)))


def _by_launch(launch: Launch) -> int | None:
    """Without source: of a kernel that gives every thread one element at most."""
    if launch.library == "aten" or not launch.is_kernel:
        return None
    if not (launch.threads and launch.programs and launch.largest):
        return None
    each = launch.largest / (launch.threads * launch.programs)
    items = [t.item_bytes for t in launch.operands if t.elements == launch.largest]
    known = [item for item in items if item is not None]
    return max(known) if known and 0.5 < each <= 1 else None


# --- what a multiprocessor can hold ---------------------------------------------------------------


def register_spill(group: Group) -> Candidate | None:
    """Values that do not fit into registers go to local memory and come back."""
    counted = _counted_spill(group)
    if counted is not None:
        return counted
    launch = group.main
    resources = None if launch.code is None else launch.code.resources
    stores = None if resources is None else resources.spill_store_bytes
    if resources is None or stores is None or stores < FEWEST_SPILLED:
        return None
    moved = spilled_bytes(launch)
    text = (
        f"{stores} bytes a thread are spilled and {resources.spill_load_bytes} read back: at least "
        f"{format_bytes(moved)} of traffic"
    )
    return _candidate(
        "register_spill", group.share(group.bytes_ns(moved)), text, spill_store_bytes=stores,
        registers=resources.registers,
    )  # fmt: skip


def _counted_spill(group: Group) -> Candidate | None:
    """Counters: far more bytes written than there are results."""
    launch = group.main
    written = launch.dram_write_bytes
    if written is None:
        return None
    sizes = sorted(tensor.size_bytes for tensor in launch.operands)
    least = min((m.dram_write_bytes for m in group.members if m.dram_write_bytes), default=0)
    results = max(least, sizes[-1] if sizes else 0)
    if not results or written < 3 * results:
        return None
    extra = max(2 * (written - results), launch.spill_bytes or 0)
    text = f"{format_bytes(written)} written for {format_bytes(results)} of results"
    share = group.share(group.bytes_ns(extra))
    return _candidate("register_spill", share, text, dram_write_bytes=written)


def occupancy_registers(group: Group) -> Candidate | None:
    """Registers let few warps reside, so latencies show."""
    found = occupancy_of(group.main, group.gpu)
    if found is None or found.limiter != "registers" or found.fraction > LOW_OCCUPANCY:
        return None
    if group.members and not _better(group, found):
        return None
    text = (
        f"{group.main.registers} registers a thread let {format_fraction(found.fraction)} of the "
        "warps reside"
    )
    return _candidate(
        "occupancy_registers", 0.5, text, registers=group.main.registers, occupancy=found.fraction
    )


def _better(group: Group, mine: Occupancy) -> bool:
    """Whether a member that takes a good part of the time holds twice as many warps."""
    whole = sum(launch.time_ns for launch in group.members)
    for launch in group.members:
        found = occupancy_of(launch, group.gpu)
        if found and launch.time_ns > 0.2 * whole and found.fraction >= 2 * mine.fraction:
            return True
    return not group.members


def stale_config(group: Group) -> Candidate | None:
    """Tiles much longer than the rows: most lanes are masked."""
    reading, size = group.reading, group.elements
    if reading is None or not size or reading.products:
        return None
    largest = max(
        (a.lanes * a.trips * group.programs for a in reading.accesses if a.trips and not a.side),
        default=0,
    )
    if largest < 2 * size:
        return None
    text = f"its tiles have {largest / size:.1f} times as many lanes as there are elements"
    return _candidate("stale_config", 1.0, text, lanes_per_element=round(largest / size, 3))


def too_few_programs(group: Group) -> Candidate | None:
    """The launch does not fill the device."""
    reading = group.reading
    mine = group.resident_share(group.main)
    if mine is None or mine > FEW_RESIDENT or (reading is not None and reading.products):
        return None
    if group.main.role in ("gemm", "conv", "attention", "communication"):
        return None
    moved = group.bytes_ns(sum(t.size_bytes for t in group.main.operands))
    if moved > 0.6 * group.main.time_ns:
        return None
    whole = sum(launch.time_ns for launch in group.members)
    theirs = [
        found
        for launch in group.members
        if launch.time_ns > 0.2 * whole and (found := group.resident_share(launch)) is not None
    ]
    if group.members and max(theirs, default=0.0) < 3 * mine:
        return None
    text = f"{group.programs} programs fill {format_fraction(mine)} of the device" + (
        f", the members' up to {format_fraction(max(theirs))}" if theirs else ""
    )
    return _candidate("too_few_programs", 0.9, text, programs=group.programs, resident=mine)


def unequal_horizontal(group: Group) -> Candidate | None:
    """Independent work of unequal size in equal shares: the largest decides."""
    reading = group.reading
    split = reading is not None and (reading.branches > 1 or reading.ragged)
    times = sorted(launch.time_ns for launch in group.members)
    names = {launch.role for launch in group.members}
    uneven = len(times) > 2 and len(names) == 1 and times[-1] > 1.8 * median(times)
    if not (split and (uneven or not group.members)) and not (
        uneven and len({launch.name for launch in group.members}) == 1
    ):
        return None
    text = "tensors of unequal size share the programs of one launch equally"
    return _candidate("unequal_horizontal", 0.9, text, members=len(times))


def atomics_contention(group: Group) -> Candidate | None:
    """Many programs add atomically to the same few places."""
    reading = group.reading
    if reading is None:
        return None
    added, crowd = 0.0, 1
    for access in reading.accesses:
        if access.kind == "atomic" and redundancy(access, group.main) >= CROWD:
            added += requested(access, group.main)
            crowd = max(crowd, redundancy(access, group.main))
    if not added:
        return None
    text = f"{crowd} programs add atomically to each of the same places"
    share = group.share(added * 1e9 / ATOMICS_PER_S)
    return _candidate("atomics_contention", share, text, additions=added, programs=crowd)


# In the order in which one is preferred where several explain the loss: what is done wrongly comes
# before what a multiprocessor then can or cannot hold.
CAUSES: tuple[Callable[[Group], Candidate | None], ...] = (
    no_tensor_core,
    atomics_contention,
    recompute,
    occupancy_shared_memory,
    gemm_epilogue,
    stale_config,
    unequal_horizontal,
    too_few_programs,
    register_spill,
    uncoalesced_access,
    lost_vectorisation,
    reread_inputs,
    widened_traffic,
    occupancy_registers,
)


def explain(group: Group) -> tuple[Candidate, ...]:
    """All candidates, the cause first; the first explains nothing if its share is below `NAMED`."""
    found = [candidate for rule in CAUSES if (candidate := rule(group)) is not None]
    enough = [candidate for candidate in found if candidate.share >= EXPLAINS]
    best = enough[0] if enough else max(found, key=lambda c: c.share, default=None)
    return () if best is None else (best, *(c for c in found if c is not best))
