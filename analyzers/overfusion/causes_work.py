"""Causes in the work itself: done more than once, dealt unequally, added to the same places."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from advisor.model.overfusion import Candidate
from advisor.model.step_record import Launch
from advisor.units import format_bytes
from analyzers.overfusion.group import (
    Group,
    candidate,
    reading_of,
    redundancy,
    requested,
)

WORD_BYTES = 4
# Atomic additions to few places that an H200 does in a second (measured: 16.8 M in 0.5 ms).
ATOMICS_PER_S = 3e10
CROWD = 64
# Of ATen's pointwise ops: results of special functions for one element.
ATEN_SPECIALS = {
    "silu": 2, "sigmoid": 2, "gelu": 2, "tanh": 2, "exp": 1, "softplus": 2, "silu_backward": 2,
    "gelu_backward": 3, "softmax": 2, "log_softmax": 2, "erf": 1, "sin": 1, "cos": 1, "sqrt": 1,
    "rsqrt": 1, "log": 1, "logsumexp": 1, "addcdiv": 1, "mish": 4, "elu": 1,
}  # fmt: skip


def recompute(group: Group) -> Candidate | None:
    """Special functions computed more often than the members do."""
    found = _of_prologue(group) or _of_all(group)
    if found is None:
        return None
    extra, often, text = found
    share = group.share(group.specials_ns(extra))
    return candidate("recompute", share, text, times=round(often, 3), extra_results=extra)


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
    return candidate("reread_inputs", group.share(group.bytes_ns(extra)), text, times=worst)


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
    return candidate("widened_traffic", group.share(group.bytes_ns(extra)), text, bytes=extra)


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
    return candidate("unequal_horizontal", 0.9, text, members=len(times))


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
    return candidate("atomics_contention", share, text, additions=added, programs=crowd)
