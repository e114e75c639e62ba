"""Registers, spills and occupancy of plans, by compiling only: no torch and no GPU is needed."""

from __future__ import annotations

from pathlib import Path

from advisor.apply.kernels import write_source
from advisor.codegen import abi
from advisor.folders import cache_folder
from advisor.model.applied import KernelResources
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.verify.resources import ResourceRequest

# A few bytes come from slow paths and cost nothing; more is a configuration to avoid.
TOLERATED_SPILL_BYTES = 32


def requests(plan: FusionPlan, config: LaunchConfig) -> list[ResourceRequest]:
    """The kernels of a configuration, as they are launched at the plan's first site."""
    site, path = plan.sites[0], scheme_source(plan, config.scheme)
    calls = abi.launches(plan, config, site.row_sizes, site.columns, site.input_strides)
    return [
        ResourceRequest(
            source=str(path),
            kernel=launch.kernel.name,
            signature=launch.types,
            constexprs=dict(launch.constants),
            aligned=launch.aligned,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            config=config.label(),
        )
        for launch in calls
    ]


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
