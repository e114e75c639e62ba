"""The parent's side of the child that times kernels: ask with a limit, replace it when it died."""

from __future__ import annotations

import os
from time import monotonic

import msgspec

from advisor.errors import IllegalFusionError
from advisor.folders import triton_cache
from advisor.model.applied import KernelTiming
from advisor.model.base import Record
from advisor.model.launch import LaunchConfig, Scheme
from advisor.verify.child import AnsweringChild, DiedError

WORKER = "advisor.verify._timing_worker"
# All configurations of a plan are compiled and run in this time, and eager and Inductor beside it.
LIMIT_S = 180.0
# One launch of a kernel that is compiled takes milliseconds, a card shared with others some more.
LAUNCH_LIMIT_S = 30.0
# Said by the child when it waits for a launch, and when that has ended.
LAUNCHED, ENDED = b"launched", b"ended"


class TimingRequest(Record, frozen=True, kw_only=True):
    """The file of a plan, its kernel files by scheme, and the configurations to choose from."""

    plan: str
    sources: dict[Scheme, str]
    usable: tuple[LaunchConfig, ...]
    bytes_moved: int


class TimingAnswer(Record, frozen=True, kw_only=True):
    """The configuration that is fastest, and its time."""

    config: LaunchConfig
    timing: KernelTiming


class TimingProcess(AnsweringChild):
    """A child that times one plan after the other; started when it is first needed, or before."""

    def __init__(self, device: str, worker: str = WORKER) -> None:
        # What was sized is compiled already, and lies there.
        kept = triton_cache()
        told = {} if kept is None else {"TRITON_CACHE_DIR": str(kept)}
        environment = os.environ | told
        super().__init__(worker, device, environment=environment)

    def time(
        self,
        request: TimingRequest,
        limit_s: float = LIMIT_S,
        launch_limit_s: float = LAUNCH_LIMIT_S,
    ) -> TimingAnswer:
        """The answer to a request.

        Raises `IllegalFusionError` with how the child died over it, or that it did not end: it has
        `limit_s` until it waits for its first launch, as long again for all that follows, and
        `launch_limit_s` for each launch.
        """
        within = limit_s
        try:
            said = _last(self.ask(msgspec.json.encode(request), limit_s))
            deadline = monotonic() + limit_s
            while said in (LAUNCHED, ENDED):
                left = max(0.0, deadline - monotonic())
                within = launch_limit_s if said == LAUNCHED and launch_limit_s < left else limit_s
                said = _last(self.hear(min(within, left)))
        except TimeoutError:
            raise IllegalFusionError(f"timed alone, it has no end within {within:g} s") from None
        except DiedError as error:
            raise IllegalFusionError(f"timed alone: {error}") from None
        return msgspec.json.decode(said, type=TimingAnswer)


def _last(lines: bytes) -> bytes:
    """The last of the lines: what was said before it is over."""
    return lines.splitlines()[-1]
