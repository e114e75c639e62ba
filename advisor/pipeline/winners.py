"""Searched configurations, kept: in a folder of the user's, beside a table that ships.

Only what was timed on a GPU is ever stored; nothing is searched offline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import advisor.hardware
from advisor.errors import AdvisorError, UnreadableError
from advisor.folders import state_folder
from advisor.hardware.gpu import Gpu
from advisor.model.applied import Applied, KernelTiming
from advisor.model.base import decode, encode
from advisor.model.configs import L2_BYTES, candidate_configs
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.winners import Winner, Winners, bucket_of, kernel_key
from advisor.store.files import make_directory, read_bounded, write_atomic

SHIPPED = Path(advisor.hardware.__file__).with_name("winners")
# Of the bandwidth of a copy: a search that came this far has little left to find, and ships.
WORTH_SHIPPING = 0.9
_MAX_WINNER_BYTES, _MAX_TABLE_BYTES = 1 << 14, 8 << 20


def winner_path(plan: FusionPlan, gpu: Gpu, folder: Path | None = None) -> Path:
    """Where the winner of a plan's first site is kept."""
    rows, columns = bucket_of(plan.sites[0])
    name = f"{kernel_key(plan)}-r{rows}-c{columns}.json"
    return (folder or state_folder() / "winners") / gpu.key / name


def stored_winner(plan: FusionPlan, gpu: Gpu, folder: Path | None = None) -> Winner | None:
    """The winner of this user, None where there is none that can be read."""
    path = winner_path(plan, gpu, folder)
    try:
        found = decode(read_bounded(path, _MAX_WINNER_BYTES), Winner, str(path))
    except AdvisorError:
        return None  # absent, or damaged: searching again is the remedy
    return found if _is_of(found, plan, gpu) else None


def shipped_winner(plan: FusionPlan, gpu: Gpu) -> Winner | None:
    """The winner in the table that ships for a GPU."""
    path = SHIPPED / f"{gpu.key}.json"
    if not path.is_file():
        return None
    table = decode(read_bounded(path, _MAX_TABLE_BYTES), Winners, str(path))
    return next((winner for winner in table.winners if _is_of(winner, plan, gpu)), None)


def known_winner(plan: FusionPlan, gpu: Gpu) -> Winner | None:
    """The user's own winner, else the one that ships."""
    return stored_winner(plan, gpu) or shipped_winner(plan, gpu)


def _is_of(winner: Winner, plan: FusionPlan, gpu: Gpu) -> bool:
    wanted = (gpu.key, kernel_key(plan), bucket_of(plan.sites[0]))
    return (winner.gpu, winner.kernel, winner.bucket) == wanted


def choices(plan: FusionPlan, gpu: Gpu, triton: str) -> tuple[LaunchConfig, ...]:
    """The configurations to size and time on a GPU, the likeliest first.

    What this user's search found with the same Triton is taken as it is; a winner of another
    version, or one that ships, goes first and the search goes on.
    """
    own = stored_winner(plan, gpu)
    if own is not None and own.triton == triton:
        return (own.config,)
    known = own or shipped_winner(plan, gpu)
    modelled = modelled_configs(plan, gpu)
    if known is None:
        return modelled
    return (known.config, *(config for config in modelled if config != known.config))


def modelled_configs(plan: FusionPlan, gpu: Gpu) -> tuple[LaunchConfig, ...]:
    """The configurations that suit a plan's first site on a GPU, by the model alone."""
    l2_bytes = gpu.l2_bytes or L2_BYTES
    return candidate_configs(plan, plan.sites[0], sm_count=gpu.sm_count, l2_bytes=l2_bytes)


def winner_of(
    plan: FusionPlan,
    gpu: Gpu,
    config: LaunchConfig,
    timing: KernelTiming,
    *,
    device: str,
    triton: str,
    created: str,
) -> Winner:
    """The record of a search that ended with `config`, timed as `timing` says."""
    return Winner(
        gpu=gpu.key,
        device=device,
        kernel=kernel_key(plan),
        bucket=bucket_of(plan.sites[0]),
        config=config,
        shape=timing.shape,
        kernel_ns=timing.kernel.median_ns,
        copy_bandwidth_fraction=timing.copy_bandwidth_fraction,
        triton=triton,
        created=created,
    )


def remember(winner: Winner, plan: FusionPlan, gpu: Gpu, folder: Path | None = None) -> Path | None:
    """Keep a winner; None where the folder cannot be written, which only costs the next search."""
    path = winner_path(plan, gpu, folder)
    with contextlib.suppress(UnreadableError):
        make_directory(path.parent, parents=True)
        write_atomic(path, encode(winner))
        return path
    return None


def winners_of_run(applied: Applied, plans: Sequence[FusionPlan], gpu: Gpu) -> list[Winner]:
    """What an application measured and is worth shipping: near a copy's bandwidth, no spill."""
    by_id = {plan.id: plan for plan in plans}
    found = []
    for verdict in applied.plans:
        plan = by_id.get(verdict.plan_id)
        if plan is None or not plan.sites or not verdict.timings:
            continue
        timing = verdict.timings[0]
        spilled = any(row.gpu == gpu.key and row.spill_store_bytes for row in verdict.resources)
        if spilled or (timing.copy_bandwidth_fraction or 0.0) < WORTH_SHIPPING:
            continue
        found.append(
            winner_of(
                plan,
                gpu,
                verdict.configuration,
                timing,
                device=applied.device,
                triton=applied.versions.get("triton", "unknown"),
                created=applied.created,
            )
        )
    return found
