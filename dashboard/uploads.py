"""Uploads: a stream to a file of bounded size, then a job that makes a run of it, never signed."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

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


def receive(store: RunStore, request: Request) -> RunDirectory:
    """Store the body of a request as a run that is still to be analysed.

    Raises `UsageError` for a request that is no upload, `RefusedError` for one too large.
    """
    if request.mimetype != "application/octet-stream":
        raise UsageError("the body must be the file itself, as application/octet-stream")
    length = request.content_length
    if length is None or length <= 0:
        raise UsageError("the file is empty", remedy="choose a trace, or a report.json")
    _check_room(store.root, length)
    name = upload_name(request.args.get("name", ""))
    request.max_content_length = MAX_UPLOAD_BYTES
    run = store.create(name.split(".")[0])
    try:
        with run.upload_path.open("xb") as target:
            received = _copy(request.stream, target)
        if received != length:
            raise UsageError("the upload broke off", remedy="send the file again")
        run.write_info(_info(run, name))
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


def upload_name(given: str) -> str:
    """The last component of a file's name, printable and short; it names nothing on this disk."""
    last = given.replace("\\", "/").rsplit("/", 1)[-1]
    return visible(last).strip()[:_MAX_NAME] or "upload"


def _check_room(root: Path, length: int) -> None:
    if length > MAX_UPLOAD_BYTES:
        raise RefusedError(
            f"the file is larger than the {format_bytes(MAX_UPLOAD_BYTES)} that may be uploaded",
            remedy="compress it, or run `fusion-advisor analyze FILE --out RUN` beside it",
        )
    existing = next(path for path in (root, *root.parents) if path.exists())
    if shutil.disk_usage(existing).free < length + _RESERVE_BYTES:
        raise RefusedError("the disk of the run store is too full for this file")


def _copy(source: IO[bytes], target: IO[bytes]) -> int:
    """The bytes that came; raises `UnreadableError` where they cannot be written."""
    received = 0
    while piece := source.read(_PIECE_BYTES):
        received += len(piece)
        if received > MAX_UPLOAD_BYTES:
            raise RefusedError("the file is larger than it said")
        try:
            target.write(piece)
        except OSError as error:
            raise UnreadableError("cannot keep the upload", why=str(error.strerror)) from error
    return received


def _info(run: RunDirectory, name: str) -> RunInfo:
    return RunInfo(
        id=run.id,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        target=name,
        arguments=("upload", name),
        working_directory="",
        mode="trace",
        gpu=None,
        gpu_present=False,
        seed=0,
        versions={},
    )
