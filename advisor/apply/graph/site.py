"""Reads one place where attention is written out, from its softmax up and down, by dataflow alone.

Upwards: what is done to the scores between the product that makes them and the softmax, innermost
first. Downwards: casts and dropout of the probabilities up to the product with the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from advisor.apply.graph.constants import Constants
from advisor.apply.graph.flow import Flow
from advisor.apply.graph.products import Product, Size, product_of, tensor
from advisor.apply.graph.softmax import Softmax
from advisor.apply.graph.spelling import Call, read, same_shape, same_size, spelled, value_of
from advisor.errors import IllegalFusionError

_MOST_STEPS = 24
StepKind = Literal["scale", "factor", "add", "fill", "tanh"]


@dataclass(frozen=True)
class Step:
    """One thing done to the scores.

    `scale` multiplies with the number `number`; `factor` with `term`, which is the same for all
    keys (`inverted`: divides by it); `add` adds `number * term`; `fill` puts `number` where
    `term` is true (`inverted`: where it is false); `tanh` is the hyperbolic tangent. `lead` are
    the leading sizes of the scores there, which `term` broadcasts to together with [M, N].
    """

    kind: StepKind
    node: fx.Node
    lead: tuple[Size, ...]
    number: float = 1.0
    term: fx.Node | None = None
    inverted: bool = False


@dataclass(frozen=True)
class Site:
    """Attention as the graph has it: `softmax(steps(left @ right)) @ values`, with dropout."""

    softmax: Softmax
    scores: Product
    steps: tuple[Step, ...]
    result: Product
    dropout: float
    region: tuple[fx.Node, ...]
    leads: tuple[tuple[Size, ...], ...]


class Reader:
    """Reads the sites of one graph."""

    def __init__(self, flow: Flow, constants: Constants) -> None:
        self.flow, self.constants = flow, constants

    def site(self, softmax: Softmax) -> Site | None:
        """The attention around a softmax, or None if it is no attention.

        Raises `IllegalFusionError` with the reason if it is, but cannot be read.
        """
        above = self._reaches_product(softmax.source, upwards=True)
        below = self._reaches_product(softmax.result, upwards=False)
        if not above or not below:
            return None
        if not softmax.over_last_axis:
            raise IllegalFusionError("the softmax runs over another axis than the last")
        scores, steps, upper, first = self._up(softmax)
        result, dropout, lower, last = self._down(softmax)
        region = (*upper, *softmax.nodes, *lower)
        if scores.order != tuple(range(len(scores.order))):
            raise IllegalFusionError("the scores have their axes in another order")
        return Site(softmax, scores, steps, result, dropout, region, (*first, *last))

    def _reaches_product(self, node: fx.Node, *, upwards: bool) -> bool:
        """Whether pointwise ops, read or not, lead to a product with the scores' last sizes."""
        pending, seen = [(node, node)], {node}
        count = tensor(node).numel()
        while pending and len(seen) < 4 * _MOST_STEPS:
            item, via = pending.pop()
            product = product_of(item)
            if product is not None and (upwards or self._is_left(product, via)):
                return True
            nexts = item.all_input_nodes if upwards else self.flow.readers(item)
            if product is not None:
                continue
            for other in nexts:
                current = self.flow.now(other, item) if upwards else other
                value = value_of(current)
                big = value is not None and same_size(value.numel(), count)
                if current not in seen and (big or (not upwards and product_of(current))):
                    seen.add(current)
                    pending.append((current, item))
        return False

    def _is_left(self, product: Product, node: fx.Node) -> bool:
        sides = (product.left.node, product.right.node)
        return any(self.flow.now(side, product.node) is node for side in sides)

    def _up(
        self, softmax: Softmax
    ) -> tuple[Product, tuple[Step, ...], list[fx.Node], list[tuple[Size, ...]]]:
        steps: list[Step] = []
        region: list[fx.Node] = []
        leads: list[tuple[Size, ...]] = [tuple(tensor(softmax.result).shape[:-2])]
        node = softmax.source
        while len(region) < _MOST_STEPS:
            region.append(node)
            leads.append(tuple(tensor(node).shape[:-2]))
            product = product_of(node)
            if product is not None:
                return product, tuple(reversed(steps)), region, leads
            node, step = self._step(node)
            if step is not None:
                steps.append(step)
        raise IllegalFusionError(f"more than {_MOST_STEPS} ops between product and softmax")

    def _step(self, node: fx.Node) -> tuple[fx.Node, Step | None]:
        """The scores before a node, and what the node does to them."""
        call = read(node)
        lead = tuple(tensor(node).shape[:-2])
        found: tuple[Any, Step | None] | None = None
        if call is not None and call.name in ("cast", "copy", "view", "getitem", "detach"):
            found = self._kept(node, call)
        elif call is not None and call.name == "tanh":
            found = (call["input"], Step("tanh", node, lead))
        elif call is not None and call.name in ("mul", "div"):
            found = self._scaled(node, call, lead)
        elif call is not None and call.name in ("add", "sub"):
            found = self._added(node, call, lead)
        elif call is not None and call.name in ("masked_fill", "where"):
            found = self._filled(node, call, lead)
        elif call is not None and call.name in ("max", "maximum", "clamp"):
            found = self._bounded(node, call)
        if found is None or not isinstance(found[0], fx.Node):
            raise IllegalFusionError(
                f"{spelled(node)} between the product and the softmax has no place in attention"
            )
        before = self.flow.now(found[0], node)
        inside, outside = tensor(before), tensor(node)
        same = same_shape(tuple(inside.shape[-2:]), tuple(outside.shape[-2:]))
        if not same or not same_size(inside.numel(), outside.numel()):
            raise IllegalFusionError(f"{spelled(node)} changes the shape of the scores")
        return before, found[1]

    def _kept(self, node: fx.Node, call: Call) -> tuple[Any, None] | None:
        """What only casts the scores, copies them, or splits and merges their leading axes."""
        value = tensor(node)
        if call.name == "detach" or not value.is_floating_point():
            return None
        if call.name == "getitem":
            index = call["index"] if isinstance(call["index"], tuple) else (call["index"],)
            if not all(x is None or x is Ellipsis or x == slice(None) for x in index):
                return None
        return call["input"], None

    def _scaled(
        self, node: fx.Node, call: Call, lead: tuple[Size, ...]
    ) -> tuple[Any, Step | None] | None:
        left, right = call["input"], call["other"]
        if call["rounding_mode"] is not None:
            return None
        if call.name == "mul" and not self._is_scores(left, node):
            left, right = right, left
        number = self.constants.number(right, node)
        if number is not None and (call.name == "mul" or number != 0):
            factor = number if call.name == "mul" else 1.0 / number
            return left, Step("scale", node, lead, number=factor)
        value = value_of(right)
        if value is None and isinstance(right, fx.Node):
            raise IllegalFusionError("the scale is only known at run time")
        if value is None or not self._is_scores(left, node):
            return None
        if not value.is_floating_point() or (value.dim() > 0 and not same_size(value.shape[-1], 1)):
            return None
        term = self.flow.now(right, node)
        return left, Step("factor", node, lead, term=term, inverted=call.name == "div")

    def _added(
        self, node: fx.Node, call: Call, lead: tuple[Size, ...]
    ) -> tuple[Any, Step | None] | None:
        left, right = call["input"], call["other"]
        alpha = self.constants.number(1 if call["alpha"] is None else call["alpha"], node)
        if call.name == "add" and call["alpha"] is None and not self._is_scores(left, node):
            left, right = right, left
        if alpha is None or not self._is_scores(left, node):
            return None
        if self.constants.number(right, node) is not None:
            return left, None  # The same for all keys: the softmax does not change.
        if value_of(right) is None:
            return None
        sign = alpha if call.name == "add" else -alpha
        return left, Step("add", node, lead, number=sign, term=self.flow.now(right, node))

    def _filled(
        self, node: fx.Node, call: Call, lead: tuple[Size, ...]
    ) -> tuple[Any, Step | None] | None:
        if call.name == "masked_fill":
            scores, mask, filled, inverted = call["input"], call["mask"], call["value"], False
        elif self._is_scores(call["input"], node):
            scores, mask, filled, inverted = call["input"], call["condition"], call["other"], True
        else:
            scores, mask, filled, inverted = call["other"], call["condition"], call["input"], False
        number = self.constants.number(filled, node)
        value = value_of(mask)
        if number is None or value is None or value.dtype != torch.bool:
            return None
        mask = self.flow.now(mask, node)
        return scores, Step("fill", node, lead, number=number, term=mask, inverted=inverted)

    def _bounded(self, node: fx.Node, call: Call) -> tuple[Any, None] | None:
        """A lower bound at the least finite number only keeps infinities out."""
        scores = call["input"]
        low = call[{"clamp": "min", "max": "dim"}.get(call.name, "other")]
        if call["max"] is not None or (call.name == "max" and not isinstance(low, fx.Node)):
            return None
        number = self.constants.number(low, node)
        if number is None or number > 0.99 * torch.finfo(tensor(node).dtype).min:
            return None
        return scores, None

    def _is_scores(self, value: Any, reader: fx.Node) -> bool:
        fake = value_of(value)
        if fake is None or not same_size(fake.numel(), tensor(reader).numel()):
            return False
        return self._reaches_product(self.flow.now(value, reader), upwards=True)

    def _down(self, softmax: Softmax) -> tuple[Product, float, list[fx.Node], list[Any]]:
        node, dropout = softmax.result, 0.0
        region: list[fx.Node] = []
        leads: list[Any] = []
        while len(region) < _MOST_STEPS:
            following = self._only_reader(node)
            region.append(following)
            product = product_of(following, of_weights=True)
            if product is not None:
                return self._values(product, node), dropout, region, leads
            dropout += self._dropped(following, dropout)
            leads.append(tuple(tensor(following).shape[:-2]))
            node = following
        raise IllegalFusionError(f"more than {_MOST_STEPS} ops between softmax and product")

    def _only_reader(self, node: fx.Node) -> fx.Node:
        readers = self.flow.readers(node)
        if len(readers) > 1:
            first = next((r for r in readers if product_of(r) is None), readers[0])
            raise IllegalFusionError(f"the attention weights are also read by {spelled(first)}")
        return readers[0]

    def _dropped(self, node: fx.Node, before: float) -> float:
        """The dropout probability of a node below the softmax that is no product."""
        call = read(node)
        if call is not None and call.name in ("cast", "copy", "view", "getitem"):
            if self._kept(node, call) is not None:
                return 0.0
        elif call is not None and call.name == "dropout":
            return self._probability(call, before)
        raise IllegalFusionError(f"{spelled(node)} changes the attention weights after the softmax")

    def _probability(self, call: Call, before: float) -> float:
        training = call["training"] if "training" in call.arguments else call["train"]
        p = 0.5 if call["p"] is None else call["p"]
        if not isinstance(p, int | float) or isinstance(training, fx.Node):
            raise IllegalFusionError("the dropout probability is only known at run time")
        if training is False or p == 0:
            return 0.0
        if before or call.in_place or not p < 1:
            raise IllegalFusionError("dropout in place, twice, or of everything")
        return float(p)

    def _values(self, product: Product, weights: fx.Node) -> Product:
        """The product with the weights on its left."""
        place = product.node
        if self.flow.now(product.left.node, place) is weights:
            axes = product.left.axes
            if axes != tuple(range(len(axes))):
                raise IllegalFusionError("the attention weights are shared among several values")
            if product.added is None and product.scale == 1:
                return product
        elif product.left.node is product.right.node:
            raise IllegalFusionError("the attention weights are multiplied with themselves")
        raise IllegalFusionError("the values do not stand to the right of the attention weights")
