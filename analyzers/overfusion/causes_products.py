"""Causes around matrix products."""

from __future__ import annotations

from advisor.model.overfusion import Candidate
from advisor.units import format_bytes
from analyzers.overfusion.group import (
    Group,
    candidate,
    holds_more,
    occupancy_of,
)

LOW_OCCUPANCY = 0.25


def no_tensor_core(group: Group) -> Candidate | None:
    """A product in full float32: its factors were widened, or its precision is asked for."""
    reading = group.reading
    if reading is None or not reading.products or any(p.tensor_cores for p in reading.products):
        return None
    text = "its products are computed in float32 outside the tensor cores"
    return candidate("no_tensor_core", 1.0, text, products=len(reading.products))


def occupancy_shared_memory(group: Group) -> Candidate | None:
    """Shared memory lets fewer blocks reside than registers would."""
    found = occupancy_of(group.main, group.gpu)
    if found is None or found.limiter != "shared_memory" or found.fraction > LOW_OCCUPANCY:
        return None
    others = {name: blocks for name, blocks in found.limits.items() if name != "shared_memory"}
    if found.blocks * 4 > min(others.values()) * 3:
        return None
    share = 0.8 if holds_more(group, found) else 0.2
    text = (
        f"{format_bytes(group.main.shared_bytes or 0)} of shared memory a block let {found.blocks} "
        f"reside on a multiprocessor, where registers would allow {others['registers']}"
    )
    return candidate(
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
    return candidate(
        "gemm_epilogue", 0.7, text, extra_operands=len(operands),
        occupancy=None if found is None else found.fraction,
    )  # fmt: skip


def _by_operands(group: Group) -> Candidate | None:
    """Without source: operands and result of a product that no other reading of them explains."""
    found = group.main.factors
    if found is None or found[2] in found[:2] or group.main.role == "gemm":
        return None
    extra = len([t for t in group.main.operands if t.shape == found[:2]]) - 1
    text = f"a product {found[0]} by {found[1]} by {found[2]} in a kernel that no library chose"
    return candidate("gemm_epilogue", 0.7, text, extra_operands=extra)
