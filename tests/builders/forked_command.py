"""Run as a program in a process that was forked: the command line, its children forked from it.

What they import is imported already; for tests of several commands at once, or of their ends. Each
verifies kernels in one process: one more takes longer to start than such kernels take to interpret.
"""

from __future__ import annotations

from advisor.cli.main import main
from advisor.pipeline import apply, supervisor
from tests.builders.forked import Here

if __name__ == "__main__":
    supervisor.subprocess = Here().module  # type: ignore[attr-defined]
    apply.MOST_VERIFIERS = 1
    main()
