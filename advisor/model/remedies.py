"""What helps a fused kernel that lost, by cause: kinds of cures in the order in which to try them.

None of them is taken on trust: a launch is proved by compiling, everything is timed beside the
kernel as it is, and kept only if it is faster.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from advisor.model.base import Record
from advisor.model.overfusion import Cause

RemedyKind = Literal["launch", "setting", "split", "separate", "streams", "buckets"]

# Names of PyTorch's compiler: `triton_poi_fused_add_0`, `triton_tem_fused_mm_1`.
COMPILERS = re.compile(r"triton_(?:poi|red|per|for|tem|mix|split_scan)_fused_")


class Remedy(Record, frozen=True, kw_only=True):
    """One way to cure a cause; `settings` are options of the compiler that change its choice."""

    kind: RemedyKind
    text: str
    settings: dict[str, Any] = {}


_LAUNCH = Remedy(kind="launch", text="launch it with other warps, stages or tiles")
_SPLIT = Remedy(kind="split", text="cut it in two: fewer values are held at once")
_STORE = Remedy(kind="split", text="store the value once, where several readers compute it again")
_APART = Remedy(kind="separate", text="keep its parts kernels of their own")


def _setting(text: str, **settings: Any) -> Remedy:
    return Remedy(kind="setting", text=text, settings=settings)


REMEDIES: dict[Cause, tuple[Remedy, ...]] = {
    "register_spill": (_LAUNCH, _SPLIT, _APART),
    "occupancy_registers": (_LAUNCH, _SPLIT, _APART),
    "occupancy_shared_memory": (_LAUNCH, _APART),
    "stale_config": (_LAUNCH, _APART),
    "too_few_programs": (
        _setting("let the compiler split its reductions", split_reductions=True),
        _LAUNCH,
        _APART,
    ),
    "recompute": (_STORE, _APART),
    "reread_inputs": (
        _setting("hold rows in registers", **{"triton.persistent_reductions": True}),
        _SPLIT,
        _APART,
    ),
    "uncoalesced_access": (
        _setting("tile both orders of memory", **{"triton.max_tiles": 2}),
        _LAUNCH,
        _APART,
    ),
    "gemm_epilogue": (_LAUNCH, _APART),
    "serialised_streams": (
        Remedy(kind="streams", text="give independent work a stream of its own"),
    ),
    "unequal_horizontal": (
        _setting("launch unequal tensors apart", combo_kernels=False),
        _APART,
    ),
    "lost_overlap": (Remedy(kind="buckets", text="transfer in as many pieces as hide best"),),
    "lost_vectorisation": (
        _setting("tell the compiler what divides by 16", **{"triton.divisible_by_16": True}),
        _LAUNCH,
        _APART,
    ),
    "no_tensor_core": (_APART,),
    "atomics_contention": (_APART,),
    "widened_traffic": (_APART,),
}


def command_of(kernel: str, cause: Cause) -> str:
    """The command that tries a cure of a kernel, by its name; empty where there is none.

    Kernels of PyTorch's compiler are cut or launched otherwise in the step; those of a user's file
    are compiled in other launches.
    """
    kinds = {remedy.kind for remedy in REMEDIES[cause]}
    if COMPILERS.match(kernel):
        if "split" in kinds:
            return "fusion-advisor unfuse RUN"
        return "fusion-advisor apply RUN --only retune" if "launch" in kinds else ""
    return "fusion-advisor resources KERNEL.py --cure" if "launch" in kinds else ""
