"""What a written-out loop computes: whether its steps can be joined in any order, and in which way.

A step that is linear in the state, h' = a h + b, is one of the functions that are closed under
composition: (a2, b2) after (a1, b1) is (a2 a1, a2 b1 + b2). So all prefixes can be computed at once
(G. Blelloch, "Prefix Sums and Their Applications", 1990). So are maxima of sums. Anything else runs
step after step, whoever runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.graph import Node, is_value
from advisor.model.optable import spec_of
from analyzers.dataflow import Dataflow
from analyzers.library_ops import is_product
from analyzers.recurrence import Recurrence

_ADDING = frozenset({"add", "sub", "neg", "cast"})
# Operands of a product that are multiplied: an addend comes first where there are three.
_FACTORS = 2
_EXTREMES = {"maximum": "cummax", "minimum": "cummin"}
_FOLDS = {"cumsum": "sum", "cumprod": "prod", "cummax": "amax", "cummin": "amin"}


@dataclass(frozen=True)
class Form:
    """`call`: one operator of PyTorch computes the whole loop (`torch.cumsum`), "" if none does.

    `parallel`: steps can be joined in any order. `network`: a matrix product is in the loop.
    """

    what: str
    call: str = ""
    parallel: bool = False
    network: bool = False


def form_of(flow: Dataflow, loop: Recurrence) -> Form | None:
    """What a loop computes; None for layers with weights of their own, which are no recurrence."""
    nodes = {at: flow.nodes[loop.sample(at)] for at in loop.carried}
    if any(is_product(node) for node in nodes.values()):
        own = [at for at, node in nodes.items() if is_product(node)]
        shared = all(_has_fixed_matrix(flow, loop, at) for at in own)
        multiplied = any(_multiplies_state(loop, at, nodes[at]) for at in own)
        return Form("recurrent network", network=True) if shared and multiplied else None
    feeding = set(products(flow, loop)) - loop.readers(loop.carried)
    if not all(_has_fixed_matrix(flow, loop, at) for at in feeding):
        return None
    if any(spec_of(node.op).kind == "reduction" for node in nodes.values()):
        return Form("recurrence")
    call = _call(loop, nodes)
    if call and not reads_states(flow, loop):
        return Form(f"{_FOLDS[call]} over an axis", f"torch.{_FOLDS[call]}", parallel=True)
    if call:
        return Form(call, f"torch.{call}", parallel=True)
    if all(_is_linear(loop, at, node) for at, node in nodes.items()):
        return Form("scan", parallel=True)
    ops = {node.op for node in nodes.values()} - {"cast"}
    single = all(_dependent(loop, at, n) == 1 or n.op in _EXTREMES for at, n in nodes.items())
    if single and any(ops == {extreme, "add"} for extreme in _EXTREMES):
        return Form("scan", parallel=True)
    return Form("recurrence")


def products(flow: Dataflow, loop: Recurrence) -> list[int]:
    """The columns that are matrix products."""
    every = range(len(loop.columns))
    return [at for at in every if is_product(flow.nodes[loop.sample(at)])]


def scanned_nodes(flow: Dataflow, loop: Recurrence) -> frozenset[str]:
    """What a scan computes: all but products by a matrix of all steps, and what comes of these.

    Such a product is taken out of the loop whole: before it for the inputs, behind it for the
    states. One that reads out the state by a vector of its step belongs to the scan.
    """
    apart: set[int] = set()
    for at in products(flow, loop):
        read_out = 1 in flow.nodes[loop.sample(at)].outputs[0].shape[-2:]
        if at not in loop.carried and (_has_fixed_matrix(flow, loop, at) or not read_out):
            states = at in loop.readers(loop.carried)
            apart |= loop.readers({at}) - loop.carried if states else {at}
    kept = (column for at, column in enumerate(loop.columns) if at not in apart)
    return frozenset(name for column in kept for name in column.values())


def reads_states(flow: Dataflow, loop: Recurrence) -> bool:
    """Whether more than the last state is needed outside the steps that carry it."""
    carried = {name for at in loop.carried for name in loop.columns[at].values()}
    for at in loop.states:
        column = loop.columns[at]
        last = max(column)
        for k, name in column.items():
            value = flow.nodes[name].value()
            users = {use.consumer for use in flow.uses.get(value, ())}
            if k != last and (value in flow.escapes_graph or users - carried):
                return True
    return False


def _multiplies_state(loop: Recurrence, place: int, node: Node) -> bool:
    factors = range(max(len(node.args) - _FACTORS, 0), len(node.args))
    return any(_depends(loop, place, position) for position in factors)


def _has_fixed_matrix(flow: Dataflow, loop: Recurrence, place: int) -> bool:
    """Whether a product multiplies by the same matrix in every step."""
    args = flow.nodes[loop.sample(place)].args
    for at, position in loop.fixed:
        value = args[position] if at == place else None
        meta = flow.meta(value) if isinstance(value, str) and is_value(value) else None
        if meta is not None and len(meta.shape) >= 2:
            return True
    return False


def _dependent(loop: Recurrence, place: int, node: Node) -> int:
    """How many operands of a node depend on the state."""
    return sum(_depends(loop, place, position) for position in range(len(node.args)))


def _depends(loop: Recurrence, place: int, position: int) -> bool:
    source = loop.sources.get((place, position))
    return source is not None and source[0] in loop.carried


def _call(loop: Recurrence, nodes: dict[int, Node]) -> str:
    """The operator that computes such a loop alone, ""."""
    ops = {node.op for node in nodes.values()} - {"cast"}
    if any(_dependent(loop, at, node) != 1 for at, node in nodes.items()):
        return ""
    if ops == {"add"} or (ops <= {"add", "sub"} and all(_first(loop, at) for at in nodes)):
        return "cumsum"
    if ops == {"mul"}:
        return "cumprod"
    return _EXTREMES[ops.pop()] if len(ops) == 1 and ops <= set(_EXTREMES) else ""


def _first(loop: Recurrence, place: int) -> bool:
    return _depends(loop, place, 0)


def _is_linear(loop: Recurrence, place: int, node: Node) -> bool:
    """Whether a node is linear (with a constant term) in the operands that depend on the state."""
    count = _dependent(loop, place, node)
    if node.op in _ADDING:
        return True
    if node.op == "mul":
        return count == 1
    if node.op == "div":
        return count == 1 and _first(loop, place)
    if node.op == "where":
        return not _first(loop, place)
    if node.op == "fma":
        return not (_depends(loop, place, 0) and _depends(loop, place, 1))
    return False
