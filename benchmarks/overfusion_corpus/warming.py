"""Every case run once, in parallel processes: what compiles is then in the caches on disk.

A compiler that crashes, or a kernel that breaks the GPU's context, costs its own process and its
own case; it comes up again, with its reason, when the case is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from .model import Case

START_LIMIT_S = 60.0


def warm_all(cases: Sequence[Case], processes: int, seconds: float) -> int:
    """Run all cases by so many processes, in their order; how many were done in the time."""
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    ends = time.monotonic() + seconds
    done: list[Case] = []
    with ThreadPoolExecutor(processes) as pool:
        for part in [pool.submit(_work, waiting, ends, done) for _ in range(processes)]:
            part.result()
    return len(done)


def _work(waiting: queue.SimpleQueue[Case], ends: float, done: list[Case]) -> None:
    """One process after another, each until it ends or the time is over."""
    context = multiprocessing.get_context("spawn")
    while time.monotonic() < ends and not waiting.empty():
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        try:
            _feed(mine, waiting, ends, done)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            continue
        finally:
            process.kill()
            process.join()
            mine.close()


def _feed(
    child: Connection, waiting: queue.SimpleQueue[Case], ends: float, done: list[Case]
) -> None:
    """Send case after case; raises `EOFError` where the process has ended."""
    child.poll(START_LIMIT_S)
    child.recv()
    while time.monotonic() < ends:
        try:
            case = waiting.get_nowait()
        except queue.Empty:
            break
        child.send(case)
        if not child.poll(max(0.0, ends - time.monotonic())):
            break
        child.recv()
        done.append(case)


def _serve(parent: Connection) -> None:
    """The process: ready, then a case at a time. What a case raises ends it."""
    from . import measure

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # compilers and assemblers say a lot
    measure.prepare()
    parent.send("ready")
    while True:
        measure.warm(parent.recv())
        parent.send("done")
