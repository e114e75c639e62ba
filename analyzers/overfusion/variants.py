"""Launches of one kernel with different configurations in one run: somebody's sweep.

That one variant is slower than another is what a sweep is for, and no regression. A variant whose
values spill, told by counted traffic, is worth a word if it loses half of its time to that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from advisor.hardware.gpu import Gpu
from advisor.model.overfusion import FusionVerdict
from advisor.model.step_record import Launch, StepRecord
from analyzers.overfusion.causes import EXPLAINS
from analyzers.overfusion.causes_residency import register_spill
from analyzers.overfusion.group import Group
from analyzers.overfusion.judge import members_of, spread_of

WORTH_A_WORD = 1.5


def variants(step: StepRecord, gpu: Gpu) -> list[FusionVerdict]:
    """Variants that spill, each against the fastest of the same kernel on the same grid."""
    groups: dict[Hashable, list[Launch]] = defaultdict(list)
    for launch in step.launches:
        if launch.is_kernel and launch.grid is not None and launch.threads is not None:
            groups[launch.name, launch.grid, launch.operands].append(launch)
    found = []
    for group in groups.values():
        best = min(group, key=lambda launch: launch.time_ns)
        for launch in group:
            if launch.threads != best.threads and launch.time_ns > WORTH_A_WORD * best.time_ns:
                verdict = _judge(launch, best, gpu)
                if verdict is not None:
                    found.append(verdict)
    return found


def _judge(launch: Launch, best: Launch, gpu: Gpu) -> FusionVerdict | None:
    spill = register_spill(Group((launch,), (best,), launch.time_ns - best.time_ns, gpu))
    if spill is None or spill.share < EXPLAINS:
        return None
    warps = [(x.threads or 0) // gpu.limits.warp_size for x in (launch, best)]
    return FusionVerdict(
        tier="pair",
        outcome="regression",
        kernel=launch.name,
        fused=members_of([launch]),
        members=members_of([best]),
        fused_ns=spread_of(launch.times_ns or (launch.time_ns,)),
        members_ns=spread_of(best.times_ns or (best.time_ns,)),
        cause="register_spill",
        candidates=(spill,),
        reason=f"{launch.time_ns / best.time_ns:.1f} times its time at {warps[1]} warps",
        config=f"num_warps={warps[0]}",
        cure=f"launch it with {warps[1]} warps, as it runs fastest here",
        code=launch.code,
    )
