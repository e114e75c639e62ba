"""Causes in how memory is walked."""

from __future__ import annotations

from advisor.model.overfusion import Candidate
from advisor.model.step_record import Launch
from analyzers.overfusion.group import (
    Group,
    candidate,
    reading_of,
    requested,
)
from analyzers.overfusion.reading import Access

SECTOR_BYTES, WORD_BYTES = 32, 4


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
    return candidate("uncoalesced_access", share, text, sector_bytes_used=least)


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
    return candidate("lost_vectorisation", 0.8, text, bytes_an_access=mine)


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
