"""Values that depend on nothing but the sizes the graph was compiled for: masks, scales, positions.

A mask made of `arange`, `tril`, comparisons and constants is computed here and compared, which is
the proof that it is causal, whatever way it is spelled. Dynamo guards the sizes that enter it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from advisor.apply.graph.flow import Flow
from advisor.apply.graph.spelling import value_of, written

# Elements of the largest tensor that is computed: a causal mask of 8192 x 8192.
MOST_ELEMENTS = 1 << 26
_MOST_NODES = 400

# Deterministic, and decided by shapes and values of their arguments alone.
_PURE_NAMES = (
    "arange zeros ones full tensor scalar_tensor eye linspace zeros_like ones_like full_like "
    "new_zeros new_ones new_full new_tensor tril triu tril_ triu_ lt le gt ge eq ne add sub rsub "
    "mul div true_divide truediv floordiv floor_divide mod remainder pow neg abs sqrt rsqrt exp "
    "log log2 and_ or_ xor invert logical_and logical_or logical_not logical_xor bitwise_and "
    "bitwise_or bitwise_not where masked_fill masked_fill_ fill_ zero_ cumsum diff clamp clamp_ "
    "clamp_min clamp_max min max minimum maximum any all to type float double half bfloat16 int "
    "long bool type_as view reshape flatten unflatten unsqueeze squeeze transpose permute t expand "
    "expand_as broadcast_to repeat repeat_interleave cat stack contiguous clone getitem setitem "
    "narrow select iadd isub imul itruediv iand ior add_ sub_ mul_ div_ logical_not_ detach copy_ "
    "index_select flip roll movedim swapaxes"
)
_PURE = frozenset(_PURE_NAMES.split())
# Of their first argument these read dtype and sizes only, never a number.
_SHAPED_LIKE = frozenset(
    ("new_zeros", "new_ones", "new_full", "new_tensor", "zeros_like", "ones_like", "full_like")
)


class Constants:
    """Computes values of one graph on the CPU, each once; `flow` is how the graph reads now.

    `given` are arguments of the graph whose values are known where it is called.
    """

    def __init__(self, flow: Flow, given: Mapping[fx.Node, torch.Tensor] | None = None) -> None:
        self.flow, self._given = flow, given or {}
        # What callers computed from values, by keys of their own.
        self.shared: dict[tuple[object, ...], object] = {}
        self._known: dict[tuple[fx.Node, fx.Node | None], torch.Tensor | None] = {}

    def rebind(self, flow: Flow) -> None:
        """Go on with the same graph after nodes that hold no constants were exchanged."""
        self.flow = flow

    def value(self, node: fx.Node, reader: fx.Node) -> torch.Tensor | None:
        """The constant that `reader` sees in a node; None if it is none or too large to compute."""
        last = self.flow.position[reader]
        writers = self._writers(node, last)
        key = (node, writers[-1] if writers else None)
        if key not in self._known:
            self._known[key] = self._computed(node, last)
        return self._known[key]

    def number(self, value: Any, reader: fx.Node) -> float | None:
        """A Python number, or the only element of a constant tensor; else None."""
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return float(value)
        fake = value_of(value)
        if fake is None or fake.numel() != 1:
            return None
        constant = self.value(value, reader)
        return None if constant is None else float(constant.item())

    def _computed(self, node: fx.Node, last: int) -> torch.Tensor | None:
        needed = self._needed(node, last)
        if needed is None:
            return None
        results: dict[fx.Node, Any] = {}
        here = torch.device("cpu")  # whatever the caller's default device is
        with _disable_current_modes(), disable_proxy_modes_tracing(), torch.no_grad(), here:
            for step in needed:
                known = self._given.get(step)
                # A copy: the graph may write to it.
                results[step] = _run(step, results) if known is None else known.clone()
        value = results[node]
        return value if isinstance(value, torch.Tensor) else None

    def _needed(self, node: fx.Node, last: int) -> list[fx.Node] | None:
        """All nodes that make the value, in order, writes in place included; None if not pure."""
        found: set[fx.Node] = set()
        pending = [node]
        while pending:
            step = pending.pop()
            if step in found:
                continue
            if len(found) >= _MOST_NODES or not (step in self._given or _may_run(step)):
                return None
            found.add(step)
            pending += _read_by(step)
            pending += self._writers(step, last)
        return sorted(found, key=self.flow.position.__getitem__)

    def _writers(self, node: fx.Node, last: int) -> list[fx.Node]:
        root, place = self.flow.root(node), self.flow.position
        return [
            writer
            for writer, target in self.flow.writes
            if place[writer] < last and self.flow.root(target) is root
        ]


def is_pure(node: fx.Node) -> bool:
    """Whether a node only computes its result from its arguments."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name in _PURE and (node.op == "call_method" or _is_torch(node.target))


def _may_run(node: fx.Node) -> bool:
    if not is_pure(node):
        return False
    value = value_of(node)
    if value is None:
        return written(node) != () or node.meta.get("example_value") is not None
    sizes = [size for size in value.shape if not isinstance(size, int)]
    return not sizes and math.prod(value.shape) <= MOST_ELEMENTS


def _read_by(node: fx.Node) -> list[fx.Node]:
    """The values that a node reads; a tensor of which it takes dtype and sizes is none."""
    if not _is_shaped_like(node):
        return node.all_input_nodes
    rest: list[fx.Node] = []
    map_aggregate(
        (node.args[1:], dict(node.kwargs)),
        lambda item: rest.append(item) if isinstance(item, fx.Node) else item,
    )
    return rest


def _is_shaped_like(node: fx.Node) -> bool:
    """Whether the first argument only lends a known dtype and known sizes."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    fake = value_of(node.args[0]) if node.args else None
    known = fake is not None and all(isinstance(size, int) for size in fake.shape)
    return name in _SHAPED_LIKE and known


def _is_torch(target: Any) -> bool:
    module = getattr(target, "__module__", None) or ""
    return not module or module.startswith(("torch", "_operator"))


def _run(node: fx.Node, results: dict[fx.Node, Any]) -> Any:
    given = node.args
    if _is_shaped_like(node):
        fake = value_of(given[0])
        assert fake is not None
        model = torch.empty(1, dtype=fake.dtype, device="cpu").expand(fake.shape)
        results, given = {**results, node: model}, (node, *given[1:])
    args = map_aggregate(given, lambda item: _local(item, results))
    kwargs = map_aggregate(dict(node.kwargs), lambda item: _local(item, results))
    assert isinstance(kwargs, dict)
    if node.op == "call_method":
        source, *rest = args
        return getattr(source, str(node.target))(*rest, **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _local(item: Any, results: dict[fx.Node, Any]) -> Any:
    """An argument with its values filled in and its device replaced by the CPU."""
    if isinstance(item, fx.Node):
        return results[item]
    if isinstance(item, torch.device):
        return torch.device("cpu")
    if isinstance(item, str) and item.partition(":")[0] in ("cuda", "cpu", "xpu", "mps"):
        return "cpu"
    return item
