"""The ranks of one job at one decision: each says what it saw, and all hear the same.

What a rank measures differs from what another does; what is done next must not, or the collectives
of the model would wait for ever. So every decision that changes what runs is made of what all said.
The words go through the store by which the job's processes found each other, not through its
collectives: the model's own may be what hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, TypeVar

import msgspec

from advisor.errors import (
    AbortedError,
    AdvisorError,
    IllegalFusionError,
    UsageError,
    WorkloadError,
)
from advisor.pipeline.ranks import Rank

# Compiling may take long, and longer on one rank than on another.
PATIENCE_S = 1_800.0
# Who failed waits no longer: the others may be in a collective that will never end.
PATIENCE_AFTER_FAILURE_S = 120.0
FAREWELL_S = 10.0
POLL_S = 0.002
MOST_POLL_S = 0.05

T = TypeVar("T")


class Store(Protocol):
    """What is used of a store of `torch.distributed`: texts by name, seen by all ranks."""

    def set(self, key: str, value: str, /) -> object: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class Peers(Protocol):
    """All processes of the job, this one among them."""

    @property
    def rank(self) -> int: ...
    @property
    def count(self) -> int: ...
    def exchange(self, topic: str, said: bytes, *, failed: bool = False) -> Sequence[bytes]:
        """What all said of a topic, by rank; everybody says something, in the same order."""
        ...

    def leave(self, why: str = "") -> None:
        """Tell the others that this process is at its end, and `why` if it failed."""
        ...


class Alone:
    """One process: it hears itself."""

    rank, count = 0, 1

    def exchange(self, topic: str, said: bytes, *, failed: bool = False) -> Sequence[bytes]:
        return (said,)

    def leave(self, why: str = "") -> None:
        """Nobody is told."""


class Ranks:
    """The processes of a job that share a store of `torch.distributed`.

    Others are waited for `patience_s`, by one that failed only `after_failure_s`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        count: int,
        *,
        patience_s: float = PATIENCE_S,
        after_failure_s: float = PATIENCE_AFTER_FAILURE_S,
    ) -> None:
        self.rank, self.count = rank, count
        self._store = store
        self.patience_s, self.after_failure_s = patience_s, after_failure_s
        self._number = 0

    def exchange(self, topic: str, said: bytes, *, failed: bool = False) -> Sequence[bytes]:
        """What all said of a topic, by rank.

        Raises `AbortedError` if a rank is gone, silent for too long, or at another topic.
        """
        number, self._number = self._number, self._number + 1
        deadline = time.monotonic() + (self.after_failure_s if failed else self.patience_s)
        try:
            self._store.set(f"{number}/{self.rank}", f"{topic}\n{said.decode()}")
            heard = [self._heard(number, rank, deadline) for rank in range(self.count)]
        except RuntimeError as error:  # the store is in the process of a rank that is gone
            raise _lost("the ranks of the job cannot be reached any more", str(error)) from error
        for rank, (theirs, _) in enumerate(heard):
            if theirs != topic:
                raise _lost("the ranks are not at the same step", f"rank {rank} is at {theirs!r}")
        return [message for _, message in heard]

    def _heard(self, number: int, rank: int, deadline: float) -> tuple[str, bytes]:
        key, pause = f"{number}/{rank}", POLL_S
        while not self._store.check([key]):
            if self._store.check([f"gone/{rank}"]):
                raise _lost(f"rank {rank} has ended", self._store.get(f"gone/{rank}").decode())
            if time.monotonic() > deadline:
                raise _lost(f"rank {rank} does not answer", "it may wait in a collective")
            time.sleep(pause)
            pause = min(pause * 2, MOST_POLL_S)
        topic, _, said = self._store.get(key).partition(b"\n")
        return topic.decode(), said

    def leave(self, why: str = "") -> None:
        """Say good-bye; the lead, whose process may hold the store, waits for the others."""
        with suppress(RuntimeError):
            self._store.set(f"gone/{self.rank}", why or "it is done")
            deadline = time.monotonic() + FAREWELL_S
            others = [f"gone/{rank}" for rank in range(self.count)]
            while self.rank == 0 and not self._store.check(others):
                if time.monotonic() > deadline:
                    return
                time.sleep(MOST_POLL_S)


def _lost(what: str, why: str) -> AbortedError:
    return AbortedError(
        what,
        why=why,
        remedy="start the same command again: it goes on with what is not judged yet",
    )


def peers_of(rank: Rank | None, environment: Mapping[str, str] = os.environ) -> Peers:
    """The peers of a process that a launcher started; alone outside a job of several ranks."""
    if rank is None:
        return Alone()
    if not environment.get("MASTER_ADDR") or not environment.get("MASTER_PORT"):
        raise UsageError(
            "the ranks cannot find each other",
            where=f"rank {rank.rank} of {rank.world_size}",
            why="MASTER_ADDR or MASTER_PORT is not set",
            remedy="start them with torchrun",
        )
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=PATIENCE_S)
    found = rendezvous("env://", rank=rank.rank, world_size=rank.world_size, timeout=timeout)
    store, _, _ = next(iter(found))
    return Ranks(PrefixStore("fusion_advisor", store), rank.rank, rank.world_size)


def peers_of_group(name: str) -> tuple[Rank | None, Peers]:
    """Where this process stands in the process group that it is in, and its peers there.

    `name` tells one use of the group from another. Alone, and no rank, without a group of several.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return None, Alone()
    rank = Rank(dist.get_rank(), dist.get_world_size(), dist.get_rank())
    store = PrefixStore(f"fusion_advisor/{name}", _get_default_store())
    return rank, Ranks(store, rank.rank, rank.world_size)


# --- what is said ---------------------------------------------------------------------------------


def hear(peers: Peers, topic: str, value: T, kind: type[T]) -> list[T]:
    """What every rank says, in the order of ranks."""
    said = peers.exchange(topic, msgspec.json.encode(value))
    return [msgspec.json.decode(message, type=kind) for message in said]


def all_say(peers: Peers, topic: str, value: bool) -> bool:
    """Whether all ranks say yes."""
    return all(hear(peers, topic, value, bool))


def any_says(peers: Peers, topic: str, value: bool) -> bool:
    """Whether some rank says yes."""
    return any(hear(peers, topic, value, bool))


def of_rank(peers: Peers, rank: int, text: str) -> str:
    """A reason with the rank that gave it; of a process alone, the reason itself."""
    return text if peers.count == 1 else f"rank {rank}: {text}"


class _Outcome(msgspec.Struct):
    """How something that all ranks do went on one of them; no error is success."""

    error: str = ""
    illegal: bool = False


def together(peers: Peers, topic: str, work: Callable[[], T]) -> T:
    """The result of what all ranks do; if it fails on one of them, it has failed on all.

    Raises `IllegalFusionError` where it does not apply, else `WorkloadError`, each naming the rank;
    of a process alone, the error itself. What a device or a compiler raises is a `WorkloadError`.
    """
    outcome = _Outcome()
    done: list[T] = []
    failed: AdvisorError | None = None
    try:
        done.append(work())
    except AbortedError:
        raise
    except AdvisorError as error:
        failed, illegal = error, isinstance(error, IllegalFusionError)
        outcome = _Outcome(error.what if illegal else error.line(), illegal)
    except RuntimeError as error:
        from collectors.live.failures import failure

        failed = failure("it failed on the device", error, where="")
        failed.__cause__ = error
        outcome = _Outcome(failed.line())
    try:
        said = peers.exchange(topic, msgspec.json.encode(outcome), failed=failed is not None)
    except AbortedError as error:
        raise error from failed
    if peers.count == 1 and failed is not None:
        raise failed
    for rank, message in enumerate(said):
        theirs = msgspec.json.decode(message, type=_Outcome)
        if theirs.error:
            kind = IllegalFusionError if theirs.illegal else WorkloadError
            raise kind(of_rank(peers, rank, theirs.error)) from failed
    return done[0]


def tried(run: Callable[[], T]) -> T | None:
    """The result of what runs on all ranks; None where it fails on one."""
    try:
        return run()
    except AbortedError:
        raise
    except AdvisorError:
        return None
