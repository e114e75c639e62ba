"""Of a tensor that counts (`torch.arange`), what its node in a graph does not say: from where."""

from __future__ import annotations

from torch import fx

from advisor.model.graph import FIRST, STEP, AttributeValue

_COUNTS = "prims.iota.default"


def counted_attributes(node: fx.Node) -> dict[str, AttributeValue]:
    """`first` and `step` of a node that counts; {} for any other, and where they are not known."""
    if str(node.target) != _COUNTS:
        return {}
    first, step = node.kwargs.get("start"), node.kwargs.get("step")
    if not (isinstance(first, int) and isinstance(step, int)):
        return {}
    return {FIRST: first, STEP: step}
