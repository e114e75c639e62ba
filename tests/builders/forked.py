"""Python programs in processes of their own, forked from one that has imported the heavy modules.

`Forked` is the parent's side; run as a script, this file is the process in the middle: it imports
the modules that its arguments name, then reads one JSON line for each program and answers with the
exit status that a shell would see.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn


class Forked:
    """Runs programs as `python PROGRAM ARGUMENTS` would; importing `modules` is paid for once."""

    def __init__(self, folder: Path, modules: Sequence[str], **environment: str) -> None:
        self.folder, self.count = folder, 0
        self.middle = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.middle.communicate()

    def run(self, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """How a program ended, and what it printed; `argv` is a file, or `-m` and a module."""
        self.count += 1
        said = [self.folder / f"{self.count}.{name}" for name in ("stdout", "stderr")]
        assert self.middle.stdin is not None
        assert self.middle.stdout is not None
        job = {"argv": argv, "cwd": str(cwd), "said": [str(path) for path in said]}
        self.middle.stdin.write(json.dumps(job) + "\n")
        self.middle.stdin.flush()
        status = int(self.middle.stdout.readline())
        return subprocess.CompletedProcess(argv, status, *(path.read_text() for path in said))


def _become(argv: list[str], cwd: str, said: list[str]) -> NoReturn:
    """Be the program, to its end."""
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    status = 0
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - what Python does at the end of a program
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Fork for every line until standard input ends."""
    del sys.path[0]  # this folder, which a program of its own would not see
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(**job)
        _, ended = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(ended)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
