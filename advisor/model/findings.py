"""`Finding`: one thing worth doing, not doing or undoing, with its evidence and its price."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Location, Range, Record

Kind = Literal["opportunity", "regression", "note"]
FindingProvenance = Literal["exact", "inferred"]
AlternativeRoute = Literal[
    "generated_kernel", "library", "graph_rewrite", "compile_region", "cuda_graph", "do_not_fuse"
]
EvidenceKind = Literal[
    "dataflow", "time", "traffic", "resources", "legality", "host", "cannot_judge"
]
FINDING_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")


def finding_id(rule: str, key: str) -> str:
    """Stable across runs: the rule, and a hash of what tells its findings apart."""
    return f"{rule}-{hashlib.sha256(key.encode()).hexdigest()[:8]}" if key else rule


class Evidence(Record, frozen=True, kw_only=True):
    """One supporting fact; `values` are figures by name, their units in the names (`before_ns`)."""

    kind: EvidenceKind
    text: str
    values: dict[str, float | int | str | None] = {}


class Member(Record, frozen=True, kw_only=True):
    """An op or kernel that takes part, how often per step, and its time per step where known."""

    name: str
    count: int
    time_ns: int | None = None


class Alternative(Record, frozen=True, kw_only=True):
    """Another way to spend the same kernels, with its price; None is 'not priced', never 0."""

    route: AlternativeRoute
    text: str
    saving_ns: Range | None = None
    plan_ids: tuple[str, ...] = ()


class Finding(Record, frozen=True, kw_only=True):
    """`exposed_saving_ns` is per step, on the critical path; null where evidence says why not."""

    id: str
    rule: str
    kind: Kind
    title: str
    exposed_saving_ns: Range | None
    evidence: tuple[Evidence, ...]
    members: tuple[Member, ...] = ()
    provenance: FindingProvenance
    action: str
    alternatives: tuple[Alternative, ...] = ()
    plan_id: str | None = None
    locations: tuple[Location, ...] = ()

    def check(self) -> None:
        if not FINDING_ID.fullmatch(self.id):
            raise InvalidRecordError(f"finding id {self.id[:40]!r} is malformed")
        if self.exposed_saving_ns is not None:
            self.exposed_saving_ns.check()
        elif self.kind == "opportunity" and not any(
            e.kind == "cannot_judge" for e in self.evidence
        ):
            raise InvalidRecordError("an unpriced opportunity must say why", where=self.id)

    @property
    def kernel_saving_ns(self) -> int | None:
        """The kernel time that goes, as the evidence says: on the critical path or not."""
        told = (evidence.values.get("kernel_saving_ns") for evidence in self.evidence)
        return next((int(value) for value in told if isinstance(value, (int, float))), None)
