"""Writes nodes into a Dynamo graph, described as Dynamo describes its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from advisor.apply.graph.constants import is_pure
from advisor.apply.graph.products import Operand, Size, tensor
from advisor.apply.graph.spelling import read, value_of, written
from advisor.errors import IllegalFusionError

_DESCRIBED = ("stack_trace", "nn_module_stack", "source_fn_stack")
# What looks at memory order, not only at sizes.
_LAYOUT = frozenset(("as_strided", "stride", "is_contiguous", "data_ptr", "view_as_complex"))
_FOLLOWED_NAMES = (
    "view reshape transpose permute flatten unflatten unsqueeze squeeze getitem expand "
    "narrow select split chunk unbind swapaxes movedim getattr"
)
_FOLLOWED = frozenset(_FOLLOWED_NAMES.split())


class Emitter:
    """Adds nodes in front of one node, with their fake values.

    Raises `IllegalFusionError` for an argument that is a size only known at run time: a graph holds
    such sizes as nodes, not as numbers.
    """

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        self.graph, self._before = graph, before
        self._mode = getattr(tensor(before), "fake_mode", None) or contextlib.nullcontext()

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call of a function of torch."""
        _check_known((args, kwargs))
        with self.graph.inserting_before(self._before):
            node = self.graph.call_function(target, args, kwargs)
        value = self._on_fakes(lambda a, k: target(*a, **k), args, kwargs)
        return self._described(node, value)

    def method(self, name: str, source: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of a method of a tensor."""
        _check_known((args, kwargs))
        with self.graph.inserting_before(self._before):
            node = self.graph.call_method(name, (source, *args), kwargs)
        value = self._on_fakes(
            lambda a, k: getattr(a[0], name)(*a[1:], **k), (source, *args), kwargs
        )
        return self._described(node, value)

    def opaque(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], value: Any
    ) -> fx.Node:
        """A call that is not tried on fake tensors: whoever calls knows its result."""
        with self.graph.inserting_before(self._before):
            node = self.graph.call_function(target, tuple(args), dict(kwargs))
        return self._described(node, value)

    def attribute(self, name: str) -> fx.Node:
        """An attribute of the module."""
        with self.graph.inserting_before(self._before):
            return self._described(self.graph.get_attr(name), None)

    def empty(
        self, shape: Sequence[Size], like: fx.Node, *, requires_grad: bool = False
    ) -> torch.Tensor:
        """A fake tensor."""
        value = tensor(like)
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        with self._mode:
            return torch.empty(tuple(shape), requires_grad=requires_grad, **options)

    def _on_fakes(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result on the fake tensors of the arguments."""

        def fake(item: Any) -> Any:
            return tensor(item) if isinstance(item, fx.Node) else item

        args, kwargs = map_aggregate(args, fake), map_aggregate(kwargs, fake)
        with self._mode, torch.enable_grad():
            return function(args, kwargs)

    def _described(self, node: fx.Node, value: Any) -> fx.Node:
        for key in _DESCRIBED:
            if key in self._before.meta:
                node.meta[key] = self._before.meta[key]
        if value is not None:
            node.meta["example_value"] = value
        return node


def _check_known(arguments: Any) -> None:
    def check(item: Any) -> Any:
        if isinstance(item, torch.SymInt):
            raise IllegalFusionError("its sizes are only known at run time")
        return item

    map_aggregate(arguments, check)


def arranged(emit: Emitter, operand: Operand) -> fx.Node:
    """The operand as a node with its axes in order."""
    node, axes = operand.node, operand.axes
    order = [axis for axis in axes if axis is not None]
    if len(order) >= 2 and order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
        node = emit.method("transpose", node, -2, -1)
    elif order != list(range(len(order))):
        node = emit.method("permute", node, tuple(order))
    for place, axis in enumerate(axes):
        if axis is None:
            node = emit.method("unsqueeze", node, place)
    return node


def regrouped(
    emit: Emitter,
    node: fx.Node,
    lead: Sequence[Size],
    wanted: Sequence[Size],
    *,
    keep_groups: bool = False,
) -> fx.Node:
    """The tensor [*lead, ., .] with its leading axes, each full or of one, as [batch, heads, ., .].

    With `keep_groups` heads that a trailing leading axis of one repeats stay fewer.
    Raises `IllegalFusionError` where that needs sizes that are only known at run time.
    """
    shape = tuple(tensor(node).shape)
    own, rest = shape[: len(lead)], shape[len(lead) :]
    if len(lead) == 2:
        return node
    if len(lead) == 0:
        return emit.method("reshape", node, (1, 1, *rest))
    if not all(isinstance(size, int) for size in (*shape, *lead, *wanted)):
        raise IllegalFusionError("its leading sizes are only known at run time")
    if len(lead) == 1:
        sizes = (1, 1) if own[0] == 1 else tuple(wanted)
        return emit.method("reshape", node, (*sizes, *rest))
    cut = split_of(lead, wanted)
    merged: list[Size] = []
    expanded: list[Size] = list(own)
    for part in (slice(0, cut), slice(cut, len(lead))):
        mine, full = own[part], lead[part]
        kept = keep_groups and part.start == cut and mine[:-1] == full[:-1]
        if all(size == 1 for size in mine) or kept:
            merged.append(math.prod(mine))
            continue
        expanded[part] = full
        merged.append(math.prod(full))
    if tuple(expanded) != own:
        node = emit.method("expand", node, (*expanded, *rest))
    return emit.method("reshape", node, (*merged, *rest))


def split_of(lead: Sequence[Size], wanted: Sequence[Size]) -> int:
    """How many of the leading axes make the batch; the others make the heads."""
    for cut in range(1, len(lead)):
        if math.prod(lead[:cut]) == wanted[0] and math.prod(lead[cut:]) == wanted[1]:
            return cut
    raise IllegalFusionError("its leading axes do not form a batch and heads")


def relax_layout(emit: Emitter, node: fx.Node) -> None:
    """Make the readers of a new result independent of its memory order.

    Fused attention may return [batch, queries, heads, dim] in memory. `view` becomes `reshape`;
    before a reader of the memory order, or a write in place, the result is made contiguous.
    """
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop().users:
            call = read(user)
            name = str(user.target) if user.op == "call_method" else _name(user)
            if written(user) or name in _LAYOUT:
                _made_contiguous(emit.graph, node)
                return
            if name == "view" and user.op == "call_method" and _is_reshape(user):
                user.target = "reshape"
            if (name in _FOLLOWED or (call and call.name == "view")) and user not in seen:
                seen.add(user)
                pending.append(user)


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", "")


def _is_reshape(node: fx.Node) -> bool:
    return not any(isinstance(item, torch.dtype) for item in (*node.args, *node.kwargs.values()))


def _made_contiguous(graph: fx.Graph, node: fx.Node) -> None:
    readers = list(node.users)
    with graph.inserting_after(node):
        copy = graph.call_method("contiguous", (node,))
    copy.meta.update(node.meta)
    for reader in readers:
        reader.replace_input_with(node, copy)


def erase(graph: fx.Graph, region: Iterable[fx.Node], position: Mapping[fx.Node, int]) -> None:
    """Remove the replaced nodes and what only they used."""
    pending: list[fx.Node] = []
    for node in sorted(set(region), key=position.__getitem__, reverse=True):
        pending += node.all_input_nodes
        graph.erase_node(node)
    while pending:
        node = pending.pop()
        if node._erased or node.users or written(node) or not (read(node) or is_pure(node)):
            continue
        call = read(node)
        if call is not None and call.name == "dropout":
            continue
        pending += node.all_input_nodes
        graph.erase_node(node)


def sized(node: fx.Node) -> tuple[Size, ...]:
    """The shape of a node that is known to be a tensor."""
    value = value_of(node)
    assert value is not None
    return tuple(value.shape)
