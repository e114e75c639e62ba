"""The parent's side of the compiling child: start, ask with a deadline, kill, start again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

import advisor
from advisor.store.writable import blame_storage, temporary_files
from advisor.verify._resource_worker import READY, CompileJob
from advisor.verify.binaries import Usage
from advisor.verify.child import end, kill, line_of

START_LIMIT_S = 120.0
_KEPT_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
_ERROR_LINE = re.compile(r"\b(?:fatal|error)\s*:|Error\b", re.IGNORECASE)
_STDERR_TAIL_BYTES = 1 << 16


class CompileProcess:
    """A compiling child that answers one job at a time and is replaced after a crash or timeout.

    What it compiles is left in `kept`, a folder that launches look into; else nothing is.
    """

    def __init__(self, kept: Path | None = None) -> None:
        with temporary_files():
            self._folder = tempfile.TemporaryDirectory(prefix="fusion-advisor-compile-")
            self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._environment = worker_environment(os.environ, str(kept or self._folder.name))
        self._written = [("TMPDIR", Path(tempfile.gettempdir()))]
        if kept is not None:
            self._written.append(("TRITON_CACHE_DIR", kept))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CompileProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._errors.close()
        self._folder.cleanup()

    def compile(self, job: CompileJob, timeout_s: float) -> Usage | str:
        """The usage, or in words why there is none; importing Triton is not counted as time.

        Raises `StorageError` where it is for want of a place to write.
        """
        if self._process is None and (failure := self._start()) is not None:
            return failure
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            answer = line_of(process.stdout.fileno(), timeout_s)
        except (TimeoutError, BrokenPipeError) as error:
            late = isinstance(error, TimeoutError)
            self._stop()
            return f"not compiled within {timeout_s:g} s" if late else self._last_error()
        if not answer:
            self._stop()
            return self._last_error()
        return msgspec.json.decode(answer, type=Usage)

    def kill(self) -> None:
        """End the child and the assembler it may be running; a pending `compile` returns."""
        if (process := self._process) is not None:
            kill(process)

    def _start(self) -> str | None:
        self._errors.seek(0)
        self._errors.truncate()
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "advisor.verify._resource_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._folder.name,
            env=self._environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            ready = line_of(process.stdout.fileno(), START_LIMIT_S)
        except TimeoutError:
            ready = b""
        if ready == READY:
            return None
        self._stop()
        return f"the compiler process did not start: {self._last_error()}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def _last_error(self) -> str:
        """The line of the child's standard error that says most.

        Raises `StorageError` where that is of the disk.
        """
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _STDERR_TAIL_BYTES))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        lines = [line for line in lines if line and not line.startswith("Repro command")]
        blame_storage(lines[-1] if lines else "", self._written)
        if not lines:
            return "the compiler process ended without a word"
        telling = [line for line in lines if line.startswith("ptxas") and _ERROR_LINE.search(line)]
        return (telling or lines)[-1][:300]


def worker_environment(environment: Mapping[str, str], cache_folder: str) -> dict[str, str]:
    """The child's environment: no interpreter, a cache of Triton, and ptxas told to speak."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("TRITON_") or name in _KEPT_VARIABLES
    }
    root = str(Path(advisor.__file__).resolve().parents[1])
    path = [root, kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else [root]
    return kept | {
        "PYTHONPATH": os.pathsep.join(path),
        "TRITON_CACHE_DIR": cache_folder,
        # What is found compiled comes without the words of ptxas.
        "TRITON_ALWAYS_COMPILE": "1",
        "TRITON_DUMP_PTXAS_LOG": "1",
    }
