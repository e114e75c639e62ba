"""What kernels need on GPUs, configuration by configuration and op by op: records of compiling."""

from __future__ import annotations

from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.applied import KernelResources
from advisor.model.base import Record
from advisor.model.report import Tool

RESOURCES_SCHEMA_VERSION = 1
Fit = Literal["use", "avoid", "unknown"]


class SizedKernel(Record, frozen=True, kw_only=True):
    """One kernel in one configuration on one GPU, and whether to launch it so.

    `unknown` is what could not be compiled here. `first` marks the configuration of a plan to try
    first on that GPU: what was measured there, else the model's first of those to use.
    """

    kernel: str
    plan_id: str | None = None
    title: str = ""
    resources: KernelResources
    verdict: Fit
    why: str
    first: bool = False


class LaunchCure(Record, frozen=True, kw_only=True):
    """Another launch of a kernel that has not what was wrong with it, proved by compiling alone.

    `cause` is what was wrong (`register_spill`, ...), `change` how the launch differs, in words;
    `before` and `after` are what both need. `after` None: no launch that was tried is better.
    """

    kernel: str
    gpu: str
    cause: str
    change: str = ""
    before: KernelResources
    after: KernelResources | None = None
    tried: int = 0


class ResourceTable(Record, frozen=True, kw_only=True):
    """All that was compiled for one request; `source` is the plan, run or kernel file."""

    schema_version: int = RESOURCES_SCHEMA_VERSION
    tool: Tool
    source: str
    kernels: tuple[SizedKernel, ...]
    cures: tuple[LaunchCure, ...] = ()

    def check(self) -> None:
        if self.schema_version != RESOURCES_SCHEMA_VERSION:
            raise InvalidRecordError(f"resources schema {self.schema_version}")


class CliffPoint(Record, frozen=True, kw_only=True):
    """A kernel of the first `ops` ops of a plan: what it needs, and what the last of them cost.

    `loss` says what got worse since the point before; empty if nothing did.
    """

    ops: int
    op: str
    inputs: int
    outputs: int
    resources: KernelResources
    verdict: Fit
    why: str
    loss: str = ""


class Cliff(Record, frozen=True, kw_only=True):
    """The ops of a plan added one by one to a kernel, all launched as `config` says.

    `falls_at` is the number of ops at which the kernel ceases to be one to use, None if it never
    does. Ops whose values no kernel of their own can write are no points. `split_after` says after
    how many ops to cut it in two then, `rest` what the second kernel needs.
    """

    schema_version: int = RESOURCES_SCHEMA_VERSION
    tool: Tool
    plan_id: str
    title: str
    gpu: str
    config: str
    points: tuple[CliffPoint, ...]
    falls_at: int | None = None
    split_after: int | None = None
    rest: KernelResources | None = None

    def check(self) -> None:
        if self.schema_version != RESOURCES_SCHEMA_VERSION:
            raise InvalidRecordError(f"cliff schema {self.schema_version}")
        counts = [point.ops for point in self.points]
        if counts != sorted(set(counts)) or (self.falls_at or 0) not in (0, *counts):
            raise InvalidRecordError("the points of a cliff are not in order, or it falls at none")
