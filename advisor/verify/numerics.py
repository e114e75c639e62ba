"""Does the kernel compute what the plan says? In child processes, on the GPU or interpreted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import LifoQueue
from typing import Literal

import msgspec

from advisor.errors import InvalidRecordError
from advisor.model import base
from advisor.model.applied import NumericCase, Numerics
from advisor.model.base import Record
from advisor.model.launch import LaunchConfig
from advisor.verify.child import AnsweringChild, DiedError

WORKER = "advisor.verify._numerics_worker"
Place = Literal["gpu", "interpreter"]
# All cases take seconds on a GPU; the interpreter runs row by row.
LIMITS_S: dict[Place, float] = {"gpu": 120.0, "interpreter": 300.0}


class NumericsRequest(Record, frozen=True, kw_only=True):
    """The files of a plan and of its kernel, and the configuration to run it in."""

    plan: str
    kernel: str
    config: LaunchConfig


class NumericsProcess(AnsweringChild):
    """A child that verifies one kernel after the other; `device` is `cpu`, or such as `cuda:1`.

    What a kernel does to the process, a crash or a hang, costs that kernel alone: the next one gets
    a new process.
    """

    def __init__(self, device: str) -> None:
        self._place: Place = "interpreter" if device == "cpu" else "gpu"
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        if device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        super().__init__(WORKER, device, environment=environment)

    def verify(
        self, plan: Path, kernel: Path, config: LaunchConfig, timeout_s: float | None = None
    ) -> Numerics:
        """All cases; a crash, a hang or garbage output is a failed verdict with its reason.

        There is a limit of `timeout_s`, else `LIMITS_S`.
        """
        limit_s = LIMITS_S[self._place] if timeout_s is None else timeout_s
        request = NumericsRequest(plan=str(plan), kernel=str(kernel), config=config)
        try:
            line = self.ask(msgspec.json.encode(request), limit_s)
            return base.decode(line, Numerics, WORKER)
        except TimeoutError:
            return _failed(self._place, f"it has no end within {limit_s:.0f} s")
        except DiedError as error:
            return _failed(self._place, str(error))
        except InvalidRecordError:
            return _failed(self._place, "the kernel process printed no verdict")


class NumericsPool(ExitStack):
    """Several such children; each verifies one kernel at a time."""

    def __init__(self, device: str, most: int) -> None:
        super().__init__()
        self._children = [self.enter_context(NumericsProcess(device)) for _ in range(most)]
        # The last that was used comes next: it has started.
        self._idle: LifoQueue[NumericsProcess] = LifoQueue()
        for child in reversed(self._children):
            self._idle.put(child)

    def __len__(self) -> int:
        return len(self._children)

    def begin(self, count: int) -> None:
        """Start so many children, or all, and go on."""
        for child in self._children[:count]:
            child.begin()

    @contextmanager
    def one(self) -> Iterator[NumericsProcess]:
        """A child for oneself; waits until one is idle. Those that have started come first."""
        child = self._idle.get()
        try:
            yield child
        finally:
            self._idle.put(child)


def _failed(executed_on: Place, why: str) -> Numerics:
    return Numerics(
        executed_on=executed_on,
        passed=False,
        cases=(NumericCase(name="run", passed=False, detail=why),),
    )
