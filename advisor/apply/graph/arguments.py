"""The operands of fused attention, made from a site: [batch, heads, ., .] whatever they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from advisor.apply.graph.constants import Constants
from advisor.apply.graph.emit import Emitter, arranged, regrouped
from advisor.apply.graph.products import Operand, Size, tensor, without_repeats
from advisor.apply.graph.site import Site, Step
from advisor.apply.graph.spelling import read, same_shape, same_size, value_of
from advisor.errors import IllegalFusionError


@dataclass(frozen=True)
class Shapes:
    """The sizes of a site: [batch, heads, queries, keys], dim of keys and of values."""

    lead: tuple[Size, Size]
    queries: Size
    keys: Size
    dim: Size
    value_dim: Size


@dataclass(frozen=True)
class Inputs:
    """What a site reads, before any node is written.

    The scores are multiplied with `scale`, then go through `caps` (numbers and tanh only), then
    through `steps`. `grouped` are key and value with their fewer heads, where both repeat them
    `groups` times.
    """

    query: Operand
    key: Operand
    value: Operand
    scale: float
    caps: tuple[Step, ...]
    steps: tuple[Step, ...]
    shapes: Shapes
    dtype: torch.dtype
    grouped: tuple[Operand, Operand] | None
    groups: int

    def reads(self, site: Site) -> list[tuple[fx.Node, fx.Node]]:
        """Every tensor that is read, and the node since which nothing may be written to it.

        That is who reads it today; or, where an operand is read before what is done to it, itself.
        """
        found = [(step.term, step.node) for step in self.steps if step.term is not None]
        operands = [
            (site.scores.left.node, self.query),
            (site.scores.right.node, self.key),
            (site.result.right.node, self.value),
        ]
        if self.grouped is not None:
            operands.append((site.scores.right.node, self.grouped[0]))
            operands.append((site.result.right.node, self.grouped[1]))
        for start, operand in operands:
            found.append((operand.node, operand.reader))
            found += [(node, node) for node in _between(start, operand.node)]
        return found


def _between(start: fx.Node, source: fx.Node) -> set[fx.Node]:
    """The nodes that make an operand from its source, without the source."""
    found: set[fx.Node] = set()
    pending = [start] if start is not source else []
    while pending:
        node = pending.pop()
        if node in found or node is source or read(node) is None:
            continue
        found.add(node)
        pending += node.all_input_nodes
    return found


def inputs_of(site: Site, constants: Constants) -> Inputs:
    """Operands without what can be an argument: transpositions, scales, casts, repeated heads.

    Raises `IllegalFusionError` for sizes and dtypes that fused attention does not take.
    """
    dtype = tensor(site.result.node).dtype
    _check_values(site)
    scale, steps = _leading_scale(_with_added(site, constants))
    caps, steps = _capped(steps)
    query, first = _scaled(site.scores.left.bare(), constants)
    key, second = _scaled(site.scores.right.swapped().bare(), constants)
    query = _of_dtype(query, site.scores.node, dtype)
    key = _of_dtype(key, site.scores.node, dtype)
    value = _of_dtype(site.result.right.bare(), site.result.node, dtype)
    shapes = _shapes(site, query, key, value)
    grouped, groups = _grouped(key, value, site)
    scale *= first * second
    return Inputs(query, key, value, scale, caps, steps, shapes, dtype, grouped, groups)


def _check_values(site: Site) -> None:
    """Every matrix of weights meets one of values: none is shared by broadcasting."""
    weights, result = tensor(site.softmax.result), tensor(site.result.node)
    columns = site.result.right.shape()[-1]
    if not same_size(math.prod(weights.shape[:-1]) * columns, result.numel()):
        raise IllegalFusionError("the attention weights are shared among several values")
    if not weights.is_floating_point() or weights.device.type == "meta":
        raise IllegalFusionError("its dtype or device is not one of fused attention")


def _with_added(site: Site, constants: Constants) -> tuple[Step, ...]:
    """The steps, those of `baddbmm` itself in front."""
    scores = site.scores
    lead = tuple(tensor(scores.node).shape[:-2])
    alpha = constants.number(scores.scale, scores.node)
    beta = constants.number(scores.added_scale, scores.node)
    if alpha is None or beta is None:
        raise IllegalFusionError("the factors of baddbmm are only known at run time")
    found = [Step("scale", scores.node, lead, number=alpha)] if alpha != 1 else []
    if scores.added is not None and beta != 0:
        found.append(Step("add", scores.node, lead, number=beta, term=scores.added))
    return (*found, *site.steps)


def _leading_scale(steps: tuple[Step, ...]) -> tuple[float, tuple[Step, ...]]:
    """The numbers that multiply the bare product, and the steps after them."""
    scale = 1.0
    for place, step in enumerate(steps):
        if step.kind != "scale":
            return scale, steps[place:]
        scale *= step.number
    return scale, ()


def _capped(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps up to what multiplies the last tanh, and those after it."""
    last = max((place for place, step in enumerate(steps) if step.kind == "tanh"), default=None)
    if last is None:
        return (), steps
    while last + 1 < len(steps) and steps[last + 1].kind == "scale":
        last += 1
    caps, rest = steps[: last + 1], steps[last + 1 :]
    if any(step.kind not in ("scale", "tanh") for step in caps):
        raise IllegalFusionError("the scores are masked before they are capped")
    if any(step.kind in ("scale", "factor") for step in rest):
        raise IllegalFusionError("the scores are scaled after they are capped and masked")
    return caps, rest


def _scaled(operand: Operand, constants: Constants) -> tuple[Operand, float]:
    """The operand without numbers that multiply it, and their product."""
    scale = 1.0
    while True:
        call = read(operand.node)
        if (
            call is None
            or call.name not in ("mul", "div")
            or call.in_place
            or call["rounding_mode"]
        ):
            return operand, scale
        source, number = call["input"], constants.number(call["other"], operand.node)
        if number is None and call.name == "mul":
            source, number = call["other"], constants.number(call["input"], operand.node)
        value = value_of(source)
        if number is None or value is None or value.dtype != tensor(operand.node).dtype:
            return operand, scale
        if not same_shape(tuple(value.shape), tuple(tensor(operand.node).shape)) or number == 0:
            return operand, scale
        scale *= number if call.name == "mul" else 1.0 / number
        operand = Operand(source, operand.axes, operand.node).bare()


def _of_dtype(operand: Operand, product: fx.Node, dtype: torch.dtype) -> Operand:
    """The operand in the dtype of the attention: as it is, before a widening cast, or to be cast.

    Autocast multiplies in another dtype than that of the operands; then they are cast later.
    """
    if tensor(operand.node).dtype == dtype or tensor(product).dtype == dtype:
        return operand
    call = read(operand.node)
    if call is not None and call.name == "cast":
        value = value_of(call["input"])
        if value is not None and value.dtype == dtype:
            return Operand(call["input"], operand.axes, operand.node).bare()
    raise IllegalFusionError(
        f"mixed dtypes: the scores are made of {_name(tensor(operand.node).dtype)},"
        f" the result is {_name(dtype)}"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shapes(site: Site, query: Operand, key: Operand, value: Operand) -> Shapes:
    lead = _canonical(site)
    queries, dim = query.shape()[-2:]
    keys, value_dim = value.shape()[-2:]
    if not same_size(keys, key.shape()[-2]):
        raise IllegalFusionError("the number of keys is not that of values")
    devices = {tensor(item.node).device for item in (query, key, value)}
    if len(devices) != 1:
        raise IllegalFusionError("its operands are on several devices")
    return Shapes(lead, queries, keys, dim, value_dim)


def _canonical(site: Site) -> tuple[Size, Size]:
    """The sizes taken for batch and heads: where the site has just two leading axes, these."""
    product = tuple(tensor(site.scores.node).shape[:-2])
    two = [lead for lead in (product, *site.leads) if len(lead) == 2]
    if two:
        if any(not same_shape(lead, two[0]) for lead in two):
            raise IllegalFusionError("the scores have several batch and head sizes")
        return two[0][0], two[0][1]
    longest = max((product, *site.leads), key=len)
    if not longest:
        return 1, 1
    return longest[0], math.prod(longest[1:])


def _grouped(
    key: Operand, value: Operand, site: Site
) -> tuple[tuple[Operand, Operand] | None, int]:
    """Key and value with fewer heads than the query has, and how many queries share each."""
    first, second = without_repeats(key), without_repeats(value)
    if first is not None and second is not None and first[1] == second[1]:
        return (first[0], second[0]), first[1]
    times = _shared_heads(key, tuple(tensor(site.scores.node).shape[:-2]))
    if times == 1 or times != _shared_heads(value, tuple(tensor(site.result.left.node).shape[:-2])):
        return None, 1
    return (key, value), times


def _shared_heads(operand: Operand, lead: tuple[Size, ...]) -> int:
    """How many queries of the last leading axis broadcast over one head of the operand."""
    own = operand.shape()[: len(lead)]
    if len(lead) < 2 or not isinstance(lead[-1], int) or not same_size(own[-1], 1):
        return 1
    return lead[-1] if same_shape(own[:-1], lead[:-1]) else 1


def laid_out(
    emit: Emitter, operand: Operand, lead: Sequence[Size], inputs: Inputs, *, grouped: bool = False
) -> fx.Node:
    """The operand as [batch, heads, ., .] in the dtype of the attention."""
    node = regrouped(emit, arranged(emit, operand), lead, inputs.shapes.lead, keep_groups=grouped)
    shape = tensor(node).shape
    heads = shape[1] if grouped else inputs.shapes.lead[1]
    if not same_shape(tuple(shape[:2]), (inputs.shapes.lead[0], heads)):
        node = emit.method("expand", node, inputs.shapes.lead[0], heads, -1, -1)
    return cast(emit, node, inputs.dtype)


def cast(emit: Emitter, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """The node in a dtype."""
    return node if tensor(node).dtype == dtype else emit.method("to", node, dtype)
