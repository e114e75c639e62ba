"""What a job failed of for want of a place to write is told as that, whoever wrote.

The compiler, the profiler and the user's code say it in words of their own, or leave half a file
that then reads as garbage; none of them knows of runs and of folders that a variable names.
"""

from __future__ import annotations

import os
from pathlib import Path

from advisor.errors import StorageError
from advisor.folders import written_by_compilers
from advisor.store.writable import (
    BY_WRITING,
    blame_storage,
    cannot_write,
    check_writable,
    temporary_files,
)


def blame_writing(said: str, run: Path) -> None:
    """Raises `StorageError` if what failed with these words had no place to write.

    That is the folder of the run, or one that compilers and the profiler write in.
    """
    check_writable(run)
    with temporary_files():
        folders = written_by_compilers(os.environ, direct=False)
    blame_storage(said, folders)


def blame_error(error: Exception, run: Path) -> None:
    """Raises `StorageError` if an error, or what it comes from, is of a place to write."""
    for item in (error, error.__cause__):
        if isinstance(item, StorageError):
            raise item
    blame_writing(f"{error} {error.__cause__ or ''}", run)
    if isinstance(error, OSError) and error.errno in BY_WRITING:
        raise cannot_write(Path(error.filename or "."), error) from error
