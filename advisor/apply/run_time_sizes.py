"""Sizes that a graph knows at run time only, as nodes of it: what a kernel is launched with.

A graph that Dynamo compiled for any size has symbols in the shapes of its tensors. The launch of a
kernel takes products and quotients of them, computed by nodes of the graph in front of the call, as
Dynamo itself writes them for a user's kernel. Nothing here asks how large a symbol is, which would
make the graph one for that size alone: one bound apart, that no kernel can number more rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true
from torch.utils._sympy.functions import FloorDiv

from advisor.codegen.launches import Launch, launches
from advisor.errors import IllegalFusionError
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan, Site
from advisor.model.served import unserved
from advisor.model.sizes import Size

Number = int | torch.SymInt
Operand = int | fx.Node
# Of sympy, which PyTorch computes with.
Expression = Any
# Row numbers are 32-bit in a kernel; the last program's may run past the last row.
MAX_ROWS = 2**31 - 2**16
# Of one size in a product, each a node.
MOST_FACTORS = 7
AT_RUN_TIME = "its sizes are only known at run time"


def is_known(number: Any) -> bool:
    """Whether a size, a stride is a number while the graph is compiled."""
    return isinstance(number, int)


class SizeNodes:
    """The numbers of a graph that are known where a kernel is called.

    Those are its arguments and the sizes of its arguments and of `tensors`. New nodes go into
    `made`, in order, at the graph's insertion point.
    """

    def __init__(self, graph: fx.Graph, tensors: Iterable[fx.Node], made: list[fx.Node]) -> None:
        self.graph, self.made = graph, made
        self.at_hand: dict[Expression, Callable[[], fx.Node]] = {}
        self.by_text: dict[str, torch.SymInt] = {}
        for node in (*graph.find_nodes(op="placeholder"), *tensors):
            self._learn(node)

    def _learn(self, node: fx.Node) -> None:
        """Take up the sizes that a node has, an argument that is a size before those of tensors."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self.by_text.setdefault(str(value.node.expr), value)
            self.at_hand[value.node.expr] = lambda: node
        if not isinstance(value, torch.Tensor):
            return
        for place, size in enumerate(value.shape):
            self._learn_size(node, size, torch.ops.aten.sym_size.int, place)
        for place, stride in enumerate(value.stride()):
            self._learn_size(node, stride, torch.ops.aten.sym_stride.int, place)

    def _learn_size(self, tensor: fx.Node, size: Number, target: Any, place: int) -> None:
        if isinstance(size, int):
            return
        self.by_text.setdefault(str(size.node.expr), size)
        self.at_hand.setdefault(size.node.expr, lambda: self._call(target, (tensor, place), size))

    def number(self, size: Size) -> Number:
        """A size as PyTorch knows it; raises `IllegalFusionError` for one that is nowhere near."""
        unknown = [name for name in size.symbols if name not in self.by_text]
        if unknown:
            raise IllegalFusionError(f"its size {unknown[0]} is not at hand where it is called")
        return math.prod([self.by_text[name] for name in size.symbols], start=size.coefficient)

    def operand(self, number: Number) -> Operand:
        """A number as an argument of a node."""
        return number if isinstance(number, int) else self._node(number.node.expr)

    def _node(self, expression: Expression) -> Operand:
        """A node that computes an expression from what is at hand."""
        if expression.is_Integer:
            return int(expression)
        known = self.at_hand.get(expression)
        made = self._computed(expression) if known is None else known()
        self.at_hand[expression] = lambda: made
        return made

    def _computed(self, expression: Expression) -> fx.Node:
        if isinstance(expression, FloorDiv):
            return self._joined(operator.floordiv, [self._node(a) for a in expression.args])
        if expression.is_Add or expression.is_Mul:
            combine = operator.add if expression.is_Add else operator.mul
            return self._joined(combine, [self._node(a) for a in expression.args])
        base, exponent = expression.as_base_exp()
        if exponent.is_Integer and 1 < int(exponent) <= MOST_FACTORS:
            return self._joined(operator.mul, [self._node(base)] * int(exponent))
        raise IllegalFusionError(f"its size {expression} is not at hand where it is called")

    def _joined(self, combine: Callable[[Any, Any], Any], operands: Sequence[Operand]) -> fx.Node:
        first, *rest = operands
        for other in rest:
            value = combine(_value(first), _value(other))
            first = self._call(combine, (first, other), value)
        assert isinstance(first, fx.Node)
        return first

    def _call(self, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = value
        self.made.append(node)
        return node


def _value(operand: Operand) -> Any:
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand


def launches_at_run_time(
    plan: FusionPlan, config: LaunchConfig, site: Site, sizes: SizeNodes
) -> tuple[Launch, ...]:
    """The launches at a site whose numbers of rows, or strides, are known at run time only.

    Their arguments and grids are numbers of PyTorch. Raises `IllegalFusionError` for more rows than
    a kernel can number, and for sizes that no node has.
    """
    told = site.run_time
    if told is None:
        raise IllegalFusionError(AT_RUN_TIME)
    rows = [sizes.number(size) for size in told.row_sizes]
    total = math.prod(rows if plan.product is None else rows[:-1])
    if not isinstance(total, int) and not guard_or_false(total <= MAX_ROWS):
        raise IllegalFusionError("nothing bounds its rows, and a kernel cannot number all")
    given: tuple[Any, ...] = (
        rows,
        site.column_axes,
        [[sizes.number(size) for size in strides] for strides in told.input_strides],
        [[sizes.number(size) for size in strides] for strides in told.output_strides],
        site.input_offsets,
        site.table_rows,
    )
    found = launches(plan, config, *given)
    return tuple(replace(launch, constants=_decided(launch.constants)) for launch in found)


def _decided(constants: Mapping[str, Any]) -> dict[str, int | bool]:
    """Constants of a kernel: what holds at some sizes only is taken not to hold."""
    return {
        name: statically_known_true(value) if isinstance(value, torch.SymBool) else value
        for name, value in constants.items()
    }


def check_run_time(plan: FusionPlan, site: Site) -> None:
    """Refuse a site with sizes known at run time only where the kernel is not for any of them.

    Any number of rows will do, of as many columns as those that the plan was verified with: unless
    the sizes that were seen say that most of the work has another number of rows than the kernel
    was tuned for. Then the compiler's own code, which is tuned for none, is left.
    """
    if plan.members:
        raise IllegalFusionError(f"{AT_RUN_TIME}, and a group is called with known ones")
    told = site.run_time
    if told is None:
        raise IllegalFusionError(AT_RUN_TIME)
    if any(size.symbols for size in told.column_sizes):
        raise IllegalFusionError("the length of its rows is only known at run time")
    if plan.product is not None and told.row_sizes[-1].symbols:
        raise IllegalFusionError("the depth of its product is only known at run time")
    if why := unserved(plan, site):
        raise IllegalFusionError(why)
