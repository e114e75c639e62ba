"""What cannot be written because of the disk or the folder, which says nothing of what was tried.

A compiler on a full disk may say so, leave half a file that reads as garbage, or end without a
word, for its words have no room either: so the folders that it writes in are tried themselves.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from advisor.errors import StorageError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Raised by writing alone; rights are also lacked by who reads.
BY_WRITING = FULL | {errno.EROFS}
CLOSED = BY_WRITING | {errno.EACCES, errno.EPERM}
MAKE_ROOM = "make room there"
# One compilation leaves up to a few megabytes.
ROOM_BYTES = 4 << 20
# What Python, and native code by its name for the same, say of a disk that takes no more.
_SAID = re.compile(
    r"\[Errno (?P<number>\d+)\][^:']*(?:: '(?P<path>[^']+)')?|No space left on device"
)


def cannot_write(path: Path, error: OSError, remedy: str = "") -> StorageError:
    """The error of a file or folder that could not be written, with what to do about it."""
    other = MAKE_ROOM if error.errno in FULL else ""
    if error.errno in CLOSED - FULL:
        other = "let this user write there"
    remedy = ", or ".join(filter(None, (other, remedy)))
    why = error.strerror or str(error)
    return StorageError("cannot write", where=str(path), why=why, remedy=remedy)


def is_of_storage(error: OSError) -> bool:
    """Whether the disk is full, or the folder may not be written."""
    return error.errno in CLOSED


def check_writable(path: Path, remedy: str = "") -> None:
    """Raises `StorageError` unless a few megabytes can be written in a folder, made if absent."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as handle:
            handle.write(bytes(ROOM_BYTES))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise cannot_write(path, error, remedy) from error


def blame_storage(said: str, folders: Sequence[tuple[str, Path]]) -> None:
    """Raises `StorageError` if what failed with these words failed for want of a place to write.

    `folders` are those that it writes in, each with the environment variable that names another.
    """
    for variable, path in folders:
        check_writable(path, f"name another folder in {variable}")
    found = _SAID.search(said)
    number = int(found["number"] or errno.ENOSPC) if found is not None else 0
    if found is None or number not in BY_WRITING:
        return
    where = found["path"] or ", ".join(str(path) for _, path in folders)
    # Of a file that is told, the folder that it is in; none for what else the user's code writes.
    named = [v for v, path in folders if not found["path"] or Path(where).is_relative_to(path)]
    error = OSError(number, os.strerror(number))
    remedy = f"name another folder in {' or '.join(named)}" if named else ""
    raise cannot_write(Path(where), error, remedy)


@contextmanager
def temporary_files() -> Iterator[None]:
    """Raises `StorageError` where no temporary file can be made."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename or os.environ.get("TMPDIR") or "temporary files")
        raise cannot_write(where, error, "name another folder in TMPDIR") from error
