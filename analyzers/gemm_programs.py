"""Matrix products with the pointwise ops that only they feed: which are one kernel, and why not.

A library's product writes its result, and the kernel of what follows reads it again. One kernel
that computes a tile of the product can go on with the tile in registers. It takes the consumers of
the product (bias, activation, scale, residual sum, casts) and whatever pointwise feeds these alone
(the other half of a gated MLP). Ops that a row program or a scan takes stay with it: there the
product is read beside other tensors, and nothing is read twice for its sake.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from advisor.errors import IllegalFusionError
from advisor.model.gemm import OPERAND_DTYPES
from advisor.model.graph import ADDED, FACTORS, OPERANDS, TF32, Node, node_of
from advisor.model.optable import FLOAT8_MAX, FLOAT_DTYPES, RANDOM, spec_of
from advisor.model.sizes import Size, parse
from analyzers.dataflow import Dataflow
from analyzers.gemm_canonical import Spelled, canonical_gemm
from analyzers.growth import MAX_GROUP_OPS, MAX_GROUP_TENSORS, Group, closed, obstacle
from analyzers.iteration_space import IterationSpace, iteration_space
from analyzers.library_ops import call_of
from analyzers.row_plans import Program
from analyzers.row_programs import RowPrograms

# The arguments of products that are known: whether something is added to them.
_CALLS = {"aten.mm.default": False, "aten.addmm.default": True}
# What may be off by a last place; a test, or an integer that a number was rounded to, is not.
FLOATS = (*FLOAT_DTYPES, *FLOAT8_MAX)
BIAS = "all that follows is a bias, which the library's product adds itself"
# What a consumer says that another program has: nobody needs to be told of it.
TAKEN = "it is part of another program"


@dataclass(frozen=True)
class GemmFound:
    """A product, by the id of its node, and its program with what follows, or why it has none.

    `blamed` is the op that stays out; a product that nothing pointwise reads is not found at all.
    """

    node: str
    program: Program | None
    why: str = ""
    blamed: str = ""


@dataclass
class _Growing:
    """What a product took so far (ids, without its own) and what stays out of it."""

    members: frozenset[str] = frozenset()
    space: IterationSpace | None = None
    seed: str = ""
    rejected: dict[str, str] = field(default_factory=dict)


def gemm_programs(flow: Dataflow, taken: frozenset[str]) -> tuple[GemmFound, ...]:
    """All products of a graph that something pointwise follows; `taken` ops belong to others.

    The last product comes first: of the two that a gated MLP multiplies, it takes the ops of both.
    """
    claimed = dict.fromkeys(taken, TAKEN)
    found = []
    for node in reversed(flow.graph.nodes):
        if node.target not in _CALLS or call_of(node) not in ("mm", "addmm"):
            continue
        grown = _grow(flow, node, claimed)
        item = _judged(flow, node, grown)
        if item is None:
            continue
        found.append(item)
        if item.program is not None:
            claimed |= dict.fromkeys(item.program.site.nodes, TAKEN)
    return tuple(found)


def taken_by(found: RowPrograms, *others: Iterable[str]) -> frozenset[str]:
    """The ops that row programs want, in whatever way they are fused, and what `others` have."""
    rows = (group.members for group in found.every_group())
    return frozenset(name for members in (*rows, *others) for name in members)


def _judged(flow: Dataflow, node: Node, grown: _Growing) -> GemmFound | None:
    blamed, why = next(
        ((name, text) for name, text in grown.rejected.items() if text != TAKEN), ("", "")
    )
    if grown.space is None and not why:
        return None
    members = tuple(sorted(grown.members, key=flow.index.__getitem__))
    try:
        spelled = spelled_product(flow, node)
        if grown.space is None:
            return GemmFound(node.id, None, why, blamed)
        if _only_bias(flow, node, grown.members, grown.space):
            return GemmFound(node.id, None, why or BIAS, blamed or members[0])
        program = canonical_gemm(flow, spelled, Group(members, grown.space, node.id))
    except IllegalFusionError as error:
        return GemmFound(node.id, None, error.what, node.id)
    return GemmFound(node.id, program, why, blamed)


def _only_bias(flow: Dataflow, node: Node, members: frozenset[str], space: IterationSpace) -> bool:
    """Whether all that follows is the sum with a row of its type, read by every row of it."""
    others = [item for item in space.operands.values() if flow.base(item.value) != node.value()]
    if [flow.nodes[name].op for name in members] != ["add"] or not others:
        return False
    own = flow.need_meta(node.value()).dtype
    return all(
        flow.need_meta(item.value).dtype == own
        and all(item.strides[axis] is None for axis in space.rows)
        for item in others
    )


# --- the product itself ---------------------------------------------------------------------------


def spelled_product(flow: Dataflow, node: Node) -> Spelled:
    """The operands of a product; `IllegalFusionError` says why no kernel is generated of it."""
    values, adds = node.value_args, _CALLS[node.target]
    places = node.attributes.get(OPERANDS, (1, 2) if adds else (0, 1))
    added = node.attributes.get(ADDED, 0)
    if not isinstance(places, tuple) or not isinstance(added, int):
        raise IllegalFusionError("its operands are not known")
    usual = OPERANDS in node.attributes or len(values) == 2 + adds
    if not usual or max(*places, added * adds) >= len(values):
        raise IllegalFusionError("an operand is a constant")
    beta, alpha = (float(n) for n in str(node.attributes.get(FACTORS, "1 1")).split())
    if not (math.isfinite(beta) and math.isfinite(alpha)) or 0 in (alpha, beta):
        # Libraries read nothing of what they multiply by 0: its NaN and infinities are no matter.
        raise IllegalFusionError("its factors are only known at run time, or one of them is 0")
    found = Spelled(
        node=node,
        left=values[places[0]],
        right=values[places[1]],
        added=values[added] if adds else None,
        alpha=alpha,
        beta=beta,
        tf32=bool(node.attributes.get(TF32, False)),
    )
    _check_operands(flow, found)
    return found


def _check_operands(flow: Dataflow, product: Spelled) -> None:
    result = flow.need_meta(product.node.value())
    for value in (product.left, product.right):
        meta = flow.need_meta(value)
        if meta.dtype != result.dtype or meta.dtype not in OPERAND_DTYPES:
            raise IllegalFusionError(f"products of {meta.dtype} in {result.dtype} are left alone")
        if meta.device != result.device or len(meta.shape) != 2:
            raise IllegalFusionError("its operands are no matrices of one device")
        if any(parse(stride).coefficient == 0 for stride in meta.strides):
            raise IllegalFusionError("an operand repeats its elements")
        if flow.nodes[node_of(flow.base(value))[0]].hidden:
            raise IllegalFusionError("it would read a value from inside another op")
        for size in (*meta.shape, *meta.strides):
            flow.hint(parse(size))  # a site is described in numbers
    if flow.hint(parse(result.shape[1])) < 2 or flow.hint(parse(result.shape[0])) == 0:
        raise IllegalFusionError("it has one column or no rows: a product with a vector")


# --- what follows ---------------------------------------------------------------------------------


def _grow(flow: Dataflow, node: Node, claimed: Mapping[str, str]) -> _Growing:
    """Take consumers, then what feeds them alone, nearest first, until none is legal."""
    grown = _Growing()
    meta = flow.meta(node.value())
    if meta is None or len(meta.shape) != 2 or node.mutates or len(node.outputs) != 1:
        return grown
    width = parse(meta.shape[1])
    before = -1
    while before != len(grown.members):
        before = len(grown.members)
        for name in [*_consumers(flow, node, grown.members), *_feeders(flow, grown.members)]:
            if name not in grown.members and name != node.id:
                _take(flow, node, grown, name, claimed, width)
    return grown


def _consumers(flow: Dataflow, node: Node, members: frozenset[str]) -> list[str]:
    values = [node.value(), *(flow.nodes[name].value() for name in members)]
    found = {use.consumer for value in values for use in flow.uses.get(value, ())}
    return sorted(found - members, key=flow.index.__getitem__)


def _feeders(flow: Dataflow, members: frozenset[str]) -> list[str]:
    """Pointwise ops whose results only members read."""
    found = set()
    for name in members:
        for value in flow.nodes[name].value_args:
            base = flow.base(value)
            readers = {use.consumer for use in flow.uses.get(base, ())}
            if readers <= members and base not in flow.escapes_graph:
                found.add(node_of(base)[0])
    pointwise = {name for name in found if spec_of(flow.nodes[name].op).kind == "pointwise"}
    return sorted(pointwise - members, key=flow.index.__getitem__, reverse=True)


def _take(
    flow: Dataflow,
    node: Node,
    grown: _Growing,
    name: str,
    claimed: Mapping[str, str],
    width: Size,
) -> None:
    """Add an op and whatever lies between, or keep the reason why it stays out."""
    reason = obstacle(flow, name, node.id, claimed)
    kind = spec_of(flow.nodes[name].op).kind
    if reason is None and (kind != "pointwise" or flow.nodes[name].op == RANDOM):
        reason = "it is not computed element by element"
    if reason is not None:
        # Another product, a reduction or a view that follows is no epilogue to speak of.
        if kind == "pointwise":
            grown.rejected[name] = reason
        return
    wider = closed(flow, grown.members | {node.id}, name, node.id, claimed)
    if isinstance(wider, str):
        grown.rejected[name] = wider
        return
    members, seed = wider - {node.id}, grown.seed or name
    if any(spec_of(flow.nodes[n].op).kind != "pointwise" for n in members):
        grown.rejected[name] = "a reduction lies between"
        return
    try:
        space = iteration_space(flow, members, seed, width=width)
        _check(flow, node, members, space)
    except IllegalFusionError as error:
        grown.rejected[name] = error.what
        return
    grown.members, grown.space, grown.seed = members, space, seed
    grown.rejected = {n: why for n, why in grown.rejected.items() if n not in members}


def _check(flow: Dataflow, node: Node, members: frozenset[str], space: IterationSpace) -> None:
    """Raise unless every op runs once an element of the product, which is read as it is written."""
    whole = space.rows | space.columns
    own = flow.ancestors[node.id] & flow.communication
    if any(flow.ancestors[name] & flow.communication & ~own for name in members):
        raise IllegalFusionError("the product would wait for communication that it does not need")
    for name in members:
        if space.spans[flow.nodes[name].value()] != whole:
            raise IllegalFusionError("it is smaller than the product and would be recomputed")
    if any(space.spans[value] != whole for value in space.outputs):
        raise IllegalFusionError("a result that is no value an element of the product")
    if any(flow.need_meta(value).dtype not in FLOATS for value in space.outputs):
        raise IllegalFusionError(
            "a test or an integer of a sum that is added up in another order than the library's"
        )
    reads = [bound for bound in space.operands.values() if flow.base(bound.value) == node.value()]
    if not reads:
        raise IllegalFusionError("it does not read the product")
    for bound in reads:
        if list(bound.strides) != list(_row_major(space)):
            raise IllegalFusionError("it reads the product in another order than that of its tiles")
    if len(space.walked_columns) != 1:
        raise IllegalFusionError("a tensor walks the columns of the product along several axes")
    tensors = len({bound.value for bound in space.operands.values()}) + len(space.outputs)
    if tensors + 2 > MAX_GROUP_TENSORS or len(members) > MAX_GROUP_OPS:
        raise IllegalFusionError(f"the kernel would touch {tensors + 2} tensors")


def _row_major(space: IterationSpace) -> Iterator[Size]:
    """Strides of the product along all axes: it is written row by row."""
    for place in range(len(space.axes)):
        step = parse(1)
        for size in space.axes[place + 1 :]:
            step = step.times(size)
        yield step
