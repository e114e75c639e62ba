"""Python programs in processes of their own, forked from one that has imported the heavy modules.

`Forked` is the parent's side; run as a script, this file is the process in the middle: it imports
the modules that its arguments name, then forks for every program that it is asked for. What it
forks is orphaned at once, and so becomes a child of the process that asked: signals, statuses and
process groups are those of an ordinary child. `Here` forks from the process that asks, for one that
was forked itself.
"""

from __future__ import annotations

import array
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
REQUEST_BYTES = 1 << 18
DESCRIPTORS = 16
# Beyond whatever numbers a program was promised for its descriptors.
SPARE = 1000


class Forking:
    """Starts Python programs by a fork."""

    environment: Mapping[str, str] = {}

    def start(self, job: dict[str, Any], descriptors: Sequence[int]) -> int:
        """The number of the process that is a new program, with these for its places."""
        raise NotImplementedError

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` of a Python program, with the options of the same names."""
        return _Popen(self, argv, options)

    @property
    def module(self) -> Any:
        """Stands for the module `subprocess` in one that starts Python programs."""
        names = ("PIPE", "STDOUT", "DEVNULL", "TimeoutExpired")
        same = {name: getattr(subprocess, name) for name in names}
        return SimpleNamespace(Popen=self.popen, **same)


class Here(Forking):
    """Forks from this process, which should have no other threads."""

    def start(self, job: dict[str, Any], descriptors: Sequence[int]) -> int:
        child = os.fork()
        if child == 0:
            moved = [os.dup2(fd, SPARE + n, inheritable=False) for n, fd in enumerate(descriptors)]
            os.closerange(3, SPARE)  # as a new program would find them closed
            _become(**job, descriptors=moved)
        return child


class Forked(Forking):
    """Runs programs as `python ARGUMENTS` would; importing `modules` is paid for once.

    `popen` starts the process in the middle: forked from `Here` it has what is imported here.
    """

    def __init__(
        self,
        modules: Sequence[str],
        popen: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
        **environment: str,
    ) -> None:
        self.environment = environment
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.one_at_a_time = threading.Lock()
        self.asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.middle = popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env=os.environ | environment,
                pass_fds=(theirs.fileno(),),
            )

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.asking.close()
        self.middle.wait()

    def run(self, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """How a program ended, and what it printed; `argv` is a file, or `-m` and a module."""
        with self.popen(
            [sys.executable, *argv],
            cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            out, err = child.communicate()
            return subprocess.CompletedProcess(argv, child.returncode, out, err)

    def start(self, job: dict[str, Any], descriptors: Sequence[int]) -> int:
        told = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self.one_at_a_time:
            self.asking.sendmsg([json.dumps(job).encode()], told)
            return int(self.asking.recv(64))


class _Popen(subprocess.Popen[Any]):
    """A child that was forked."""

    def __init__(self, forking: Forking, argv: Sequence[str], options: dict[str, Any]) -> None:
        self.forking, self.session = forking, options.get("start_new_session", False)
        super().__init__(argv, **options)

    def _execute_child(  # type: ignore[no-untyped-def]  # as Python 3.10 to 3.13 call it
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
        creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
    ) -> None:  # fmt: skip
        places = {0: p2cread, 1: c2pwrite, 2: errwrite} | {fd: fd for fd in pass_fds}
        places = {place: fd for place, fd in places.items() if fd != -1}
        environment = (os.environ if env is None else env) | self.forking.environment
        job = {
            "argv": list(args[1:]),
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": dict(environment),
            "places": list(places),
            "session": self.session,
            "interruptible": signal.getsignal(signal.SIGINT) != signal.SIG_IGN,
        }
        self.pid = self.forking.start(job, list(places.values()))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def _become(
    argv: list[str],
    cwd: str,
    environment: Mapping[str, str],
    places: list[int],
    session: bool,
    interruptible: bool,
    descriptors: Sequence[int],
) -> NoReturn:
    """Be the program, to its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handler = signal.default_int_handler if interruptible else signal.SIG_IGN
    signal.signal(signal.SIGINT, handler)
    if session:
        os.setsid()
    for place, descriptor in zip(places, descriptors, strict=True):
        os.dup2(descriptor, place, inheritable=True)
    os.closerange(SPARE, SPARE + DESCRIPTORS + 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=bool(environment.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    status = 0
    try:
        _run(argv)
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


def _run(argv: list[str]) -> None:
    """What `python` does with its arguments."""
    folders = {"-c": "", "-m": str(Path.cwd())}
    sys.path.insert(0, folders.get(argv[0], str(Path(argv[0]).resolve().parent)))
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    elif argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


def _orphan(job: dict[str, Any], descriptors: Sequence[int]) -> int:
    """The number of a new process whose parent is gone: the process that asked adopts it."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        asked = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.close(writing)
            while os.getppid() == asked:  # a program may ask to end with its parent
                time.sleep(0.0005)
            _become(**job, descriptors=descriptors)
        os.write(writing, str(child).encode())
        os._exit(0)
    os.waitpid(between, 0)
    number = int(os.read(reading, 64))
    os.close(reading)
    os.close(writing)
    return number


def main() -> None:
    """Fork for every request until the other end of the socket is closed."""
    asked = socket.socket(fileno=os.dup2(int(sys.argv[1]), SPARE + DESCRIPTORS, inheritable=False))
    os.close(int(sys.argv[1]))
    del sys.path[0]  # this folder, which a program of its own would not see
    for name in sys.argv[2:]:
        importlib.import_module(name)
    while True:
        data, received, _, _ = socket.recv_fds(asked, REQUEST_BYTES, DESCRIPTORS)
        if not data:
            return
        moved = [os.dup2(fd, SPARE + n, inheritable=False) for n, fd in enumerate(received)]
        for descriptor in received:
            os.close(descriptor)
        asked.send(str(_orphan(json.loads(data), moved)).encode())
        for descriptor in moved:
            os.close(descriptor)


if __name__ == "__main__":
    main()
