"""A fused kernel beside its members, and what rules ask of the two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from advisor.hardware.gpu import Gpu
from advisor.hardware.limits import SmLimits
from advisor.hardware.occupancy import Occupancy, occupancy
from advisor.hardware.roofline import bandwidth_of
from advisor.model.findings import Evidence
from advisor.model.overfusion import Candidate, Cause
from advisor.model.step_record import Launch
from advisor.units import NS_PER_S
from analyzers.overfusion.kernel_source import read_kernel
from analyzers.overfusion.reading import Access, KernelReading

_AXES = ("pid0", "pid1", "pid2")


@dataclass(frozen=True)
class Group:
    """`fused` launches against `members` (empty where only the fused way is known).

    `lost_ns` is how much longer the fused way takes; rules explain that much.
    """

    fused: tuple[Launch, ...]
    members: tuple[Launch, ...]
    lost_ns: int
    gpu: Gpu

    @cached_property
    def main(self) -> Launch:
        """The fused kernel that takes longest."""
        return max(self.fused, key=lambda launch: launch.time_ns)

    @cached_property
    def reading(self) -> KernelReading | None:
        """The source of that kernel, if it can be followed."""
        return reading_of(self.main)

    @property
    def programs(self) -> int:
        """Programs of that kernel; 1 if its grid is unknown."""
        return self.main.programs or 1

    @cached_property
    def elements(self) -> int:
        """Elements of the largest tensor that the kernel has to do with; 0 if unknown."""
        return self.main.largest

    def share(self, cost_ns: float) -> float:
        """The part of the loss that a cost makes up, at most 1."""
        return min(1.0, cost_ns / self.lost_ns) if self.lost_ns > 0 else 0.0

    def bytes_ns(self, size_bytes: float) -> float:
        """How long so many bytes take at the device's bandwidth."""
        return size_bytes * NS_PER_S / bandwidth_of(self.gpu)

    def specials_ns(self, results: float) -> float:
        """How long so many results of the special function units take."""
        return results * NS_PER_S / self.gpu.special_per_s

    def resident_share(self, launch: Launch) -> float | None:
        """Warps of all its programs over what the device can hold, at most 1; None if unknown."""
        limits = self.gpu.limits
        if launch.programs is None or launch.threads is None:
            return None
        if isinstance(limits, SmLimits):
            most = limits.max_warps
        else:
            most = limits.max_waves_per_simd * limits.simds
        warps = -(-launch.threads // limits.warp_size) * launch.programs
        return min(1.0, warps / (most * self.gpu.sm_count))


def occupancy_of(launch: Launch, gpu: Gpu) -> Occupancy | None:
    """Theoretical occupancy, None where something is unknown."""
    if launch.registers is None or launch.threads is None:
        return None
    return occupancy(
        gpu.arch, registers=launch.registers, threads=launch.threads,
        shared_bytes=launch.shared_bytes or 0,
    )  # fmt: skip


def reading_of(launch: Launch) -> KernelReading | None:
    """What the source of a launch says; None without source, or where it cannot be followed."""
    found = None if launch.code is None else read_kernel(launch.code)
    return found if found is not None and found.complete else None


def redundancy(access: Access, launch: Launch) -> int:
    """Programs that do an access with the very same addresses."""
    grid = launch.grid or (1, 1, 1)
    return prod(size for axis, size in zip(_AXES, grid, strict=True) if axis in access.fixed)


def requested(access: Access, launch: Launch) -> int:
    """Elements that all programs together ask for at one place of the source.

    Where a loop runs along data for an unknown time, all programs together cover the largest
    tensor as often as programs share addresses.
    """
    programs = max(1, (launch.programs or 1) // access.dealt)
    most = launch.largest * redundancy(access, launch)
    if access.trips is None:
        return most
    asked = access.lanes * access.trips * programs
    # What is beyond the tensor is masked.
    return min(asked, most) if most else asked


def spilled_bytes(launch: Launch) -> int:
    """Bytes that all threads spill and read back, each counted once; 0 if none are known.

    A spill in a loop moves them again every time, so this is what it costs at least.
    """
    code = launch.code
    if code is None or code.resources is None:
        return 0
    resources = code.resources
    each = (resources.spill_store_bytes or 0) + (resources.spill_load_bytes or 0)
    return each * (launch.threads or 0) * (launch.programs or 0)


def candidate(cause: Cause, share: float, text: str, **values: float | str | None) -> Candidate:
    """A cause with what speaks for it."""
    evidence = Evidence(kind="resources", text=text, values=dict(values))
    return Candidate(cause=cause, share=round(min(share, 1.0), 4), evidence=evidence)


def holds_more(group: Group, mine: Occupancy) -> bool:
    """Whether a member that takes a good part of the time holds twice as many warps."""
    whole = sum(launch.time_ns for launch in group.members)
    for launch in group.members:
        found = occupancy_of(launch, group.gpu)
        if found and launch.time_ns > 0.2 * whole and found.fraction >= 2 * mine.fraction:
            return True
    return not group.members
