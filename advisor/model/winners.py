"""Launch configurations that won a search: what was measured, for which kernel, GPU and sizes."""

from __future__ import annotations

import hashlib
import re

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan, Site

WINNERS_SCHEMA_VERSION = 1
_KERNEL = re.compile(r"[0-9a-f]{16}")


class Winner(Record, frozen=True, kw_only=True):
    """The fastest configuration that was timed for one kernel at one site.

    `kernel` is `kernel_key` of its plan; it holds for all sites of the `bucket` (see `bucket_of`).
    `copy_bandwidth_fraction` is that of a copy of the same bytes, in the same recording.
    """

    gpu: str
    device: str
    kernel: str
    bucket: tuple[int, int]
    config: LaunchConfig
    shape: str
    kernel_ns: int
    copy_bandwidth_fraction: float | None = None
    triton: str
    created: str

    def check(self) -> None:
        if not _KERNEL.fullmatch(self.kernel) or min(self.bucket) < 0 or self.kernel_ns <= 0:
            raise InvalidRecordError("a winner without kernel, sizes or time")


class Winners(Record, frozen=True, kw_only=True):
    """The winners that ship for one GPU, each kernel and bucket once."""

    schema_version: int = WINNERS_SCHEMA_VERSION
    gpu: str
    winners: tuple[Winner, ...]

    def check(self) -> None:
        if self.schema_version != WINNERS_SCHEMA_VERSION:
            raise InvalidRecordError(f"winners schema {self.schema_version}")
        if any(winner.gpu != self.gpu for winner in self.winners):
            raise InvalidRecordError("a winner is of another GPU")
        keys = [(winner.kernel, winner.bucket) for winner in self.winners]
        if len(set(keys)) != len(keys):
            raise InvalidRecordError("a kernel has two winners for the same sizes")


def kernel_key(plan: FusionPlan) -> str:
    """The same for all plans that are the same kernel, wherever they stand in a model."""
    return hashlib.sha256(plan.signature().encode()).hexdigest()[:16]


def bucket_of(site: Site) -> tuple[int, int]:
    """Rows and columns to the next power of two, as exponents: one winner serves all in between."""
    return max(site.rows - 1, 0).bit_length(), max(site.columns - 1, 0).bit_length()
