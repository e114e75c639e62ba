"""Causes in what a multiprocessor, or the device, can hold."""

from __future__ import annotations

from advisor.hardware.occupancy import Occupancy
from advisor.model.overfusion import Candidate
from advisor.units import format_bytes, format_fraction
from analyzers.overfusion.group import (
    Group,
    candidate,
    holds_more,
    occupancy_of,
    spilled_bytes,
)

FEWEST_SPILLED = 16
SPILL_GREW, REGISTERS_FELL = 1.25, 0.6
LOW_OCCUPANCY, FEW_RESIDENT = 0.25, 0.2


def register_spill(group: Group) -> Candidate | None:
    """Values that do not fit into registers go to local memory and come back."""
    for rule in (_counted_spill, _grown_spill):
        if (found := rule(group)) is not None:
            return found
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
    return candidate(
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
    known = sizes and results == sizes[-1]
    beside = (
        f"for {format_bytes(results)} of results"
        if known
        else (f"where the launch that writes least writes {format_bytes(results)}")
    )
    text = f"{format_bytes(written)} written {beside}"
    share = group.share(group.bytes_ns(extra))
    return candidate("register_spill", share, text, dram_write_bytes=written)


def _grown_spill(group: Group) -> Candidate | None:
    """The same kernel from another compiler: it spills more, or has lost its registers.

    What a spill costs depends on the loop it is in: where nothing else changed, its growth explains
    what traffic counted once does not.
    """
    if len(group.members) != 1:
        return None
    now, before = group.main, group.members[0]
    if (now.operands, now.grid, now.op) != (before.operands, before.grid, before.op):
        return None
    bytes_now, bytes_before = spilled_bytes(now), spilled_bytes(before)
    if bytes_now > max(SPILL_GREW * bytes_before, 0):
        text = f"{format_bytes(bytes_now)} spilled at least, {format_bytes(bytes_before)} before"
        return candidate("register_spill", 0.5, text, before_bytes=bytes_before)
    known = now.registers is not None and before.registers is not None
    if not known or bytes_now or (now.registers or 0) > REGISTERS_FELL * (before.registers or 0):
        return None
    text = (
        f"{now.registers} registers a thread where there were {before.registers}, and slower: that "
        "is how a spill looks; the binary would tell"
    )
    return candidate("register_spill", 0.35, text, registers=now.registers)


def occupancy_registers(group: Group) -> Candidate | None:
    """Registers let few warps reside, so latencies show."""
    found = occupancy_of(group.main, group.gpu)
    if found is None or found.limiter != "registers":
        return None
    low = found.fraction <= LOW_OCCUPANCY
    if not (holds_more(group, found) if low else _doubled(group, found)):
        return None
    text = (
        f"{group.main.registers} registers a thread let {format_fraction(found.fraction)} of the "
        "warps reside"
    )
    return candidate(
        "occupancy_registers", 0.5, text, registers=group.main.registers, occupancy=found.fraction
    )


def _doubled(group: Group, mine: Occupancy) -> bool:
    """Whether registers grew by half over every member, and warps went with them."""
    rows = [(m.registers, occupancy_of(m, group.gpu)) for m in group.members]
    return bool(rows) and all(
        registers is not None
        and found is not None
        and (group.main.registers or 0) >= 1.5 * registers
        and mine.fraction <= 0.75 * found.fraction
        for registers, found in rows
    )


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
    return candidate("stale_config", 1.0, text, lanes_per_element=round(largest / size, 3))


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
    return candidate("too_few_programs", 0.9, text, programs=group.programs, resident=mine)
