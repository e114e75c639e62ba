"""The plans of a run made ready: generated, sized for other GPUs, checked against their region, verified, timed.

Each step may refuse a plan, with the reason; a refused plan goes no further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from advisor.apply.kernels import ReadyKernel, load_kernel, write_source
from advisor.codegen import KernelSource, abi
from advisor.errors import AdvisorError, IllegalFusionError
from advisor.hardware.gpu import Gpu
from advisor.model.applied import KernelResources, KernelTiming, Numerics
from advisor.model.launch import LaunchConfig, candidate_configs, default_config
from advisor.model.plan import FusionPlan
from advisor.store import RunDirectory
from advisor.units import format_ns
from advisor.verify.numerics import verify_numerics
from advisor.verify.region import region_disagreement
from advisor.verify.resources import ResourceRequest, resources_of
from advisor.verify.timing import KernelRecorder, best_config, time_kernel
from analyzers.program_cost import site_bytes
from collectors.live.capture import Capture

Emit = Callable[..., object]
SHOWN_GPUS = ("a100", "h200", "b200", "rtx4090", "mi300x")
# A few bytes come from slow paths and cost nothing; more is a configuration to avoid.
TOLERATED_SPILL_BYTES = 32


@dataclass
class Candidate:
    """One plan on its way: what is known of it so far, and why it was refused, if it was."""

    plan: FusionPlan
    source: KernelSource | None = None
    path: Path | None = None
    config: LaunchConfig | None = None
    usable: tuple[LaunchConfig, ...] = ()
    numerics: Numerics | None = None
    resources: tuple[KernelResources, ...] = ()
    timings: list[KernelTiming] = field(default_factory=list)
    refused: str | None = None

    def ready(self, folder: Path) -> ReadyKernel:
        """The kernel bound to the chosen configuration."""
        return load_kernel(
            self.plan, folder, self.config or default_config(self.plan.sites[0].columns)
        )


def load_candidates(run: RunDirectory, plan_ids: Sequence[str]) -> dict[str, Candidate]:
    """The named plans of a run, checked again."""
    return {plan_id: Candidate(run.plan(plan_id)) for plan_id in plan_ids}


def generate(candidates: Mapping[str, Candidate], folder: Path, emit: Emit) -> None:
    """Write every plan's source anew."""
    for item in _alive(candidates):
        try:
            item.source, item.path = write_source(item.plan, folder)
            item.config = default_config(item.plan.sites[0].columns) if item.plan.sites else None
        except IllegalFusionError as error:
            item.refused = f"no kernel can be generated: {error.what}"
        if item.source is not None:
            emit("generate", "running", plan=item.plan.id, value=len(item.source.text.splitlines()),
                 message=f"{item.plan.title}: {len(item.source.text.splitlines())} lines of Triton")  # fmt: skip


def size(
    candidates: Mapping[str, Candidate], gpus: Sequence[Gpu], here: Gpu | None, emit: Emit
) -> None:
    """Compile for every GPU without one; configurations that spill on this machine's GPU are dropped."""
    for item in _alive(candidates):
        assert item.path is not None and item.source is not None and item.config is not None
        site = item.plan.sites[0]
        configs = candidate_configs(site.columns) if here is not None else (item.config,)
        requests = [_request(item, config) for config in configs]
        try:
            rows = resources_of(requests, [here] if here is not None else gpus)
            shown = (
                rows[0] if here is None else resources_of([_request(item, item.config)], gpus)[0]
            )
        except AdvisorError as error:
            emit("resources", "running", plan=item.plan.id, message=f"not sized: {error.line()}")
            item.usable = (item.config,)
            continue
        item.resources = tuple(shown)
        if here is not None:
            kept = [c for c, row in zip(configs, rows, strict=True) if not _spills(row[0])]
            item.usable = tuple(kept)
            if not kept:
                item.refused = f"every configuration spills registers on {here.name}"
        else:
            item.usable = (item.config,)
        emit("resources", "running", plan=item.plan.id, value=len(item.resources),
             message=f"{item.plan.title}: compiled for {', '.join(row.gpu for row in item.resources)}")  # fmt: skip


def _spills(row: KernelResources) -> bool:
    return (
        row.error is not None
        or (row.spill_store_bytes or 0) + (row.spill_load_bytes or 0) > TOLERATED_SPILL_BYTES
    )


def _request(item: Candidate, config: LaunchConfig) -> ResourceRequest:
    plan, site = item.plan, item.plan.sites[0]
    assert item.path is not None and item.source is not None
    scalars = abi.scalar_arguments(plan, site.row_sizes, site.columns, site.input_strides)
    aligned = (
        *abi.tensor_names(plan),
        *(name for name, value in scalars.items() if value % 16 == 0),
    )
    return ResourceRequest(
        source=str(item.path),
        kernel=item.source.kernel,
        signature={n: t for n, t in abi.triton_signature(plan).items() if t != "constexpr"},
        constexprs=dict(abi.constexpr_arguments(config, site.rows, site.columns)),
        aligned=aligned,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        config=config.label(),
    )


def check_regions(
    candidates: Mapping[str, Candidate], captured: Capture, device: torch.device, emit: Emit
) -> None:
    """Run every plan against the region of the freshly captured graph that it claims to replace."""
    graphs = {item.lowered.graph.id: item.lowered for item in captured.graphs}
    for item in _alive(candidates):
        site = item.plan.sites[0] if item.plan.sites else None
        lowered = graphs.get(site.graph) if site is not None else None
        if site is None or lowered is None:
            item.refused = "its graph is not captured any more: profile again"
        else:
            why = region_disagreement(item.plan, site, lowered.fx_node, device)
            item.refused = f"the plan is not what it would replace: {why}" if why else None
        emit(
            "verify",
            "running",
            plan=item.plan.id,
            message=f"{item.plan.title}: {item.refused or 'equals its region in float64'}",
        )


def verify(
    candidates: Mapping[str, Candidate], run: RunDirectory, device: torch.device, emit: Emit
) -> None:
    """Numerics of every kernel, in a process of its own."""
    for item in _alive(candidates):
        assert item.path is not None and item.config is not None
        item.numerics = verify_numerics(
            run.plans_path / f"{item.plan.id}.json",
            item.path,
            device=device.type,
            config=item.config,
        )
        failed = [case for case in item.numerics.cases if not case.passed]
        if failed:
            item.refused = f"numerics: {failed[0].name}: {failed[0].detail}"
        worst = max((case.max_error_ulps or 0.0 for case in item.numerics.cases), default=0.0)
        text = (
            item.refused
            or f"{len(item.numerics.cases)} cases pass on the {item.numerics.executed_on}, at most {worst:.2f} ulps"
        )
        emit(
            "verify",
            "running",
            plan=item.plan.id,
            value=worst,
            message=f"{item.plan.title}: {text}",
        )


def time(
    candidates: Mapping[str, Candidate], record: KernelRecorder, device: torch.device, emit: Emit
) -> None:
    """Choose each kernel's configuration and time it against the same ops run otherwise."""
    for item in _alive(candidates):
        assert item.path is not None
        item.config = best_config(item.plan, str(item.path), record, device, item.usable)
        moved = site_bytes(item.plan, item.plan.sites[0])
        result = time_kernel(item.plan, str(item.path), item.config, record, device, moved)
        item.timings.append(result)
        emit("time", "running", plan=item.plan.id, value=result.kernel.median_ns,
             message=f"{item.plan.title}: {format_ns(result.kernel.median_ns)}, {100 * (result.copy_bandwidth_fraction or 0):.0f} %"
             f" of a copy of the same bytes ({item.config.label()})")  # fmt: skip


def _alive(candidates: Mapping[str, Candidate]) -> list[Candidate]:
    return [item for item in candidates.values() if item.refused is None]
