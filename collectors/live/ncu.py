"""One step of a workload under Nsight Compute, in a process of its own.

ncu runs every kernel several times, so nothing is timed there: it counts DRAM and local traffic and
measures occupancy. Clocks are left alone (`--clock-control none`): locking them needs privileges.
Whatever stands in the way is one line of the report, and the profile goes on. On a full disk what
is there of the counters is cut anywhere: it is removed, which leaves room for the report.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from advisor.errors import StorageError, UnreadableError
from advisor.model.base import Warning_
from advisor.model.counters import CounterFile
from collectors.ncu import read_ncu

METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "gpu__time_duration.sum",
    "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum",
    "smsp__sass_inst_executed_op_local_ld.sum",
    "smsp__sass_inst_executed_op_local_st.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
)
SECTIONS = ("LaunchStats", "Occupancy")
TIMEOUT_S = 900
PERMISSION = "ERR_NVGPUCTRPERM"
# Where the installers put ncu without adding it to the path.
_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
_WORDS = ("==ERROR==", "Error")


def find_ncu(environment: Mapping[str, str] = os.environ) -> str | None:
    """The ncu to run, from the path or where CUDA installs it."""
    found = shutil.which("ncu", path=environment.get("PATH"))
    if found is not None:
        return found
    for place in map(Path, _PLACES):
        for candidate in (place / "ncu", *sorted(place.glob("*/ncu"), reverse=True)):
            if os.access(candidate, os.X_OK):
                return str(candidate)
    return None


def count_step(
    arguments: Sequence[str],
    path: Path,
    blame: Callable[[str], None],
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[CounterFile | None, tuple[Warning_, ...]]:
    """Counters of one step of `_ncu_step ARGUMENTS`, written to `path` as CSV; or why none.

    `blame` is told what was printed where anything is amiss, and raises `StorageError` if that is
    for want of a place to write.
    Never raises for what ncu, the driver, the disk or the workload refuse.
    """
    ncu = find_ncu()
    if ncu is None:
        return None, (_missing("Nsight Compute is not installed: put ncu on the path"),)
    try:
        said, status = _run(command(ncu, path, arguments), timeout_s)
    except subprocess.TimeoutExpired:
        return None, (_missing(f"ncu did not finish one step within {timeout_s:.0f} s"),)
    except OSError as error:
        return None, (_missing(f"{ncu} does not run: {error.strerror or error}"),)
    log = path.read_text(errors="replace") if path.is_file() else ""
    said = f"{log}\n{said}"
    if PERMISSION in said:
        note = (
            f"the driver keeps counters for administrators ({PERMISSION}): run as root, or load it "
            "with NVreg_RestrictProfilingToAdminUsers=0"
        )
        return None, (_missing(note),)
    counters: CounterFile | None = None
    with contextlib.suppress(UnreadableError):
        counters = read_ncu(path)
    try:
        if counters is None or counters.warnings or status:
            blame(said)
    except StorageError as error:
        path.unlink(missing_ok=True)
        return None, (_missing(error.line()),)
    if counters is None:
        return None, (_missing(f"ncu counted nothing: {_reason(said, status)}"),)
    return counters, ()


def _run(line: Sequence[str], timeout_s: float) -> tuple[str, int]:
    """(what was printed, exit status); on a timeout the program under ncu ends as well."""
    with subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return said, process.returncode


def command(ncu: str, path: Path, arguments: Sequence[str]) -> list[str]:
    """The command line: kernels between the program's own marks, as raw CSV."""
    sections = [part for name in SECTIONS for part in ("--section", name)]
    return [
        ncu,
        "--profile-from-start", "off",
        "--clock-control", "none",
        "--csv",
        "--page", "raw",
        "--log-file", str(path),
        "--metrics", ",".join(METRICS),
        *sections,
        sys.executable, "-m", "collectors.live._ncu_step",
        *arguments,
    ]  # fmt: skip


def _reason(said: str, status: int) -> str:
    """The last line that names an error, else the last line at all."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if any(word in line for word in _WORDS)]
    return (named or lines or [f"it ended with status {status}"])[-1]


def _missing(note: str) -> Warning_:
    return Warning_(code="ncu", message=f"no counters of single kernels: {note}")
