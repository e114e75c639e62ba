"""A realistic run on disk: two opportunities, a regression, a plan with nine sites, its proof."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from advisor.model.run import RunInfo
from advisor.store import RunDirectory, RunStore, sign
from tests.builders.run_applied import applied_of
from tests.builders.run_plan import CREATED, KERNEL, norm_plan
from tests.builders.run_report import report_of

TARGET = "zoo_models.py:llama_prefill"


def info_of(run: RunDirectory, target: str) -> RunInfo:
    """How the run was made, not yet signed."""
    return RunInfo(
        id=run.id,
        created=CREATED,
        target=target,
        arguments=("profile", target),
        working_directory=str(Path.cwd()),
        mode="eager",
        gpu="h200",
        gpu_present=True,
        seed=0,
        versions={"torch": "2.13.0"},
    )


def sample_run(
    store: RunStore,
    *,
    applied: bool = True,
    signed: bool = True,
    title: str = "RMS norm written in pieces",
    target: str = TARGET,
    when: datetime | None = None,
) -> RunDirectory:
    """Write a whole run into the store."""
    plan = norm_plan()
    run = store.create("llama_prefill", when=when)
    run.write_plan(plan)
    run.write_report(report_of(plan, title, target))
    run.write_info(info_of(run, target))
    if signed:
        sign(run)
    if applied:
        run.write_kernel(plan.id, KERNEL)
        run.write_applied(applied_of(plan))
    return run
