"""What every configuration of a kernel needs on every GPU, and which of them to launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from advisor.errors import IllegalFusionError
from advisor.hardware.gpu import Gpu
from advisor.model.applied import KernelResources
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.resources import ResourceTable, SizedKernel
from advisor.pipeline.facts import TOOL
from advisor.pipeline.launch_cures import cures_of
from advisor.pipeline.sizing import judged, requests
from advisor.pipeline.winners import known_winner, modelled_configs
from advisor.verify.resources import ResourceRequest, resources_of


def plans_table(
    plans: Sequence[FusionPlan],
    gpus: Sequence[Gpu],
    source: str,
    *,
    top: int | None = None,
    timeout_s: float = 60.0,
    cache: Path | None = None,
) -> ResourceTable:
    """Every configuration worth trying on any of the GPUs, sized on all of them.

    `top` keeps that many of each GPU, the likeliest. Raises `IllegalFusionError` for a plan without
    a site or a kernel, `MissingDependencyError` without Triton.
    """
    sized: list[SizedKernel] = []
    for plan in plans:
        if not plan.sites:
            raise IllegalFusionError(
                f"plan {plan.id} has no site: nothing says how large its tensors are"
            )
        ranked = {gpu.key: ranked_configs(plan, gpu)[:top] for gpu in gpus}
        configs = list(dict.fromkeys(config for of_gpu in ranked.values() for config in of_gpu))
        sized += _sized(plan, configs, gpus, ranked, timeout_s, cache)
    return ResourceTable(tool=TOOL, source=source, kernels=tuple(sized))


def ranked_configs(plan: FusionPlan, gpu: Gpu) -> tuple[LaunchConfig, ...]:
    """What was measured on a GPU, then what its model thinks of, the likeliest first."""
    winner, modelled = known_winner(plan, gpu), modelled_configs(plan, gpu)
    first = (winner.config,) if winner is not None else ()
    return tuple(dict.fromkeys((*first, *modelled)))


def _sized(
    plan: FusionPlan,
    configs: Sequence[LaunchConfig],
    gpus: Sequence[Gpu],
    ranked: dict[str, tuple[LaunchConfig, ...]],
    timeout_s: float,
    cache: Path | None,
) -> list[SizedKernel]:
    """The kernels of a plan, configuration by configuration, GPU by GPU."""
    wanted = [requests(plan, config) for config in configs]
    flat = [one for group in wanted for one in group]
    rows = iter(resources_of(flat, gpus, timeout_s=timeout_s, cache=cache))
    found: dict[tuple[LaunchConfig, str], list[SizedKernel]] = {}
    for config, group in zip(configs, wanted, strict=True):
        for request in group:
            for gpu, row in zip(gpus, next(rows), strict=True):
                verdict, why = judged(row, gpu, plan, config)
                kernel = SizedKernel(
                    kernel=request.kernel,
                    plan_id=plan.id,
                    title=plan.title,
                    resources=row,
                    verdict=verdict,
                    why=why,
                )
                found.setdefault((config, gpu.key), []).append(kernel)
    first = {key: _first(order, found, key) for key, order in ranked.items()}
    return [
        msgspec.structs.replace(kernel, first=first[gpu] == config)
        for (config, gpu), kernels in found.items()
        for kernel in kernels
    ]


def _first(
    order: Sequence[LaunchConfig],
    found: dict[tuple[LaunchConfig, str], list[SizedKernel]],
    gpu: str,
) -> LaunchConfig | None:
    """The first configuration in an order of which every kernel is one to use."""
    fits = (c for c in order if all(kernel.verdict == "use" for kernel in found[c, gpu]))
    return next(fits, None)


def requests_table(
    wanted: Sequence[ResourceRequest],
    gpus: Sequence[Gpu],
    source: str,
    *,
    timeout_s: float = 60.0,
    cache: Path | None = None,
    cure: bool = False,
) -> ResourceTable:
    """Kernels of a file in given configurations; what they read is not known, so not judged.

    With `cure`, also a launch for those that spill, or cannot be launched, as they are.
    """
    sized = resources_of(wanted, gpus, timeout_s=timeout_s, cache=cache)
    kernels = [
        _plain(request, gpu, row)
        for request, rows in zip(wanted, sized, strict=True)
        for gpu, row in zip(gpus, rows, strict=True)
    ]
    cures = cures_of(wanted, sized, gpus, timeout_s=timeout_s, cache=cache) if cure else ()
    return ResourceTable(tool=TOOL, source=source, kernels=tuple(kernels), cures=cures)


def _plain(request: ResourceRequest, gpu: Gpu, row: KernelResources) -> SizedKernel:
    verdict, why = judged(row, gpu)
    return SizedKernel(kernel=request.kernel, resources=row, verdict=verdict, why=why)
