"""Verdicts on fused kernels: whether one lost against what it replaced, why, and how that is known.

Times are of one step, integer ns. Three tiers of evidence: `pair` (both ways were timed), `binary`
(the fused way's times, its kernels' source, launches and binaries; what its members would take is
modelled), `trace` (one trace alone).
"""

from __future__ import annotations

from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.applied import KernelResources
from advisor.model.base import Range, Record
from advisor.model.findings import Evidence, Member

Tier = Literal["pair", "binary", "trace"]
Outcome = Literal["regression", "benign", "cannot_judge"]
Cause = Literal[
    "register_spill",
    "occupancy_registers",
    "occupancy_shared_memory",
    "too_few_programs",
    "recompute",
    "reread_inputs",
    "uncoalesced_access",
    "gemm_epilogue",
    "serialised_streams",
    "unequal_horizontal",
    "lost_overlap",
    "lost_vectorisation",
    "no_tensor_core",
    "atomics_contention",
    "widened_traffic",
    "stale_config",
]
Scalar = int | float | bool | str | None


class KernelCode(Record, frozen=True, kw_only=True):
    """A kernel as it was compiled for a launch: source, constants, pointer types, binary.

    `signature` is Triton's (`{"x": "*bf16"}`) in order of the arguments; `aligned` are arguments
    known to divide by 16. `resources` are those of the binary, None where it was not examined.
    """

    name: str
    source: str = ""
    constants: dict[str, Scalar] = {}
    signature: dict[str, str] = {}
    aligned: tuple[str, ...] = ()
    num_warps: int | None = None
    num_stages: int | None = None
    resources: KernelResources | None = None


class Candidate(Record, frozen=True, kw_only=True):
    """A cause that the evidence speaks for, and how much of the loss it may explain (0 to 1)."""

    cause: Cause
    share: float
    evidence: Evidence


class FusionVerdict(Record, frozen=True, kw_only=True):
    """One fused kernel (or a group of them) against its members.

    `kernel` is the fused kernel that takes longest, by name, and `config` its launch where that is
    known (`num_warps=2`). `members_ns` is measured in the tier `pair`, else modelled; None if
    nothing can be said. `cause` is None where none of the evidence explains the loss; `candidates`
    are ordered, the cause first. `cure` is what this very run shows to be better, if anything.
    """

    tier: Tier
    outcome: Outcome
    kernel: str
    fused: tuple[Member, ...]
    members: tuple[Member, ...] = ()
    fused_ns: Range
    members_ns: Range | None = None
    cause: Cause | None = None
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""
    config: str = ""
    cure: str = ""
    code: KernelCode | None = None

    def check(self) -> None:
        if self.outcome != "regression" and self.cause is not None:
            raise InvalidRecordError("only a regression has a cause")

    @property
    def lost_ns(self) -> int | None:
        """How much longer the fused way takes, by the middles; None if members are unknown."""
        return None if self.members_ns is None else self.fused_ns.mid - self.members_ns.mid


class Share(Record, frozen=True, kw_only=True):
    """A part of the change of a step's time: what changed, by how much, and why where it is known.

    `cause` is a `Cause`, or `launch_gaps` (nothing ran), `copies`, `communication`, `overlap` (more
    or less runs side by side), `faster_kernels`, `new_kernels`; None where nothing explains it.
    """

    cause: str | None
    change_ns: int
    text: str
    kernels: tuple[str, ...] = ()


# What a share is of that holds the kernels of neither run for certain.
UNPAIRED = "kernels that could not be paired"


class Bisection(Record, frozen=True, kw_only=True):
    """The change of the step's time from one run to another as shares that add up to it.

    `before_ns`, `after_ns`: from the first activity of a step on the device to the end of its last.
    """

    before_ns: int
    after_ns: int
    shares: tuple[Share, ...] = ()

    def check(self) -> None:
        if sum(share.change_ns for share in self.shares) != self.after_ns - self.before_ns:
            raise InvalidRecordError("the shares do not add up to the change")

    @property
    def unexplained(self) -> float:
        """What has no cause, of all that changed in either direction; 0 where nothing did."""
        changed = sum(abs(share.change_ns) for share in self.shares)
        left = sum(abs(share.change_ns) for share in self.shares if share.cause is None)
        return left / changed if changed else 0.0
