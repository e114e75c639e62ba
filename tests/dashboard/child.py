"""A real job child in the place of `fusion-advisor apply`: `main(MODE, KIND, RUN_DIR, *ONLY)`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from advisor.store import ProgressWriter, RunDirectory
from tests.builders.run_applied import applied_of
from tests.builders.run_plan import KERNEL

STAGES = ("load", "generate", "resources", "verify", "time", "rewrite", "measure", "decide")


def main(mode: str, kind: str, directory: str, *only: str) -> int:
    """Write the events of a job; MODE says how it ends and how long each stage takes."""
    run = RunDirectory.at(Path(directory))
    sys.stdout.write(f"{mode} {kind} of {run.id} {' '.join(only)}\n")
    pause_s = 0.35 if mode == "slow" else 0.02
    with ProgressWriter(run.progress_path, "job") as progress:
        if kind == "revert":
            run.remove_applied()
            progress.emit("done", "done", message="The run is as it was profiled.")
            return 0
        for stage in STAGES:
            progress.emit(stage, "running", message=f"working on {stage}")
            time.sleep(pause_s)
            if mode == "hang" and stage == "verify":
                time.sleep(120)
            if mode == "die" and stage == "verify":
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "exit" and stage == "verify":
                sys.stdout.write("something went wrong here\n")
                return 3
            progress.emit(stage, "done", value=f"{len(stage)} things", message=f"{stage} finished")
        plan_id = run.plan_ids()[0]
        run.write_kernel(plan_id, KERNEL)
        run.write_applied(applied_of(run.plan(plan_id)))
        progress.emit("done", "done", message="1 of 1 plans kept: the step is faster by 1.29 ms.")
    return 0
