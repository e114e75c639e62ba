"""Ranks at one decision: threads that share a store, as processes share that of their launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

pytest.importorskip("torch", reason="ranks share a store of torch")

from torch.distributed import HashStore

from advisor.errors import AbortedError, IllegalFusionError, UsageError, WorkloadError
from advisor.pipeline.peers import Alone, Peers, Ranks, all_say, any_says, hear, peers_of, together
from advisor.pipeline.ranks import Rank

T = TypeVar("T")


def on_ranks(work: Callable[[Peers], T], count: int = 3, patience_s: float = 20.0) -> list[T]:
    """What work gives on every rank; its first error is raised."""
    store = HashStore()

    def run(rank: int) -> T:
        peers = Ranks(store, rank, count, patience_s=patience_s, after_failure_s=patience_s)
        try:
            return work(peers)
        except BaseException as error:
            peers.leave(str(error))
            raise

    with ThreadPoolExecutor(count) as pool:
        return [item.result() for item in [pool.submit(run, rank) for rank in range(count)]]


def test_all_hear_the_same_in_the_order_of_ranks() -> None:
    heard = on_ranks(lambda peers: hear(peers, "gain", peers.rank * 10, int))
    assert heard == [[0, 10, 20]] * 3
    assert on_ranks(lambda peers: all_say(peers, "x", peers.rank != 1)) == [False] * 3
    assert on_ranks(lambda peers: any_says(peers, "x", peers.rank == 1)) == [True] * 3


def test_what_fails_on_one_rank_has_failed_on_all() -> None:
    def work(peers: Peers) -> tuple[str, str]:
        def mine() -> str:
            if peers.rank == 1:
                raise WorkloadError("out of memory", where="net.py")
            return "fine"

        try:
            return "done", together(peers, "build", mine)
        except WorkloadError as error:
            return "failed", error.what

    assert on_ranks(work) == [("failed", "rank 1: net.py: out of memory")] * 3


def test_what_does_not_apply_on_one_rank_does_not_apply() -> None:
    def work(peers: Peers) -> str:
        def mine() -> None:
            if peers.rank == 2:
                raise IllegalFusionError("no convolution")

        with pytest.raises(IllegalFusionError) as caught:
            together(peers, "build", mine)
        return caught.value.what

    assert on_ranks(work) == ["rank 2: no convolution"] * 3


def test_ranks_at_different_steps_do_not_go_on() -> None:
    def work(peers: Peers) -> str:
        with pytest.raises(AbortedError) as caught:
            hear(peers, "late" if peers.rank else "gain", 1, int)
        return caught.value.what

    assert on_ranks(work) == ["the ranks are not at the same step"] * 3


def test_a_rank_that_ended_is_not_waited_for() -> None:
    def work(peers: Peers) -> str:
        if peers.rank == 1:
            raise WorkloadError("killed")
        with pytest.raises(AbortedError) as caught:
            hear(peers, "gain", 1, int)
        return caught.value.line()

    with pytest.raises(WorkloadError, match="killed"):
        on_ranks(work)


def test_a_rank_that_is_silent_is_waited_for_so_long() -> None:
    asleep = threading.Event()

    def work(peers: Peers) -> str:
        if peers.rank == 1:
            assert asleep.wait(20)
            return "awake"
        with pytest.raises(AbortedError) as caught:
            hear(peers, "gain", 1, int)
        asleep.set()
        return caught.value.line()

    said = on_ranks(work, count=2, patience_s=0.3)
    assert "rank 1 does not answer" in said[0]
    assert "start the same command again" in said[0]


def test_a_process_alone_hears_itself() -> None:
    peers = peers_of(None)
    assert isinstance(peers, Alone)
    assert hear(peers, "x", 7, int) == [7]
    with pytest.raises(WorkloadError, match=r"^net: no$"):
        together(peers, "x", lambda: (_ for _ in ()).throw(WorkloadError("no", where="net")))
    with pytest.raises(UsageError, match="cannot find each other"):
        peers_of(Rank(0, 2, 0), {})
