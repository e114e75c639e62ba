"""Which runs this machine may apply: those it profiled itself, untouched and in their place.

Applying runs the user's code, so `run.json` carries an HMAC-SHA256 made with a key outside the
store. It covers every field of `run.json`, the resolved path of the directory and the digest of
every plan file: a run that was copied, moved, uploaded or edited does not verify.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Literal

import msgspec

from advisor.errors import AdvisorError, RefusedError, UnreadableError
from advisor.folders import state_folder
from advisor.model.run import RunInfo
from advisor.store.directory import RunDirectory
from advisor.store.files import open_regular, sync_directory

KEY_BYTES = 32
# What is refused of a run that is not this machine's own, and what to do instead.
_REFUSED = {
    "apply": (
        "the run cannot be applied",
        "profile the workload on this machine, then apply that run",
    ),
    "revert": ("the run cannot be reverted", "revert it where it was made and applied"),
    "again": ("the run cannot be profiled again", "give the target of its workload instead"),
}


def default_key_path() -> Path:
    """`$XDG_STATE_HOME/fusion-advisor/key`, by default below `~/.local/state`."""
    return state_folder() / "key"


def sign(run: RunDirectory, key_path: Path | None = None) -> RunInfo:
    """Record the digests of the plans in `run.json`, sign it, and return what was written."""
    plans = {i: hashlib.sha256(run.plan_bytes(i)).hexdigest() for i in run.plan_ids()}
    unsigned = msgspec.structs.replace(run.info(), plans=plans, signature=None)
    signature = _digest(run, unsigned, _key(key_path or default_key_path(), create=True))
    signed = msgspec.structs.replace(unsigned, signature=signature)
    run.write_info(signed)
    return signed


def verify(
    run: RunDirectory,
    key_path: Path | None = None,
    wish: Literal["apply", "revert", "again"] = "apply",
) -> RefusedError | None:
    """Why what is wished of the run is refused here; None if this machine signed it and nothing
    changed.

    Raises `StorageError` where this user has no place for a key.
    """
    key_path = key_path or default_key_path()
    try:
        why = _fault(run, key_path)
    except AdvisorError as error:
        why = error.line()
    if why is None:
        return None
    what, remedy = _REFUSED[wish]
    return RefusedError(what, where=run.id, why=why, remedy=remedy)


def _fault(run: RunDirectory, key_path: Path) -> str | None:
    if not (run.path / "run.json").exists():
        return "it has no run.json: it is a report or a recorded run from elsewhere"
    info = run.info()
    if info.signature is None:
        return "it is not signed"
    if not key_path.exists():
        return "this machine has no signing key, so the run was made elsewhere"
    expected = _digest(run, info, _key(key_path, create=False))
    if not hmac.compare_digest(expected.encode(), info.signature.encode(errors="replace")):
        return "its signature is not of this machine, or the run was copied, moved or edited"
    if set(run.plan_ids()) != set(info.plans):
        return "plans were added or removed since it was signed"
    for plan_id, digest in info.plans.items():
        if hashlib.sha256(run.plan_bytes(plan_id)).hexdigest() != digest:
            return f"plan {plan_id} was edited since it was signed"
    return None


def _digest(run: RunDirectory, info: RunInfo, key: bytes) -> str:
    unsigned = msgspec.structs.replace(info, signature=None)
    body = msgspec.json.encode([str(run.path.resolve()), unsigned], order="sorted")
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _key(path: Path, *, create: bool) -> bytes:
    try:
        if create and not path.exists():
            _create_key(path)
        return _read_key(path)
    except OSError as error:
        raise UnreadableError(
            "cannot use the signing key", where=str(path), why=error.strerror or str(error)
        ) from error


def _create_key(path: Path) -> None:
    """Write a new key beside `path`, then link it: of two creators one wins, none reads half."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".key.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(secrets.token_bytes(KEY_BYTES))
            handle.flush()
            os.fsync(descriptor)
        path.hardlink_to(temporary)
        sync_directory(path.parent)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def _read_key(path: Path) -> bytes:
    with open_regular(path) as handle:
        status = os.fstat(handle.fileno())
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.geteuid():
            raise UnreadableError(
                "cannot use the signing key",
                where=str(path),
                why="it is not a private file of this user",
                remedy="remove it; runs signed with it become read-only",
            )
        key = handle.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise UnreadableError(
            "cannot use the signing key", where=str(path), why=f"it is not {KEY_BYTES} bytes"
        )
    return key
