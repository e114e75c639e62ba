"""Where a view cuts its tensor: the axis and the first index, as attributes of its node.

A graph's opaque nodes keep no numbers among their arguments; who reads which part decides whether a
loop walks over one axis, so it is kept here. The parts of a split follow from its outputs' sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from advisor.model.graph import AXIS, START, AttributeValue

_SPLITS = ("aten.unbind.int", "aten.split.Tensor", "aten.split_with_sizes.default")
_PARTS = ("aten.select.int", "aten.slice.Tensor")
_JOINED = "aten.cat.default"


def cut_attributes(node: fx.Node) -> dict[str, AttributeValue]:
    """`axis` of a cut, and `start` where one part is taken; {} for anything else or if unknown.

    Of parts that are put together again, the axis along which they are.

    A size that is only known at run time, or a slice with gaps, has no such attributes.
    """
    if node.op == "call_function" and str(node.target) == _JOINED:
        joined, along = node.meta.get("val"), _argument(node, "dim")
        if isinstance(joined, torch.Tensor) and type(along) is int and joined.dim():
            return {AXIS: along % joined.dim()}
        return {}
    if node.op != "call_function" or str(node.target) not in (*_SPLITS, *_PARTS):
        return {}
    source = node.args[0] if node.args else None
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    axis = _argument(node, "dim")
    if not isinstance(value, torch.Tensor) or type(axis) is not int or not value.dim():
        return {}
    axis %= value.dim()
    if str(node.target) in _SPLITS:
        return {AXIS: axis}
    size = value.shape[axis]
    start = _argument(node, "index" if str(node.target) == _PARTS[0] else "start") or 0
    if type(start) is not int or type(size) is not int or _argument(node, "step") not in (1, None):
        return {}
    return {AXIS: axis, START: min(max(start + size if start < 0 else start, 0), size)}


def _argument(node: fx.Node, name: str) -> Any:
    """An argument by its name in the op's schema, None if the op has none of this name."""
    for place, parameter in enumerate(getattr(node.target, "_schema").arguments):  # noqa: B009
        if parameter.name == name:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(name)
            return parameter.default_value if given is None else given
    return None
