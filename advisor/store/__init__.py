"""The run store: run directories on disk, written atomically, locked, bounded and signed.

`files` reads and writes, `directory` is one run, `store` is many, `signing` decides which runs
this machine may apply, `progress` and `jobrecord` are what a job leaves behind while it works.
"""

from advisor.store.directory import RunDirectory
from advisor.store.progress import ProgressWriter, is_final, read_progress
from advisor.store.signing import sign, verify
from advisor.store.store import DEFAULT_ROOT, RunStore

__all__ = [
    "DEFAULT_ROOT",
    "ProgressWriter",
    "RunDirectory",
    "RunStore",
    "is_final",
    "read_progress",
    "sign",
    "verify",
]
