"""What the members of a fused kernel would take, as far as its operands and source tell.

    time = larger of memory and arithmetic
    memory = (external bytes + passes × a tensor's bytes) / bandwidth

Members read the external inputs and write the results; between them they write and read at least
one, hardly more than two tensors of the largest size. Arithmetic: special functions that the source
shows, each result once; matrix products at a part of the peak.

Arithmetic hides behind the memory of its own kernel only, and loads of a tensor at several places
are shifted against each other, so that one of the members does them too, an element at a time. The
high end is at least that of a kernel that computes and another that loads, each with half of one
pass, where what overlaps does so in part:

    high >= sqrt(half² + special²) + sqrt(half² + loads²)

Libraries norm and scale few long rows with a program each, as a kernel may that is launched so:
whether its members fill the device, or reach the bandwidth of so many multiprocessors only, is not
known, and the high end says so.
"""

from __future__ import annotations

from math import hypot, prod

from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.hardware.roofline import bandwidth_of, peak_of
from advisor.model.base import Range
from advisor.model.step_record import Launch
from advisor.units import NS_PER_S
from analyzers.overfusion.group import Group, reading_of, redundancy, requested
from analyzers.overfusion.reading import KernelReading

# (tensors written and read between members, share of the bandwidth reached), best to worst.
PASSES = ((0, 1.0), (1, 0.9), (2, 0.8))
# Share of the peak that a library's product reaches, best to worst.
PRODUCT_SHARES = (0.85, 0.7, 0.5)
FLOOR_NS = 2_000
# Load units are a quarter as wide as what is issued; single elements keep half of them busy.
LOAD_WIDTH, LOADED = 0.25, 0.5
_ARITHMETIC: dict[str, Arithmetic] = {
    "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
}  # fmt: skip


def members_ns(launch: Launch, gpu: Gpu) -> Range | None:
    """The time of the members of a kernel; None where what it computes is not known."""
    if not launch.operands or not launch.largest:
        return None
    reading = reading_of(launch)
    if reading is not None and _iterates(reading):
        return None
    external = sum(tensor.size_bytes for tensor in launch.operands)
    wide = max(t.item_bytes or 4 for t in launch.operands if t.elements == launch.largest)
    between = 2 * launch.largest * min(wide, 4)
    if reading is not None and reading.products and launch.factors is None:
        return None
    if launch.factors is not None and (reading is None or reading.products):
        work = 2.0 * prod(launch.factors)
        between = 2 * launch.operands[-1].size_bytes
        products = [work * NS_PER_S / (peak_of(gpu, _kind(launch)) * s) for s in PRODUCT_SHARES]
    else:
        products = [0.0, 0.0, 0.0]
    special = 0.0 if reading is None else _specials_once(launch, reading, gpu)
    times = []
    for (passes, share), product in zip(PASSES, products, strict=True):
        memory = (external + passes * between) * NS_PER_S / (bandwidth_of(gpu) * share)
        times.append(round(max(memory, special / share) + product + FLOOR_NS * (passes + 1)))
    if reading is not None and not reading.products:
        share = PASSES[-1][1]
        half = (external + between) / 2 * NS_PER_S / (bandwidth_of(gpu) * share)
        loads = _shifted_loads(launch, reading) * NS_PER_S / _loads_per_s(gpu)
        times[2] = max(times[2], round(hypot(half, special / share) + hypot(half, loads)))
    high = round(times[2] / _least_filled(launch, gpu))
    return Range(low=times[0], mid=times[1], high=high)


def _least_filled(launch: Launch, gpu: Gpu) -> float:
    """The part of the multiprocessors that members use at least: a program a row, if it has that.

    It has if as many programs as there are rows write a result as large as what they read.
    """
    rows = [tensor.shape[:-1] for tensor in launch.operands if tensor.elements == launch.largest]
    is_whole = launch.operands[-1].elements == launch.largest
    if is_whole and rows[0] and launch.programs == prod(rows[0]):
        return min(1.0, launch.programs / gpu.sm_count)
    return 1.0


def _shifted_loads(launch: Launch, reading: KernelReading) -> int:
    """Elements that loads of tensors read at several places ask for, each place once."""
    asked: dict[str, list[int]] = {}
    for access in reading.loads():
        own = min(requested(access, launch), launch.largest)
        asked.setdefault(access.pointer, []).append(own)
    return sum(sum(own) for own in asked.values() if len(own) > 1 and sum(own) > launch.largest)


def _loads_per_s(gpu: Gpu) -> float:
    """Single elements that all threads together load in a second."""
    return gpu.instructions_per_s * LOAD_WIDTH * LOADED


def _iterates(reading: KernelReading) -> bool:
    """Whether it computes in a loop whose length is not known and that reads nothing new."""
    moving = {loop for access in reading.accesses for loop in access.follows}
    waits = [s for s in reading.specials if s.trips is None]
    return any(not set(special.inside) & moving for special in waits)


def _kind(launch: Launch) -> Arithmetic:
    return _ARITHMETIC.get(launch.operands[0].dtype, "float32")


def _specials_once(launch: Launch, reading: KernelReading, gpu: Gpu) -> float:
    """The time of special functions, each value's once: whatever is done again is left out."""
    total = 0.0
    seen: set[str] = set()
    for special in reading.specials:
        accesses = [reading.accesses[number - 1] for _, number in special.loaded]
        again = min((redundancy(access, launch) for access in accesses), default=1)
        results = special.results * (special.trips or 0) * (launch.programs or 1)
        if special.trips is None:
            results = special.results * launch.largest // max(1, _lanes(reading))
        pointers = {access.pointer for access in accesses}
        sites = len([a for a in reading.loads() if a.pointer in pointers])
        asked = sum(requested(a, launch) for a in reading.loads() if a.pointer in pointers)
        often = max(1.0, asked / (launch.largest * max(1, len(pointers)))) if sites > 1 else 1.0
        total += results / again / often
        seen |= pointers
    return total * NS_PER_S / gpu.special_per_s


def _lanes(reading: KernelReading) -> int:
    return max((access.lanes for access in reading.accesses), default=1)


def group_of(launch: Launch, lost_ns: int, gpu: Gpu) -> Group:
    """A kernel whose members are not known, for the rules."""
    return Group((launch,), (), lost_ns, gpu)
