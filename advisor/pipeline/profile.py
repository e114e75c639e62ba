"""`profile`: run a workload once, clean and traced, and say what to fuse. Read it top to bottom."""

from __future__ import annotations

import os
from functools import partial
from typing import NoReturn

import torch
from msgspec.structs import replace

from advisor.errors import UnreadableError, UsageError, WorkloadError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.hardware.learned import learned_residuals
from advisor.model.base import Warning_
from advisor.model.report import Report
from advisor.pipeline.counters import count_kernels
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.profile_report import advise_on, save, save_unfinished
from advisor.pipeline.profile_script import Abandon, record_script
from advisor.pipeline.ranks import rank_here
from advisor.pipeline.recording import MODE_NEEDS_GPU, Announce, Recording, record_workload
from advisor.pipeline.storage import blame_error
from advisor.store import RunDirectory
from collectors.live.target import is_script

__all__ = ["ProfileOptions", "choose_gpu", "profile"]

DEFAULT_GPU = "h200"


def _leave(error: WorkloadError) -> NoReturn:
    os.write(2, f"error: {error.line()}\n".encode())
    os._exit(error.exit_code)


def profile(
    options: ProfileOptions, run: RunDirectory, announce: Announce, abandon: Abandon = _leave
) -> Report:
    """Record a workload into an empty run directory and return its report.

    Raises `WorkloadError` if the workload fails, `UsageError` for a bad target or GPU name,
    `InvalidRecordError` for damaged figures of a GPU, before it records, `StorageError` where
    compiler, profiler or run have no place to write. What was learnt until a workload failed is
    then in the run, marked as incomplete. `abandon` ends the process of a script that cannot be
    stopped.
    """
    recording = _begin(options)
    failed: WorkloadError | None = None
    try:
        keep = partial(save_unfinished, recording, run)
        if is_script(options.target):
            record_script(recording, run, announce, keep, abandon)
        else:
            record_workload(recording, run, announce, keep)
        if options.ncu:
            announce("ncu", "counting the traffic of single kernels")
            count_kernels(recording, run)
    except (WorkloadError, UnreadableError, OSError) as error:
        blame_error(error, run.path)
        if not isinstance(error, WorkloadError) or not recording.worth_keeping:
            raise
        failed = error
    announce("analyze", "looking for what can be fused")
    advice = advise_on(recording)
    report = save(recording, advice, run, failed)
    if failed is not None:
        raise failed
    return report


def _begin(options: ProfileOptions) -> Recording:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rank = rank_here()
    if rank is not None and rank.local < torch.cuda.device_count():
        torch.cuda.set_device(rank.local)
    gpu, warnings = _gpu(options.gpu, device)
    # Prices rest on both: what is damaged is told before anything is recorded.
    load_calibration(gpu)
    learned_residuals(gpu)
    if device.type == "cpu" and options.mode != "eager":
        warnings.append(Warning_(code="mode-needs-gpu", message=MODE_NEEDS_GPU))
        options = replace(options, mode="eager")
    return Recording(options, device, gpu, warnings)


def _gpu(name: str | None, device: torch.device) -> tuple[Gpu, list[Warning_]]:
    """The GPU that prices are for: the one named, the one present, or the default."""
    here = torch.cuda.get_device_name() if device.type == "cuda" else None
    return choose_gpu(name, here)


def choose_gpu(name: str | None, here: str | None) -> tuple[Gpu, list[Warning_]]:
    """The GPU to price for, from `--gpu` and the device's name (None without one).

    A device that the table does not know is priced as another only if the user names that one.
    """
    present = find_gpu(here) if here is not None else None
    if name is not None:
        gpu = gpu_by_key(name)
        if present is not None and present != gpu:
            raise UsageError(
                f"--gpu {name} is not the GPU of this machine",
                remedy="leave it out: measured beats modelled",
            )
        if here is not None and present is None:
            note = f"{here} is not in the GPU table; modelled figures are those of {gpu.name}"
            return gpu, [Warning_(code="gpu-unknown", message=note)]
        return gpu, []
    if present is not None:
        return present, []
    if here is not None:
        raise UsageError(
            f"{here} is not in the GPU table",
            remedy="name the GPU of the table that comes nearest with --gpu",
        )
    note = f"no --gpu given; prices are for {DEFAULT_GPU}"
    return gpu_by_key(DEFAULT_GPU), [Warning_(code="gpu-assumed", message=note)]
