"""Processes that outlive the server: who they are, whether they live, how they end (Linux)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from advisor.store.jobrecord import ProcessIdentity

_PROC = Path("/proc")


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a running process, None if there is none of this number."""
    fields = _stat_fields(pid)
    if fields is None:
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]), boot_id=_boot_id())


def is_alive(process: ProcessIdentity) -> bool:
    """True while this very process runs: not a later one of its number, not a zombie."""
    fields = _stat_fields(process.pid)
    if fields is None or fields[0] in ("Z", "X"):
        return False
    return int(fields[19]) == process.start_ticks and _boot_id() == process.boot_id


def signal_group(process: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal to the process and everything it started in its own group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def describe_exit(status: int | None) -> str:
    """How a process ended, from `Popen.returncode`: `signal 9 (SIGKILL)`, `exit status 3`."""
    if status is None:
        return "exit status unknown, since another server process started it"
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
    return f"signal {-status} ({name})"


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` from the third (state) on; the second may hold brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
