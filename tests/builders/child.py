"""Child processes of tests: what they inherit, and what they cost."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Children started inside are interrupted by SIGINT, also where the test run ignores it.

    A shell starts background jobs (`make test &`) with SIGINT ignored, which children inherit; a
    handler of ours becomes the default in them.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def processor_time_of_children() -> float:
    """Seconds that the children waited for so far have spent on processors."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
