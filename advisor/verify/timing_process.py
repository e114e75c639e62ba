"""The parent's side of the child that times kernels: ask with a limit, replace it when it died."""

from __future__ import annotations

import msgspec

from advisor.errors import IllegalFusionError
from advisor.model.applied import KernelTiming
from advisor.model.base import Record
from advisor.model.launch import LaunchConfig, Scheme
from advisor.verify.child import AnsweringChild, DiedError

WORKER = "advisor.verify._timing_worker"
# All configurations of a plan are compiled and run in this time, and eager and Inductor beside it.
LIMIT_S = 180.0


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
        super().__init__(worker, device)

    def time(self, request: TimingRequest, limit_s: float = LIMIT_S) -> TimingAnswer:
        """The answer to a request.

        Raises `IllegalFusionError` with how the child died over it, or that it did not end within
        `limit_s`.
        """
        try:
            line = self.ask(msgspec.json.encode(request), limit_s)
        except TimeoutError:
            raise IllegalFusionError(f"timed alone, it has no end within {limit_s:g} s") from None
        except DiedError as error:
            raise IllegalFusionError(f"timed alone: {error}") from None
        return msgspec.json.decode(line, type=TimingAnswer)
