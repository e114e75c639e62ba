"""Uploads: a stream to files of bounded size, then a job that makes a run of them, never signed."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, NamedTuple

from flask import Request

from advisor.errors import RefusedError, UnreadableError, UsageError
from advisor.model.run import RunInfo
from advisor.report.document import visible
from advisor.store.directory import RunDirectory
from advisor.store.store import RunStore
from advisor.units import format_bytes

MAX_UPLOAD_BYTES = 2 << 30
_RESERVE_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_MAX_NAME = 120
MAX_FILES = 64
_SIZE = re.compile(r"[0-9]{1,12}")


def receive(store: RunStore, request: Request) -> RunDirectory:
    """Store the body of a request as a run that is still to be analysed.

    The body is one file, or several (the ranks of one job) one behind the other: then the address
    gives a `name` and a `size` in bytes of each, in their order. Raises `UsageError` for a request
    that is no upload, `RefusedError` for one too large; the files are bounded together.
    `UnreadableError` says that the store was removed: an upload would make another in its place.
    """
    if request.mimetype != "application/octet-stream":
        raise UsageError("the body must be the file itself, as application/octet-stream")
    length = request.content_length
    if length is None or length <= 0:
        raise UsageError("the file is empty", remedy="choose a trace, or a report.json")
    if not store.root.is_dir():
        raise UnreadableError(
            "the run store of this server was removed",
            where=store.root.name,
            remedy="put it back, or start the server over another",
        )
    _check_room(store.root, length)
    parts = _parts(request.args.getlist("name"), request.args.getlist("size"), length)
    request.max_content_length = MAX_UPLOAD_BYTES
    run = store.create(parts[0].name.split(".")[0])
    try:
        for number, part in enumerate(parts):
            with run.upload_part(number).open("xb") as target:
                _copy(request.stream, target, part.size_bytes)
        run.write_info(_info(run, [part.name for part in parts]))
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


class _Part(NamedTuple):
    """One file of a body."""

    name: str
    size_bytes: int


def _parts(names: list[str], sizes: list[str], length: int) -> list[_Part]:
    """The files of a body of `length` bytes, as its address says."""
    if not sizes and len(names) <= 1:
        return [_Part(upload_name(names[0] if names else ""), length)]
    if len(names) > MAX_FILES:
        raise RefusedError(
            f"{len(names)} files are more than the {MAX_FILES} that may be uploaded together",
            remedy="run `fusion-advisor analyze FILES --out RUN` beside them",
        )
    if len(names) != len(sizes) or not all(_SIZE.fullmatch(size) for size in sizes):
        raise UsageError("each file needs a name and a size in bytes", where="/api/uploads")
    parts = [_Part(upload_name(name), int(size)) for name, size in zip(names, sizes, strict=True)]
    if (empty := next((part for part in parts if not part.size_bytes), None)) is not None:
        raise UsageError("the file is empty", where=empty.name, remedy="leave it out")
    if sum(part.size_bytes for part in parts) != length:
        raise UsageError("the sizes of the files do not add up to the body")
    return parts


def upload_name(given: str) -> str:
    """The last component of a file's name, printable and short; it names nothing on this disk."""
    last = given.replace("\\", "/").rsplit("/", 1)[-1]
    return visible(last).strip()[:_MAX_NAME] or "upload"


def _check_room(root: Path, length: int) -> None:
    if length > MAX_UPLOAD_BYTES:
        raise RefusedError(
            f"that is larger than the {format_bytes(MAX_UPLOAD_BYTES)} that may be uploaded",
            remedy="compress it, or run `fusion-advisor analyze FILE --out RUN` beside it",
        )
    if shutil.disk_usage(root).free < length + _RESERVE_BYTES:
        raise RefusedError("the disk of the run store is too full for this file")


def _copy(source: IO[bytes], target: IO[bytes], size_bytes: int) -> None:
    """The next `size_bytes`; raises `UnreadableError` where they cannot be written."""
    missing = size_bytes
    while missing and (piece := source.read(min(_PIECE_BYTES, missing))):
        missing -= len(piece)
        try:
            target.write(piece)
        except OSError as error:
            raise UnreadableError("cannot keep the upload", why=str(error.strerror)) from error
    if missing:
        raise UsageError("the upload broke off", remedy="send the file again")


def _info(run: RunDirectory, names: list[str]) -> RunInfo:
    first, others = names[0], len(names) - 1
    return RunInfo(
        id=run.id,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        target=f"{first} and {others} more" if others else first,
        arguments=("upload", *names),
        working_directory="",
        mode="trace",
        gpu=None,
        gpu_present=False,
        seed=0,
        versions={},
    )
