"""Why a fused kernel lost: one function a cause, each with what speaks for it and its cost.

A rule says what it sees in times, launches, operands, source and binary, never in names. Its share
is the part of the loss that the mechanism accounts for at the device's rates.
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.model.overfusion import Candidate
from analyzers.overfusion.causes_access import lost_vectorisation, uncoalesced_access
from analyzers.overfusion.causes_products import (
    gemm_epilogue,
    no_tensor_core,
    occupancy_shared_memory,
)
from analyzers.overfusion.causes_residency import (
    occupancy_registers,
    register_spill,
    stale_config,
    too_few_programs,
)
from analyzers.overfusion.causes_work import (
    atomics_contention,
    recompute,
    reread_inputs,
    unequal_horizontal,
    widened_traffic,
)
from analyzers.overfusion.group import Group

# A cause that accounts for so much of the loss explains it; below the second it is not named.
EXPLAINS, NAMED = 0.3, 0.15

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
