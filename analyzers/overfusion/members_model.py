"""What the members of a fused kernel would take, as far as its operands and source tell.

    time = larger of memory and arithmetic
    memory = (external bytes + passes × a tensor's bytes) / bandwidth

Members read the external inputs and write the results; between them they write and read at least
one, hardly more than two tensors of the largest size. Arithmetic: special functions that the source
shows, each result once; matrix products at a part of the peak. The interval holds the members of
the development half of the corpus (`benchmarks/overfusion.md` says how often on the other).
"""

from __future__ import annotations

from math import prod

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
    return Range(low=times[0], mid=times[1], high=times[2])


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
