"""A fusion op by op: what each costs in registers, spills and occupancy, and where it tips over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from advisor.codegen.families import site_launches
from advisor.errors import IllegalFusionError
from advisor.hardware.gpu import Gpu
from advisor.model.applied import KernelResources
from advisor.model.configs import default_config, schemes_of
from advisor.model.halves import halves
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.prefix import prefix
from advisor.model.resources import Cliff, CliffPoint
from advisor.model.site_work import equation
from advisor.pipeline.facts import TOOL
from advisor.pipeline.sizing import judged, needs_most, requests, spilled_bytes
from advisor.units import format_bytes, format_fraction
from advisor.verify.resources import ResourceRequest, resources_of

# What requests need on the one GPU, a row each.
Sized = Callable[[Sequence[ResourceRequest]], Sequence[Sequence[KernelResources]]]


def cliff_of(
    plan: FusionPlan,
    gpu: Gpu,
    config: LaunchConfig,
    *,
    timeout_s: float = 60.0,
    cache: Path | None = None,
) -> Cliff:
    """The first 1, 2, … ops of a plan, each as a kernel launched as `config` says.

    Where the first ops have no form of the configuration's scheme, the nearest one that they have
    is taken; each point says which. Raises `IllegalFusionError` for a plan without a site.
    """
    if not plan.sites:
        raise IllegalFusionError(
            f"plan {plan.id} has no site: nothing says how large its tensors are"
        )
    sized = partial(resources_of, gpus=[gpu], timeout_s=timeout_s, cache=cache)
    points = _points(plan, gpu, config, sized)
    falls_at = _falls_at(points)
    cut = _cut(plan, points, falls_at)
    rest = None
    if cut is not None:
        rows = sized(requests(cut[1], _suited(cut[1], config)))
        rest = max((row for (row,) in rows), key=needs_most)
    return Cliff(
        tool=TOOL,
        plan_id=plan.id,
        title=plan.title,
        gpu=gpu.key,
        config=config.label(),
        points=tuple(points),
        falls_at=falls_at,
        split_after=cut[0] if cut is not None else None,
        rest=rest,
    )


def _points(plan: FusionPlan, gpu: Gpu, config: LaunchConfig, sized: Sized) -> list[CliffPoint]:
    """A point for every number of first ops that are a kernel; all are compiled together."""
    parts = [(count, prefix(plan, count)) for count in range(1, len(plan.ops) + 1)]
    kernels = [(count, part) for count, part in parts if part is not None]
    configs = [_suited(part, config) for _, part in kernels]
    wanted = [requests(part, one) for (_, part), one in zip(kernels, configs, strict=True)]
    rows = iter(sized([request for group in wanted for request in group]))
    points: list[CliffPoint] = []
    for (count, part), one, group in zip(kernels, configs, wanted, strict=True):
        row = max((next(rows)[0] for _ in group), key=needs_most)
        verdict, why = judged(row, gpu, part, one)
        op = plan.ops[count - 1]
        points.append(
            CliffPoint(
                ops=count,
                op=f"{op.name} = {equation(op)}",
                inputs=len(part.inputs),
                outputs=len(part.outputs),
                resources=row,
                verdict=verdict,
                why=why,
                loss=_loss(points[-1].resources, row) if points else "",
            )
        )
    return points


def _cut(
    plan: FusionPlan, points: Sequence[CliffPoint], falls_at: int | None
) -> tuple[int, FusionPlan] | None:
    """The last point before the fall after which a kernel of the other ops exists, and its plan."""
    before = [point.ops for point in points if falls_at is not None and point.ops < falls_at]
    for count in reversed(before):
        found = halves(plan, count)
        if found is not None:
            return count, found[1]
    return None


def _suited(part: FusionPlan, config: LaunchConfig) -> LaunchConfig:
    """The configuration, or what is nearest to it where the first ops have no such form."""
    plain = LaunchConfig(block_rows=config.block_rows, num_warps=config.num_warps)
    near = [config, plain]
    if config.block_columns is not None:
        near[1] = msgspec.structs.replace(
            plain,
            scheme="looped",
            block_columns=config.block_columns,
            num_stages=config.num_stages,
            unroll=config.unroll,
        )
    site = part.sites[0]
    for one in near:
        try:
            if one.scheme in schemes_of(part):
                site_launches(part, one, site)
                return one
        except IllegalFusionError:
            continue
    return default_config(part, site)


def _loss(before: KernelResources, after: KernelResources) -> str:
    """What one more op made worse: occupancy, spills."""
    words = []
    if None not in (before.occupancy, after.occupancy) and after.occupancy != before.occupancy:
        assert before.occupancy is not None
        assert after.occupancy is not None
        if after.occupancy < before.occupancy:
            limiter = (after.limiter or "").replace("_", " ")
            words.append(
                f"occupancy {format_fraction(before.occupancy)} → "
                f"{format_fraction(after.occupancy)} ({limiter})"
            )
    more = spilled_bytes(after) - spilled_bytes(before)
    if more > 0:
        words.append(f"{format_bytes(more)} more spilled a thread")
    return ", ".join(words)


def _falls_at(points: list[CliffPoint]) -> int | None:
    """The first point that is to be avoided after one that is not, and never recovers."""
    verdicts = [point.verdict for point in points]
    for place in range(1, len(points)):
        fell = verdicts[place - 1] == "use" and verdicts[place] == "avoid"
        if fell and "use" not in verdicts[place:]:
            return points[place].ops
    return None
