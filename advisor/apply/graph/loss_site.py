"""Reads one loss over a vocabulary, from its result up to the projection that makes the logits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from advisor.apply.chunked_loss import Reduction
from advisor.apply.graph.constants import Constants
from advisor.apply.graph.flow import Flow
from advisor.apply.graph.products import Operand, product_of, tensor
from advisor.apply.graph.spelling import Call, read, same_size, spelled, value_of
from advisor.apply.loss_rows import Cut
from advisor.errors import IllegalFusionError
from collectors.live.fx_builder import location_of

_MOST_STEPS = 16
_LINEAR = (functional.linear, torch._C._nn.linear)
NO_PROJECTION = "no projection in the same graph makes its logits"
_LOG_SOFTMAX_READ = "the logarithms of the probabilities"


@dataclass(frozen=True)
class Projection:
    """`hidden @ weight.T + bias`; the weight is seen as [classes, features] through `weight`."""

    node: fx.Node
    hidden: fx.Node
    weight: Operand
    bias: fx.Node | None


@dataclass(frozen=True)
class LossSite:
    """Cross-entropy of a projection as the graph has it.

    `shaping` are the nodes that only reshape or cut the logits, those next to the projection
    first; all of them keep the classes last. `region` is everything that goes with the logits.
    """

    loss: fx.Node
    labels: fx.Node
    projection: Projection
    shaping: tuple[fx.Node, ...]
    cut: Cut
    reduction: Reduction
    ignore_index: int
    label_smoothing: float
    region: tuple[fx.Node, ...]


@dataclass
class _Climb:
    """What was passed on the way up from the loss: outermost first."""

    region: list[fx.Node] = field(default_factory=list)
    shaping: list[fx.Node] = field(default_factory=list)
    bends: list[float | None] = field(default_factory=list)


class LossReader:
    """Reads the losses of one graph."""

    def __init__(self, flow: Flow, constants: Constants) -> None:
        self.flow, self.constants = flow, constants

    def site(self, loss: fx.Node) -> LossSite | None:
        """The loss that a node computes of a projection, or None if it is no cross-entropy.

        Raises `IllegalFusionError` with the reason if it cannot be computed in pieces.
        """
        given = _arguments(loss)
        if given is None or not isinstance(given["input"], fx.Node):
            return None
        climb = _Climb([loss])
        node = self.flow.now(given["input"], loss)
        if loss.target is functional.nll_loss:
            following = self._below_logarithm(node, climb)
            if following is None:
                return None
            node = following
        if not _comes_from_projection(node):
            raise IllegalFusionError(NO_PROJECTION)
        labels = self._labels(given, loss)
        projection = self._up(self._classes_last(node, climb), climb)
        return LossSite(
            loss,
            labels,
            projection,
            tuple(reversed(climb.shaping)),
            _cut(list(reversed(climb.bends))),
            _reduction(given),
            int(given["ignore_index"]),
            float(given.get("label_smoothing", 0.0)),
            tuple(climb.region),
        )

    def _below_logarithm(self, node: fx.Node, climb: _Climb) -> fx.Node | None:
        """What the log-softmax reads whose result, reshaped at most, is `node`; None without one.

        Its axis is that of the classes: the last one if there is anything in between.
        """
        while len(climb.region) < _MOST_STEPS:
            call = read(node)
            if call is None or call.name not in ("log_softmax", "view", "getitem", "copy"):
                return None
            self._only_read_by(node, climb.region[-1], _LOG_SOFTMAX_READ)
            if call.name != "log_softmax":
                climb.region.append(node)
                node = self._shaped(node, call, climb)
                continue
            rank, axis = tensor(node).dim(), call["dim"]
            classes = rank - 1 if climb.shaping else min(1, rank - 1)
            if not isinstance(axis, int) or axis % rank != classes:
                raise IllegalFusionError("the log-softmax runs over another axis than the classes")
            climb.region.append(node)
            found: fx.Node = self.flow.now(call["input"], node)
            return found
        return None

    def _shaped(self, node: fx.Node, call: Call, climb: _Climb) -> fx.Node:
        """What is reshaped, cut or copied by a node."""
        source = call["input"]
        if call.name != "copy":
            climb.shaping.append(node)
            if not _keeps_classes(node, source, call["index"]):
                raise _not_by_row(node)
        found: fx.Node = self.flow.now(source, node)
        return found

    def _labels(self, given: Mapping[str, Any], loss: fx.Node) -> fx.Node:
        labels = given["target"]
        value = value_of(labels)
        if value is None or value.dtype.is_floating_point:
            raise IllegalFusionError("the labels are probabilities, not classes")
        if given.get("weight") is not None:
            raise IllegalFusionError("the loss weights its classes")
        for name in ("ignore_index", "label_smoothing"):
            if isinstance(given.get(name), fx.Node):
                raise IllegalFusionError(f"{name} is only known at run time")
        if value.dim() == 0:
            raise IllegalFusionError("the loss is of one row")
        return self.flow.now(labels, loss)

    def _classes_last(self, node: fx.Node, climb: _Climb) -> fx.Node:
        """The logits before the transposition that moved the classes to the axis of the loss."""
        value = tensor(node)
        if value.dim() <= 2 or climb.shaping:
            return node
        call = read(node)
        moved = (0, value.dim() - 1, *range(1, value.dim() - 1))
        if call is not None and _order(call, value.dim()) == moved:
            self._only_read_by(node, climb.region[-1])
            climb.region.append(node)
            found: fx.Node = self.flow.now(call["input"], node)
            return found
        raise IllegalFusionError("the classes are no axis that a projection makes last")

    def _up(self, node: fx.Node, climb: _Climb) -> Projection:
        while len(climb.region) < _MOST_STEPS:
            self._only_read_by(node, climb.region[-1])
            climb.region.append(node)
            projection = projection_of(node)
            if projection is not None:
                return projection
            node = self._before(node, climb)
        raise IllegalFusionError(f"more than {_MOST_STEPS} ops between projection and loss")

    def _before(self, node: fx.Node, climb: _Climb) -> fx.Node:
        """The logits before a node that shapes, casts, scales or bends them."""
        call = read(node)
        if call is None or call.in_place or not tensor(node).is_floating_point():
            raise _not_by_row(node)
        if call.name in ("view", "getitem", "copy"):
            return self._shaped(node, call, climb)
        source = call["input"]
        if call.name == "tanh":
            climb.bends.append(None)
        elif call.name in ("mul", "div") and call["rounding_mode"] is None:
            source, number = self._scaled(call, node)
            if number is None:
                raise _not_by_row(node)
            climb.bends.append(number)
        elif call.name != "cast":
            raise _not_by_row(node)
        found: fx.Node = self.flow.now(source, node)
        return found

    def _scaled(self, call: Call, node: fx.Node) -> tuple[Any, float | None]:
        source, number = call["input"], self.constants.number(call["other"], node)
        if number is None and call.name == "mul":
            source, number = call["other"], self.constants.number(call["input"], node)
        if not number:
            return source, None
        return source, number if call.name == "mul" else 1.0 / number

    def _only_read_by(self, node: fx.Node, reader: fx.Node, what: str = "the logits") -> None:
        others = [item for item in self.flow.readers(node) if item is not reader]
        if not others:
            return
        if others[0].op == "output":
            raise _leaves(node, what)
        at = _at(others[0], " at ")
        raise IllegalFusionError(f"{what} are also read by {spelled(others[0])}{at}")


def _leaves(node: fx.Node, what: str) -> IllegalFusionError:
    """Where a graph hands on more than the loss, and what its author can do about that."""
    made = _at(node, " made at ")
    return IllegalFusionError(
        f"{what}{made} leave the graph beside the loss: return the loss alone, or let loss(model) "
        "take the loss and keep nothing else"
    )


def _at(node: fx.Node, words: str) -> str:
    """Where the code of a node is, behind words that lead there; empty where nobody knows."""
    place = location_of(node)
    return f"{words}{place.file}:{place.line}" if place.file else ""


def _not_by_row(node: fx.Node) -> IllegalFusionError:
    return IllegalFusionError(
        f"{spelled(node)} between the projection and the loss is not done row by row"
        f"{_at(node, ', at ')}"
    )


def is_loss(node: fx.Node) -> bool:
    """Whether a node is a cross-entropy, from logits or from their log-softmax."""
    return node.op == "call_function" and node.target in (
        functional.cross_entropy,
        functional.nll_loss,
    )


def _arguments(node: fx.Node) -> Mapping[str, Any] | None:
    """The arguments of a loss by name, defaults filled in."""
    if not is_loss(node) or value_of(node) is None:
        return None
    assert callable(node.target)
    bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.arguments


def _reduction(given: Mapping[str, Any]) -> Reduction:
    if given["size_average"] is not None or given["reduce"] is not None:
        raise IllegalFusionError("the reduction is given by arguments that PyTorch deprecates")
    if given["reduction"] == "mean":
        return "mean"
    if given["reduction"] == "sum":
        return "sum"
    raise IllegalFusionError("the loss is not reduced: each row has a gradient of its own")


def projection_of(node: fx.Node) -> Projection | None:
    """The product of rows with a matrix that a node computes, or None."""
    if value_of(node) is None:
        return None
    if node.op == "call_function" and node.target in _LINEAR:
        names = ("input", "weight", "bias")
        given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        weight, bias = given["weight"], given.get("bias")
        if tensor(weight).dim() != 2:
            return None
        return Projection(node, given["input"], Operand(weight, (0, 1), node), bias)
    product = product_of(node)
    if product is None or product.added is not None:
        return None
    plain = tuple(range(tensor(node).dim()))
    lead = product.right.axes[:-2]
    if not product.order == product.left.axes == plain or any(axis is not None for axis in lead):
        return None
    matrix = product.right.swapped().bare()
    weight = Operand(matrix.node, matrix.axes[-2:], matrix.reader)
    return Projection(node, product.left.node, weight, None)


def _comes_from_projection(node: fx.Node) -> bool:
    """Whether the logits are made by a projection, by steps that can be read or not."""
    value = value_of(node)
    if value is None or value.dim() == 0:
        return False
    pending, seen = [node], {node}
    while pending and len(seen) < 4 * _MOST_STEPS:
        item = pending.pop()
        if projection_of(item) is not None:
            return True
        for source in item.all_input_nodes:
            before = value_of(source)
            if source not in seen and before is not None and before.dim() > 1:
                seen.add(source)
                pending.append(source)
    return False


def _keeps_classes(node: fx.Node, source: Any, index: Any) -> bool:
    """Whether a view or a slice leaves the last axis as it is."""
    before, after = value_of(source), tensor(node)
    if before is None or min(before.dim(), after.dim()) < 1 or before.dtype != after.dtype:
        return False
    if not same_size(before.shape[-1], after.shape[-1]):
        return False
    if index is None:
        return same_size(before.numel(), after.numel())
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(item is None or isinstance(item, fx.Node) for item in _flat(entries)):
        return False
    if Ellipsis in entries:
        tail = entries[entries.index(Ellipsis) + 1 :]
        return not tail or tail[-1] == slice(None)
    return len(entries) < before.dim() or entries[-1] == slice(None)


def _flat(entries: list[Any]) -> list[Any]:
    """Entries of an index, the bounds of slices in place of those that are nodes."""
    found: list[Any] = []
    for item in entries:
        bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else ()
        found += [bound for bound in bounds if isinstance(bound, fx.Node)] or [item]
    return found


def _order(call: Call, rank: int) -> tuple[int, ...] | None:
    """The axes of the source in the order of the result, of a transposition."""
    order = list(range(rank))
    if call.name == "transpose":
        one, two = call["dim0"], call["dim1"]
        order[one], order[two] = order[two], order[one]
    elif call.name == "adjoint":
        order[-1], order[-2] = order[-2], order[-1]
    elif call.name == "permute":
        order = [axis % rank for axis in call["dims"]]
    else:
        return None
    return tuple(order)


def _cut(bends: list[float | None]) -> Cut:
    """Numbers and tanh (None), innermost first, as one formula."""
    if bends.count(None) > 1:
        raise IllegalFusionError("the logits are bent by tanh twice")
    capped = None in bends
    place = bends.index(None) if capped else len(bends)
    inner = outer = 1.0
    for number, factor in enumerate(bends):
        if factor is not None and number < place:
            inner *= factor
        elif factor is not None:
            outer *= factor
    return Cut(inner, capped, outer)
