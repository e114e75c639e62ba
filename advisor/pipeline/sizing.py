"""Registers, spills and occupancy of plans, by compiling only: no torch and no GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

from advisor.apply.kernels import write_source
from advisor.codegen.families import site_launches
from advisor.codegen.launches import Launch
from advisor.folders import cache_folder
from advisor.hardware.calibration import TRIP_NS
from advisor.hardware.gpu import Gpu
from advisor.hardware.roofline import bandwidth_of
from advisor.model.applied import KernelResources
from advisor.model.launch import (
    SCANS,
    LaunchConfig,
    Scheme,
    columns_per_split,
    grid_size,
    steps_per_split,
)
from advisor.model.optable import item_bytes
from advisor.model.plan import FusionPlan
from advisor.model.resources import Fit
from advisor.model.scan import steps_of
from advisor.units import NS_PER_S, format_bytes
from advisor.verify.resources import CANNOT_COMPILE, ResourceRequest

# Triton's own number where a launch names none.
UNSTAGED = 3
# A few bytes come from slow paths and cost nothing; more is a configuration to avoid.
TOLERATED_SPILL_BYTES = 32
# What ptxas and LLVM say of a target that is too old or too new for them.
UNKNOWN_TARGET = re.compile(r"gpu-name|not a recognized processor|[Uu]nsupported (gpu|arch|target)")


def requests(plan: FusionPlan, config: LaunchConfig) -> list[ResourceRequest]:
    """The kernels of a configuration, as they are launched at the plan's first site."""
    site, path = plan.sites[0], scheme_source(plan, config.scheme)
    calls = site_launches(plan, config, site)
    return [
        ResourceRequest(
            source=str(path),
            kernel=launch.kernel.name,
            signature={n: t for n, t in launch.types.items() if n not in launch.ones},
            constexprs={**launch.constants, **launch.ones},
            aligned=launch.aligned,
            num_warps=config.num_warps,
            num_stages=config.num_stages if _is_staged(launch, config) else UNSTAGED,
            config=config.label(),
        )
        for launch in calls
    ]


def _is_staged(launch: Launch, config: LaunchConfig) -> bool:
    """Whether the launcher passes the stages on to this kernel."""
    return config.scheme in (*SCANS, "gemm") or "STAGES" in launch.constants


def scheme_source(plan: FusionPlan, scheme: Scheme) -> Path:
    """The file of one scheme among those that are tried: outside every run."""
    _, path = write_source(plan, cache_folder() / "kernels", scheme, f"{plan.id}_{scheme}")
    return path


def needs_most(row: KernelResources) -> tuple[bool, int, int]:
    """Orders the kernels of one configuration: the one that fails, spills or needs most is last."""
    return row.error is not None, spilled_bytes(row), row.registers or 0


def spills(row: KernelResources) -> bool:
    """Whether it spills more than costs nothing, or cannot be launched at all."""
    impossible = row.error is not None or row.occupancy == 0
    return impossible or spilled_bytes(row) > TOLERATED_SPILL_BYTES


def spilled_bytes(row: KernelResources) -> int:
    """Bytes that a thread spills, stored and loaded; 0 where nothing is known of it."""
    return (row.spill_store_bytes or 0) + (row.spill_load_bytes or 0)


# --- use or avoid ---------------------------------------------------------------------------------


def judged(
    row: KernelResources,
    gpu: Gpu,
    plan: FusionPlan | None = None,
    config: LaunchConfig | None = None,
) -> tuple[Fit, str]:
    """Whether to launch a kernel like that on a GPU, and why.

    It must be launchable, spill nothing that costs, and, where the `plan` tells what it reads,
    keep enough on its way to hide the latency of memory (Little's law).
    """
    if row.error is not None:
        return _failed(row.error)
    if row.occupancy == 0:
        return "avoid", f"cannot be launched: more {_limiter(row)} than one program may have"
    if spilled_bytes(row) > TOLERATED_SPILL_BYTES:
        stored, loaded = row.spill_store_bytes or 0, row.spill_load_bytes or 0
        return (
            "avoid",
            f"spills: {format_bytes(stored)} stored, {format_bytes(loaded)} loaded a thread",
        )
    if row.occupancy is None:
        return "unknown", "its occupancy is not known"
    # Members read different amounts, a scan waits for its steps as well, a product for its units.
    if plan is None or config is None or plan.members or plan.stepped:
        return "use", "no spills"
    flying, needed = in_flight_bytes(row, gpu, plan, config), needed_bytes(gpu, plan)
    words = f"{format_bytes(flying)} in flight per multiprocessor"
    if flying < needed:
        return "avoid", f"{words}; it takes {format_bytes(needed)} to hide the latency of memory"
    return "use", f"no spills; {words}"


def _failed(error: str) -> tuple[Fit, str]:
    """No compiler for a target, or no time for it, says nothing of the kernel."""
    if error.startswith((CANNOT_COMPILE, "not compiled")):
        return "unknown", error
    if UNKNOWN_TARGET.search(error):
        return "unknown", f"{CANNOT_COMPILE}: {error}"
    return "avoid", f"does not compile: {error}"


def _limiter(row: KernelResources) -> str:
    return (row.limiter or "unknown").replace("_", " ")


def in_flight_bytes(row: KernelResources, gpu: Gpu, plan: FusionPlan, config: LaunchConfig) -> int:
    """Bytes that the programs of one multiprocessor have asked for at once: a tile each, of every
    tensor that is read tile by tile, times the stages of a pipelined loop and the blocks that it
    takes a turn, as far as a row has any."""
    site, limits = plan.sites[0], gpu.limits
    warps = -(-(row.threads or 1) // limits.warp_size)
    resident = round((row.occupancy or 0.0) * limits.max_warps) // warps
    programs = -(-grid_size(config, site.rows, site.columns) // gpu.sm_count)
    columns = min(config.block_columns or site.columns, site.columns)
    turns = columns_per_split(config, site.columns) // (config.block_columns or 1)
    if plan.states:
        turns = steps_per_split(config, steps_of(site))
    together = config.num_stages * min(config.unroll, turns)
    tile = min(config.block_rows, max(site.rows, 1)) * columns * together
    return min(resident, programs) * tile * _tile_bytes(plan)


def needed_bytes(gpu: Gpu, plan: FusionPlan) -> int:
    """What one multiprocessor must have on its way for the whole bandwidth: its share of it times
    the latency under load; less where its share of the tensors is less."""
    site = plan.sites[0]
    share = bandwidth_of(gpu) * TRIP_NS / NS_PER_S / gpu.sm_count
    return round(min(share, site.rows * site.columns * _tile_bytes(plan) / gpu.sm_count))


def _tile_bytes(plan: FusionPlan) -> int:
    """Bytes read per element of the iteration space."""
    return sum(item_bytes(i.dtype) for i in plan.inputs if i.traffic == "tile")
