"""The canonical text of a plan's kernel: all that changes generated code, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from advisor.model.base import Record

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan


def signature_of(plan: FusionPlan) -> str:
    """Equal for two plans exactly when one kernel serves both."""
    body: dict[str, object] = {
        "family": plan.family,
        "row_axes": plan.row_axes,
        "inputs": [
            _told(item, segments=(), reverse=False, counts=None, gathered=None)
            for item in plan.inputs
        ],
        "ops": plan.ops,
        "outputs": [
            _told(item, strided=False, unit_stride=True, reverse=False, last=False, turned=False)
            for item in plan.outputs
        ],
    }
    if plan.column_axes > 1:
        body["column_axes"] = plan.column_axes
    if plan.members:
        body["members"] = plan.members
    if plan.states:
        body["states"] = plan.states
    if plan.product is not None:
        body["product"] = plan.product
    return msgspec.json.encode(body, order="sorted").decode()


def _told(record: Record, **unsaid: object) -> dict[str, object]:
    """The fields of a record, those `unsaid` only where they hold another value."""
    found: dict[str, object] = msgspec.to_builtins(record)
    for name, value in unsaid.items():
        if getattr(record, name) == value:
            del found[name]
    return found
