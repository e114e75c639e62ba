"""The plans of a run made ready: generated, sized, checked against their region, verified, timed.

Each step may refuse a plan, with the reason; a refused plan goes no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from advisor.apply.kernels import ReadyKernel, load_kernel, write_source
from advisor.codegen import KernelSource
from advisor.errors import AbortedError, AdvisorError, IllegalFusionError
from advisor.folders import triton_cache
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.applied import KernelResources, KernelTiming, Numerics
from advisor.model.attempt import ReadyPlan
from advisor.model.configs import default_config
from advisor.model.gemm import product_flops
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.run import Emit
from advisor.model.site_work import site_bytes
from advisor.pipeline.facts import now
from advisor.pipeline.sizing import needs_most, requests, scheme_source, spills
from advisor.pipeline.winners import choices, modelled_configs, remember, winner_of
from advisor.store import RunDirectory
from advisor.units import counted, format_fraction, format_ns
from advisor.verify.numerics import NumericsPool
from advisor.verify.region import region_disagreement
from advisor.verify.resources import resources_of
from advisor.verify.timing_process import TimingProcess, TimingRequest
from advisor.verify.toolchain import triton_version
from collectors.live.capture import Capture
from collectors.live.fx_graph import Lowered

SHOWN_GPUS = ("a100", "h200", "b200", "rtx4090", "mi300x")
# Verification processes at once: each holds a CUDA context or an interpreter.
MOST_VERIFIERS = 8
# Whether the time for an application is used up.
Late = Callable[[], bool]


def never() -> bool:
    """An application without a limit is never late."""
    return False


@dataclass
class Candidate:
    """One plan on its way: what is known of it so far, and why it was refused, if it was.

    `source` and `path` are those of `config`; `verified` is the configuration that `numerics` is
    about. A `postponed` plan was not looked at for want of time; one that is `known` was by an
    application that this one continues; one that is `ready_now` has been through all stages.
    """

    plan: FusionPlan
    source: KernelSource | None = None
    path: Path | None = None
    config: LaunchConfig | None = None
    usable: tuple[LaunchConfig, ...] = ()
    numerics: Numerics | None = None
    verified: LaunchConfig | None = None
    resources: tuple[KernelResources, ...] = ()
    timings: list[KernelTiming] = field(default_factory=list)
    refused: str | None = None
    postponed: bool = False
    known: bool = False
    ready_now: bool = False

    @property
    def is_known(self) -> bool:
        """Whether a later application need not look at it again."""
        return self.known or self.ready_now or (self.refused is not None and not self.postponed)

    def ready(self, folder: Path) -> ReadyKernel:
        """The kernel bound to the chosen configuration."""
        config = self.config or default_config(self.plan, self.plan.sites[0])
        return load_kernel(self.plan, folder, config)

    def choose(self, config: LaunchConfig, folder: Path) -> None:
        """Write the source of a configuration as the plan's kernel."""
        self.source, self.path = write_source(self.plan, folder, config.scheme)
        self.config = config

    def restore(self, found: ReadyPlan) -> None:
        """Take up what an earlier application found out."""
        self.refused, self.config, self.numerics = found.refused, found.launch, found.numerics
        self.verified, self.resources = found.launch, found.resources
        self.timings, self.known = list(found.timings), True

    def record(self) -> ReadyPlan:
        """What a later application can go on from."""
        return ReadyPlan(
            plan_id=self.plan.id,
            refused=self.refused,
            launch=self.config,
            numerics=self.numerics,
            resources=self.resources,
            timings=tuple(self.timings),
        )


class _Generated(NamedTuple):
    """A candidate that nothing has refused yet, with what `generate` made of it."""

    item: Candidate
    source: KernelSource
    path: Path
    config: LaunchConfig


def load_candidates(run: RunDirectory, plan_ids: Sequence[str]) -> dict[str, Candidate]:
    """The named plans of a run, checked again."""
    return {plan_id: Candidate(run.plan(plan_id)) for plan_id in plan_ids}


def generate(candidates: Mapping[str, Candidate], folder: Path, emit: Emit) -> None:
    """Write every plan's source anew."""
    for item in _alive(candidates):
        plan = item.plan
        if not plan.sites:
            item.refused = "it has no site"
            continue
        try:
            item.choose(item.config or default_config(plan, plan.sites[0]), folder)
        except IllegalFusionError as error:
            item.refused = f"no kernel can be generated: {error.what}"
            continue
        lines = len(item.source.text.splitlines()) if item.source else 0
        message = f"{plan.title}: {lines} lines of Triton"
        emit("generate", "running", plan=plan.id, value=lines, message=message)


def size(
    candidates: Mapping[str, Candidate],
    gpus: Sequence[Gpu],
    here: Gpu | None,
    emit: Emit,
    late: Late = never,
) -> None:
    """Compile for GPUs, present or not; drop configurations that spill on the one `here`."""
    for made in _in_time(candidates, late):
        item, plan = made.item, made.item.plan
        item.usable = (made.config,)
        try:
            if here is not None:
                item.usable = _worth_timing(plan, here)
                _avoid_spills(item, made.path.parent)
            item.resources = _resources(item, gpus)
        except AbortedError:
            raise
        except AdvisorError as error:
            item.usable = (made.config,)
            emit("resources", "running", plan=plan.id, message=f"not sized: {error.line()}")
            continue
        if here is not None and not item.usable:
            item.refused = f"every configuration spills registers on {here.name}"
        shown = ", ".join(row.gpu for row in item.resources)
        message = f"{plan.title}: compiled for {shown}"
        emit("resources", "running", plan=plan.id, value=len(item.resources), message=message)


def size_elsewhere(candidates: Mapping[str, Candidate], gpus: Sequence[Gpu], emit: Emit) -> None:
    """Add the resources on other GPUs to those on the one that is present."""
    for made in _generated(candidates):
        item = made.item
        known = {row.gpu for row in item.resources}
        try:
            item.resources += _resources(item, [gpu for gpu in gpus if gpu.key not in known])
        except AbortedError:
            raise
        except AdvisorError as error:
            message = f"not sized elsewhere: {error.line()}"
            emit("resources", "running", plan=item.plan.id, message=message)


def _avoid_spills(item: Candidate, folder: Path) -> None:
    """Take the likeliest configuration that fits where the first one does not."""
    if item.usable and item.config not in item.usable:
        item.choose(item.usable[0], folder)


def _resources(item: Candidate, gpus: Sequence[Gpu]) -> tuple[KernelResources, ...]:
    """A row per GPU for the chosen configuration: of its kernels, the one that needs most."""
    if item.config is None:
        return ()
    rows = resources_of(requests(item.plan, item.config), gpus)
    return tuple(max(of_gpu, key=needs_most) for of_gpu in zip(*rows, strict=True))


def _worth_timing(plan: FusionPlan, here: Gpu) -> tuple[LaunchConfig, ...]:
    """What an earlier search found, else what to search; none of it spills."""
    known = without_spills(plan, here, choices(plan, here, triton_version()))
    return known or without_spills(plan, here)


def without_spills(
    plan: FusionPlan, here: Gpu, configs: Sequence[LaunchConfig] | None = None
) -> tuple[LaunchConfig, ...]:
    """The configurations (by default all that the model thinks of) none of whose kernels spills."""
    configs = modelled_configs(plan, here) if configs is None else configs
    wanted = [requests(plan, config) for config in configs]
    flat = [one for group in wanted for one in group]
    rows = iter(resources_of(flat, [here], launched=triton_cache()))
    fits = [not any(spills(next(rows)[0]) for _ in group) for group in wanted]
    return tuple(config for config, fit in zip(configs, fits, strict=True) if fit)


def check_regions(
    candidates: Mapping[str, Candidate], captured: Capture, device: torch.device, emit: Emit
) -> None:
    """Run every plan against the region of the freshly captured graph that it claims to replace."""
    graphs = {item.lowered.graph.id: item.lowered for item in captured.graphs}
    for item in _alive(candidates):
        item.refused = _first_disagreement(item.plan, graphs, device)
        message = f"{item.plan.title}: {item.refused or 'equals its regions in float64'}"
        emit("verify", "running", plan=item.plan.id, message=message)


def _first_disagreement(
    plan: FusionPlan, graphs: Mapping[str, Lowered], device: torch.device
) -> str | None:
    """Why the plan is not what some site of it would replace: each was lowered from its own ops."""
    for site in plan.sites:
        lowered = graphs.get(site.graph)
        if lowered is None:
            return "its graph is not captured any more: profile again"
        why = region_disagreement(plan, site, lowered.fx_aliases, device)
        if why:
            return f"the plan is not what it would replace: {why}"
    return None


def verify(
    candidates: Mapping[str, Candidate],
    run: RunDirectory,
    pool: NumericsPool,
    emit: Emit,
    late: Late = never,
) -> None:
    """Numerics of every kernel in its present configuration; what one does costs no other."""
    waiting = [made for made in _generated(candidates) if made.item.verified != made.config]

    def check(made: _Generated) -> Numerics | None:
        with pool.one() as process:
            if late():
                return None
            plan_file = run.plans_path / f"{made.item.plan.id}.json"
            return process.verify(plan_file, made.path, made.config)

    with ThreadPoolExecutor(max_workers=len(pool)) as threads:
        for made, numerics in zip(waiting, threads.map(check, waiting), strict=True):
            if numerics is None:
                made.item.postponed = True
            else:
                _take_numerics(made, numerics, emit)


def _take_numerics(made: _Generated, numerics: Numerics, emit: Emit) -> None:
    item, plan = made.item, made.item.plan
    item.numerics, item.verified = numerics, made.config
    failed = [case for case in numerics.cases if not case.passed]
    if failed:
        item.refused = f"numerics ({made.config.label()}): {failed[0].name}: {failed[0].detail}"
    errors = [case.max_error_ulps for case in numerics.cases if case.max_error_ulps is not None]
    worst = max(errors, default=None)
    passed = f"{counted(len(numerics.cases), 'case')} passed on the {numerics.executed_on}"
    if worst is not None:
        passed += f", at most {worst:.2f} ulps"
    message = f"{plan.title}: {item.refused or passed}"
    emit("verify", "running", plan=plan.id, value=worst, message=message)


def time(
    candidates: Mapping[str, Candidate],
    run: RunDirectory,
    process: TimingProcess,
    emit: Emit,
    late: Late = never,
) -> None:
    """Choose each kernel's configuration and time it against the same ops run otherwise.

    In a process of their own: a configuration that crashes or never ends costs its plan alone.
    """
    for made in _in_time(candidates, late):
        try:
            _time(made, run, process, emit)
            _keep_winner(made.item)
        except IllegalFusionError as error:
            made.item.refused = error.what
            message = f"{made.item.plan.title}: {error.what}"
            emit("time", "running", plan=made.item.plan.id, message=message)


def _time(made: _Generated, run: RunDirectory, process: TimingProcess, emit: Emit) -> None:
    item, plan = made.item, made.item.plan
    answer = process.time(
        TimingRequest(
            plan=str(run.plans_path / f"{plan.id}.json"),
            sources={s: str(scheme_source(plan, s)) for s in {c.scheme for c in item.usable}},
            usable=item.usable,
            bytes_moved=site_bytes(plan, plan.sites[0]),
        )
    )
    config, result = answer.config, answer.timing
    if config != made.config:
        item.choose(config, made.path.parent)
        _size_again(item, emit)
    item.timings.append(result)
    taken = result.kernel.median_ns
    message = f"{plan.title}: {format_ns(taken)}, {_speed(plan, result)} ({config.label()})"
    emit("time", "running", plan=plan.id, value=taken, message=message)


def _speed(plan: FusionPlan, result: KernelTiming) -> str:
    """How fast a kernel is, by what it is bound by."""
    if plan.product is None:
        share = format_fraction(result.copy_bandwidth_fraction)
        return f"{share} of the bandwidth of a copy of the same bytes"
    rate = product_flops(plan.sites[0]) / max(result.kernel.median_ns, 1) / 1e3
    other = f", compiled {format_ns(result.inductor.median_ns)}" if result.inductor else ""
    return f"{rate:.0f} TFLOP/s{other}"


def _keep_winner(item: Candidate) -> None:
    """The end of a search is where the next one starts."""
    gpu = find_gpu(name := torch.cuda.get_device_name())
    if gpu is None or item.config is None or len(item.usable) < 2:
        return
    winner = winner_of(
        item.plan,
        gpu,
        item.config,
        item.timings[-1],
        device=name,
        triton=triton_version(),
        created=now(),
    )
    remember(winner, item.plan, gpu)


def _size_again(item: Candidate, emit: Emit) -> None:
    """The resources of the configuration that won, on the GPUs of the one that was sized first."""
    gpus = [gpu_by_key(row.gpu) for row in item.resources]
    try:
        item.resources = _resources(item, gpus)
    except AbortedError:
        raise
    except AdvisorError as error:
        item.resources = ()
        emit("resources", "running", plan=item.plan.id, message=f"not sized: {error.line()}")


def _alive(candidates: Mapping[str, Candidate]) -> list[Candidate]:
    return [item for item in candidates.values() if item.refused is None and not item.postponed]


def _generated(candidates: Mapping[str, Candidate]) -> Iterator[_Generated]:
    for item in _alive(candidates):
        if item.source is not None and item.path is not None and item.config is not None:
            yield _Generated(item, item.source, item.path, item.config)


def _in_time(candidates: Mapping[str, Candidate], late: Late) -> Iterator[_Generated]:
    """Those of which nothing is known yet, as long as there is time."""
    for made in _generated(candidates):
        if made.item.known:
            continue
        if late():
            made.item.postponed = True
            continue
        yield made
