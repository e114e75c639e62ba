"""Children that compile and measure, each a process that may be lost, and who gives them work.

Three roles: `warm` runs a case once, so that what compiles is in the caches on disk; `size`
compiles its kernels for the resources of their binaries, without a GPU; `measure` measures. One GPU
warms, the others measure meanwhile what is ready; it joins them when all is warm or the time for
that is over, so nothing else ever runs on a GPU that measures. What was not warmed compiles when it
is measured. A compiler that crashes, or a kernel that breaks a context or never ends, costs its own
case alone.
"""

from __future__ import annotations

import bisect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from advisor.model.applied import KernelResources

from .model import Case

Role = Literal["warm", "size", "measure"]
Rows = dict[str, KernelResources]
START_LIMIT_S = 90.0
# A case that takes longer is lost: one that never ends must not cost the others.
CASE_LIMIT_S, WARM_LIMIT_S = 40.0, 60.0
CORES_TO_MEASURE, MOST_TO_WARM, MOST_TO_SIZE = 2, 20, 12
FAILED, LOG = "failed", "compiling.log"


@dataclass(frozen=True)
class Worker:
    """One child: what it does, on which GPU and processor cores; `shares` the GPU that warms."""

    role: Role
    gpu: str = ""
    cores: tuple[int, ...] = ()
    shares: bool = False


def workers(gpus: Sequence[str], processes: int) -> list[Worker]:
    """A measuring child for every GPU with cores of its own; the other cores compile."""
    cores = sorted(os.sched_getaffinity(0))
    each = CORES_TO_MEASURE
    kept = each * len(gpus)
    pinned = len(cores) >= 2 * kept
    shared = tuple(cores[kept:] if pinned else cores)
    found = [
        Worker("measure", gpu, tuple(cores[i * each : (i + 1) * each]) if pinned else shared,
               shares=gpu == gpus[-1])
        for i, gpu in enumerate(gpus)
    ]  # fmt: skip
    total = max(2, min(processes, len(shared)))
    # Sizes may also be found while all GPUs measure.
    warming = min(MOST_TO_WARM, max(1, 2 * total // 3))
    found += [Worker("warm", gpus[-1], shared, shares=True)] * warming
    return [*found, *[Worker("size", cores=shared)] * min(MOST_TO_SIZE, total - warming)]


class Board:
    """Which cases wait for what. Threads take from it, in the order of the cases."""

    def __init__(self, cases: Sequence[Case], unsized: Sequence[Case], warm: float, end: float):
        self._changed = threading.Condition()
        self._rank = {case.id: number for number, case in enumerate(cases)}
        self._cold, self._ready, self._unsized = [*cases], list[Case](), [*unsized]
        self._in_work, self._stopped = 0, False
        self.warm_ends, self.ends = warm, end
        self.rows: Rows = {}

    def take(self, worker: Worker) -> Case | None:
        """The next case for a worker, as soon as there is one; None when none comes any more."""
        with self._changed:
            while not self._over(worker.role):
                waiting = self._waiting(worker)
                if waiting:
                    self._in_work += worker.role == "warm"
                    return waiting.pop(0)
                self._changed.wait(0.1)
        return None

    def done(self, worker: Worker, case: Case, answer: str | None) -> None:
        """A worker is through with a case; without an answer its process was lost."""
        with self._changed:
            if worker.role == "warm":
                self._in_work -= 1
                if answer is None:  # it may be lost once more: last
                    self._rank[case.id] += len(self._rank)
                bisect.insort(self._ready, case, key=lambda c: self._rank[c.id])
            if worker.role == "size" and answer:
                self.rows.update(msgspec.json.decode(answer, type=Rows))
            self._changed.notify_all()

    def seconds(self, role: Role) -> float:
        """How long a case may take from now on."""
        now = time.monotonic()
        if role == "warm":
            return min(self.warm_ends - now, WARM_LIMIT_S)
        return min(self.ends - now, CASE_LIMIT_S) if role == "measure" else self.ends - now

    def stop(self) -> None:
        """Nothing is given out any more."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """True if it was stopped, or its time is over."""
        return self._stopped or time.monotonic() >= self.ends

    def _over(self, role: Role) -> bool:
        if self.stopped:
            return True
        if role == "warm":
            return not self._cold or time.monotonic() >= self.warm_ends
        if role == "size":
            return not self._unsized
        return self._all_warm() and not self._ready and not self._cold

    def _all_warm(self) -> bool:
        return not self._in_work and self._over("warm")

    def _waiting(self, worker: Worker) -> list[Case]:
        if worker.role == "warm":
            return self._cold
        if worker.role == "size":
            return self._unsized
        if worker.shares and not self._all_warm():
            return []
        return self._ready or (self._cold if self._all_warm() else [])


class Crew:
    """All workers at work on a board, a thread for each child."""

    def __init__(self, team: Sequence[Worker], board: Board, folder: Path):
        self._board, self._folder = board, folder
        self._children: set[_Child] = set()
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in team
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """True if all have ended within so many seconds."""
        ends = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End the children at once."""
        self._board.stop()
        for child in [*self._children]:
            child.kill()

    def _work(self, worker: Worker) -> None:
        """One child after another, each until it is lost; two that do not start are enough."""
        failures = 0
        while failures < 2 and not self._board.stopped:
            child = _Child(worker, self._folder)
            self._children.add(child)
            try:
                if child.ask(None, START_LIMIT_S) is None:
                    failures += 1
                elif self._feed(worker, child):
                    return
            finally:
                self._children.discard(child)
                child.end()

    def _feed(self, worker: Worker, child: _Child) -> bool:
        """Give case after case; True if there is no more, False if the child was lost."""
        while (case := self._board.take(worker)) is not None:
            answer = child.ask(case.id, self._board.seconds(worker.role))
            if answer is None and worker.role == "measure":
                self._note_loss(case, child.end())
            self._board.done(worker, case, answer)
            if answer is None:
                return False
        return True

    def _note_loss(self, case: Case, code: int) -> None:
        """Why a case has no result, unless it was ended because all was."""
        if self._board.stopped or code == -signal.SIGTERM:
            return
        slow = f"took longer than {CASE_LIMIT_S:.0f} s\n"
        (self._folder / FAILED).mkdir(exist_ok=True)
        text = slow if code == -signal.SIGKILL else f"ended its process: {code}\n"
        (self._folder / FAILED / f"{case.id}.txt").write_text(text)
        sys.stderr.write(f"{case.id}: {text}")


class _Child:
    """This program once more in a role: a line of text in, a line of text out."""

    def __init__(self, worker: Worker, folder: Path):
        cores = ",".join(str(core) for core in worker.cores)
        # Compilers and assemblers say a lot.
        said = None if worker.role == "measure" else (folder / LOG).open("a")
        line = [sys.executable, str(Path(sys.argv[0]).resolve()), "--out", str(folder)]
        self._process = subprocess.Popen(
            [*line, "--serve", worker.role, "--cores", cores],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": worker.gpu},
        )  # fmt: skip
        if said is not None:
            said.close()

    def ask(self, word: str | None, seconds: float) -> str | None:
        """Send a line (None: nothing) and return the answer; None if the child or time ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(max(seconds, 0.05), self.kill)
        timer.daemon = True
        timer.start()
        try:
            if word is not None:
                self._process.stdin.write(word + "\n")
                self._process.stdin.flush()
            return self._process.stdout.readline().strip() or None
        except BrokenPipeError:
            return None
        finally:
            timer.cancel()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> int:
        """End it and return its exit status; harmless if it has ended."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.wait(0.2)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process.communicate()
        return self._process.wait()
