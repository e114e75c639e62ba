"""Of a lookup (`aten.embedding`), what its node in a graph does not say: which operand is what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from advisor.model.gathers import INDEX_DTYPES, TABLE_DTYPES
from advisor.model.graph import INDEX, TABLE, AttributeValue

_LOOKUP = "aten.embedding.default"


def lookup_attributes(
    node: fx.Node, args: Sequence[str], value_of: Callable[[fx.Node], object]
) -> dict[str, AttributeValue]:
    """The places of `table` and `index` among the arguments of a lookup of whole rows.

    {} for any other node: an index of `aten.index` may be negative and count from the end. What
    `padding_idx` and the other options say concerns the gradient alone.
    """
    if str(node.target) != _LOOKUP:
        return {}
    operands = node.args[:2]
    if not all(isinstance(item, fx.Node) for item in operands):
        return {}
    table, index = (item for item in operands if isinstance(item, fx.Node))
    places = [value_of(item) for item in (table, index)]
    if not all(isinstance(value, str) and value in args for value in places):
        return {}
    if not _is_table(table.meta["val"]) or not _is_index(index.meta["val"]):
        return {}
    return {TABLE: args.index(str(places[0])), INDEX: args.index(str(places[1]))}


def _is_table(value: object) -> bool:
    """Whether a tensor is two-dimensional, its columns side by side."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.dim() != 2:
        return False
    return _name(value) in TABLE_DTYPES and value.stride(1) == 1


def _is_index(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return _name(value) in INDEX_DTYPES


def _name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
