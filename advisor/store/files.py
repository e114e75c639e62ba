"""Files of a run: bounded reads of regular files, and writes that are whole or absent."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from advisor.errors import InvalidRecordError, UnreadableError
from advisor.store.writable import cannot_write, is_of_storage


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; raises `OSError` for anything else, and waits for nothing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def create_regular(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file to write, made if absent; raises `OSError` for a link or anything else.

    A run directory may come from elsewhere: a link in it must not lead a write out of it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | (os.O_APPEND if append else 0), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if not append:
        os.ftruncate(descriptor, 0)
    return os.fdopen(descriptor, "ab" if append else "wb")


def read_bounded(path: Path, limit: int, *, remedy: str = "") -> bytes:
    """The bytes of a regular file of at most `limit` bytes; links and devices are not followed.

    Raises `UnreadableError` with `remedy` if it is missing or no regular file,
    `InvalidRecordError` if larger.
    """
    try:
        with open_regular(path) as handle:
            data = handle.read(limit + 1)
    except OSError as error:
        raise UnreadableError(
            "cannot read", where=str(path), why=error.strerror or str(error), remedy=remedy
        ) from error
    if len(data) > limit:
        raise InvalidRecordError(f"larger than the {limit} bytes allowed", where=str(path))
    return data


def read_named(path: Path, limit: int, *, remedy: str) -> bytes:
    """`read_bounded` of a file that the user named: a link is followed, an error has the name."""
    try:
        return read_bounded(path.resolve(), limit, remedy=remedy)
    except UnreadableError as error:
        raise type(error)(error.what, where=str(path), why=error.why, remedy=remedy) from error


def read_tail(path: Path, limit: int) -> bytes:
    """The last `limit` bytes of a regular file, empty if there is none; never reads more."""
    try:
        with open_regular(path) as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
            return handle.read(limit)
    except OSError:
        return b""


def make_directory(path: Path, *, parents: bool = False) -> None:
    """Make a directory unless it is there; raises what `unwritten` says where it cannot be."""
    try:
        path.mkdir(exist_ok=True, parents=parents)
    except OSError as error:
        raise unwritten(path, error) from error


def unwritten(path: Path, error: OSError) -> UnreadableError:
    """`StorageError` where the disk is full or the folder not ours, else `UnreadableError`."""
    if is_of_storage(error):
        return cannot_write(path, error)
    return UnreadableError("cannot write", where=str(path), why=error.strerror or str(error))


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader, or a crash at any moment, sees the old file or the new.

    Raises what `unwritten` says where the directory cannot be written.
    """
    try:
        _replace(path, data)
    except OSError as error:
        raise unwritten(path, error) from error


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    finally:
        # There only after a failure or an interrupt.
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename or a new entry in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
