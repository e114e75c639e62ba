"""What the nodes of an exact graph cost today: the user's own kernels, from the user's own trace.

Eager: nodes decomposed from one source op are one eager op; it is found in the trace by its name
and the shapes and dtypes of its tensor inputs, and costs the median of the kernels such an op
launched. Compiled: the compiler's own provenance says which nodes each generated kernel computes. A
node found in neither is unpriced, never free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median

from advisor.model.findings import Member
from advisor.model.graph import GRADIENT, Graph, Node, node_of
from advisor.model.optable import spec_of
from advisor.model.trace import Trace
from analyzers.dataflow import Dataflow
from analyzers.recorded_costs import OpCost, OpKey, kernel_executions, op_costs

LIBRARY_PRODUCTS = ("aten.mm.default", "aten.addmm.default")
# A call of a generated kernel: its name, and the nodes that it computes.
KernelCall = tuple[str, frozenset[str]]
Rows = tuple[int, ...]
# The runs of some graphs in a step, in order: the place of the graph, and whether it is given the
# sizes that it was captured with.
Runs = Sequence[tuple[int, bool]]


@dataclass(frozen=True)
class Unit:
    """Kernels that run together for some nodes: one eager op, or one call of a generated kernel.

    `time_ns` and `launches` are those of all its `executions` in a step, `kernels` the rows of one
    in the trace's last step, empty where the unit was not found there, `again` those of the others.
    """

    name: str
    nodes: frozenset[str]
    time_ns: int
    launches: int
    kernels: Rows = ()
    again: tuple[Rows, ...] = ()

    @property
    def executions(self) -> int:
        """How often it runs in a step."""
        return 1 + len(self.again)


@dataclass(frozen=True)
class Price:
    """The present cost of a group: kernels that compute any of its nodes, and nodes nobody priced.

    `shared` are the units that also compute nodes outside the group: replacing the group leaves
    part of their work behind.
    """

    units: tuple[Unit, ...]
    shared: tuple[Unit, ...]
    unpriced: frozenset[str]

    @property
    def time_ns(self) -> int:
        """Kernel time of all units."""
        return sum(unit.time_ns for unit in self.units)

    def members(self) -> tuple[Member, ...]:
        """The units by name, most expensive first."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            found.setdefault(unit.name, []).append(unit)
        rows = [
            Member(
                name=name,
                count=sum(unit.executions for unit in own),
                time_ns=sum(unit.time_ns for unit in own),
            )
            for name, own in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-(row.time_ns or 0), row.name)))

    def rows(self) -> list[list[int]]:
        """The rows of the units' kernels in the trace's last step, execution by execution."""
        runs = zip_longest(*((unit.kernels, *unit.again) for unit in self.units), fillvalue=())
        return [[row for own in run for row in own] for run in runs]


@dataclass(frozen=True)
class PriceList:
    """Units of one graph; `by_node` indexes them.

    `fused` units swallow nodes that the compiler's provenance does not name: of its kernels' nodes
    none is unpriced, and a group in none of them is in no kernel. `products` are the library's own
    kernels of matrix products beside such units, by node.
    """

    units: tuple[Unit, ...]
    by_node: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fused: bool = False
    products: Mapping[str, Unit] = field(default_factory=dict)

    def price(self, flow: Dataflow, members: Iterable[str]) -> Price:
        """The price of a group of nodes (views cost nothing and are not asked for)."""
        group = frozenset(members)
        hit = sorted({index for name in group for index in self.by_node.get(name, ())})
        units = tuple(self.units[index] for index in hit)
        shared = tuple(
            unit for unit in units if any(_computes(flow, n) for n in unit.nodes - group)
        )
        priced = {name for unit in units for name in unit.nodes}
        unpriced = frozenset() if self.fused else frozenset(group - priced)
        return Price(units, shared, unpriced)


def price_list(units: Iterable[Unit], *, fused: bool = False) -> PriceList:
    """Index units by the nodes they compute."""
    held = tuple(units)
    index: dict[str, list[int]] = {}
    for position, unit in enumerate(held):
        for name in unit.nodes:
            index.setdefault(name, []).append(position)
    return PriceList(held, {name: tuple(found) for name, found in index.items()}, fused)


def _computes(flow: Dataflow, name: str) -> bool:
    node = flow.nodes.get(name)
    return node is not None and spec_of(node.op).kind != "view" and bool(node.args)


def eager_prices(
    graphs: Sequence[Graph], trace: Trace, runs: Runs | None = None
) -> list[PriceList]:
    """Price the source ops of a step's graphs by the same ops in an eager trace.

    The k-th op of one name and inputs is the k-th such op of the last step, in the order of the
    graphs' `runs`: by default one graph after the other.
    """
    costs = op_costs(trace)
    ops = _that_ran([_keyed_ops(graph, costs) for graph in graphs], graphs, costs)
    rows: list[list[list[Rows]]] = [[[] for _ in own] for own in ops]
    for at, like in runs or _in_turn(graphs):
        for op, known in zip(ops[at], rows[at], strict=True) if like else ():
            known.append(costs[op.key].next())
    return [
        price_list(
            [
                _of_runs(op.key[0], op.nodes, costs[op.key], runs_of)
                for op, runs_of in zip(own, known, strict=True)
            ]
        )
        for own, known in zip(ops, rows, strict=True)
    ]


def _that_ran(
    ops: Sequence[Sequence[_KeyedOp]], graphs: Sequence[Graph], costs: Mapping[OpKey, OpCost]
) -> list[list[_KeyedOp]]:
    """The ops of each graph, less the repeats of equal ones that the step did not run."""
    wanted: Counter[OpKey] = Counter()
    for graph, own in zip(graphs, ops, strict=True):
        for op in own:
            wanted[op.key] += graph.executions
    # Equal ops are one node: more of them than ran in a step did not run.
    surplus = {key: number - len(costs[key].last) for key, number in wanted.items()}
    ran = []
    for graph, own in zip(reversed(graphs), reversed(ops), strict=True):
        kept = []
        for op in reversed(own):
            if op.is_repeat and surplus[op.key] > 0:
                surplus[op.key] -= graph.executions
            else:
                kept.append(op)
        ran.append(kept[::-1])
    return ran[::-1]


def _in_turn(graphs: Sequence[Graph]) -> Runs:
    return [(at, True) for at, graph in enumerate(graphs) for _ in range(graph.executions)]


@dataclass(frozen=True)
class _KeyedOp:
    """A source op as the trace knows it; a repeat has no node that was first made for it."""

    key: OpKey
    nodes: frozenset[str]
    is_repeat: bool


def _keyed_ops(graph: Graph, costs: Mapping[OpKey, OpCost]) -> list[_KeyedOp]:
    """The source ops of a graph that the trace has."""
    by_id = graph.by_id()
    found = []
    for (origin, label), nodes in _source_ops(graph):
        key = next((key for key in _keys(by_id, label, nodes) if key in costs), None)
        if key is not None:
            own = frozenset(node.id for node in nodes)
            first = any(((n.origin or n.id), n.label) == (origin, label) for n in nodes)
            found.append(_KeyedOp(key, own, not first))
    return found


def _of_runs(name: str, nodes: frozenset[str], cost: OpCost, rows: Sequence[Rows]) -> Unit:
    times = len(rows)
    return Unit(name, nodes, times * cost.time_ns, times * cost.launches, rows[0], tuple(rows[1:]))


def compiled_prices(
    graphs: Sequence[tuple[Graph, Sequence[KernelCall]]],
    trace: Trace,
    runs: Runs | None = None,
) -> list[PriceList]:
    """Price the generated kernels of a step's graphs, `runs` as for `eager_prices`.

    The k-th call of a kernel is its k-th execution in every step, whichever graph calls it: names
    recur from graph to graph. Where the counts differ every call costs the median of all
    executions.
    """
    executions, costs = kernel_executions(trace), op_costs(trace)
    order = runs or _in_turn([graph for graph, _ in graphs])
    seen: Counter[str] = Counter()
    positions: list[list[list[int]]] = [[[] for _ in calls] for _, calls in graphs]
    for at, like in order:
        for (name, _), known in zip(graphs[at][1], positions[at], strict=True):
            if like:
                known.append(seen[name])
            seen[name] += 1
    found = []
    for (graph, calls), own in zip(graphs, positions, strict=True):
        known_nodes = {node.id for node in graph.nodes}
        units = [
            _generated(name, nodes & known_nodes, executions[name], seen[name], places)
            for (name, nodes), places in zip(calls, own, strict=True)
            if executions.get(name) and places
        ]
        held = price_list(units, fused=True)
        found.append(replace(held, products=_products(graph, held, costs)))
    return found


def _generated(
    name: str,
    nodes: frozenset[str],
    steps: Sequence[Sequence[tuple[int, int]]],
    calls: int,
    places: Sequence[int],
) -> Unit:
    """A call of a kernel, at these places among all `calls` of a step; executions step by step."""
    if all(len(step) == calls for step in steps):
        times = [round(median(step[place][1] for step in steps)) for place in places]
    else:
        usual = round(median(duration for step in steps for _, duration in step))
        times = [usual] * len(places)
    rows = [tuple(row for row, _ in steps[-1][place : place + 1]) for place in places]
    return Unit(name, nodes, sum(times), len(places), rows[0], tuple(rows[1:]))


def _products(graph: Graph, held: PriceList, costs: Mapping[OpKey, OpCost]) -> dict[str, Unit]:
    """Products that a library computes in a compiled graph, which gives them their result too."""
    found = {}
    by_id = graph.by_id()
    for node in graph.nodes:
        if node.target not in LIBRARY_PRODUCTS or node.id in held.by_node or not node.outputs:
            continue
        inputs = []
        for value in node.value_args:
            producer, output = node_of(value)
            inputs.append(by_id[producer].outputs[output])
        kinds = [(meta.dtype, meta.shape) for meta in (*inputs, node.outputs[0])]
        name = "::".join(node.target.split(".")[:2])
        cost = costs.get((name, tuple(kinds))) or costs.get((name, tuple(kinds[:-1])))
        if cost is not None:
            rows = [cost.next() for _ in range(graph.executions)]
            found[node.id] = _of_runs(name, frozenset((node.id,)), cost, rows)
    return found


def _source_ops(graph: Graph) -> list[tuple[tuple[str, str], list[Node]]]:
    """((origin, label), nodes) of the source ops of a graph; views and inputs belong to none.

    A node that several equal ops compute belongs to each of them: eager runs them all.
    """
    found: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        if spec_of(node.op).kind == "view" or not node.args:
            continue
        origin = node.origin or node.id
        for other in ((origin, node.label), *((op.origin, op.label) for op in node.repeats)):
            found.setdefault(other, []).append(node)
    return list(found.items())


def _keys(by_id: Mapping[str, Node], label: str, nodes: Sequence[Node]) -> Iterator[OpKey]:
    """What the trace may know an op by, the likelier first.

    Of what the compiler computes again eager reads some as the forward pass saved it, and the rest
    is a part of the gradient op that an equal one of the forward pass has stood in for. Autograd
    adds the gradients of several uses in place where it can.
    """
    own = [node for node in nodes if not node.recomputed]
    for group in (own, nodes) if own else ():
        key = _key(by_id, label, group)
        if key is None:
            continue
        if key[0] == "aten::add" and (group[0].origin or "").startswith(GRADIENT):
            yield "aten::add_", key[1]
        yield key


def _key(by_id: Mapping[str, Node], label: str, nodes: Sequence[Node]) -> OpKey | None:
    """The eager op's name and tensor inputs: what the group reads from outside itself."""
    own = {node.id for node in nodes}
    name = _eager_name(label or nodes[0].target)
    inputs = []
    for value in _operands(label, nodes):
        producer, output = node_of(value)
        if producer in own or output >= len(by_id[producer].outputs):
            continue
        meta = by_id[producer].outputs[output]
        if meta.shape:
            inputs.append((meta.dtype, meta.shape))
    if name == "aten::copy_":
        out = nodes[-1].outputs[0]
        inputs.insert(0, (out.dtype, out.shape))
    return (name, tuple(inputs)) if inputs else None


def _operands(label: str, nodes: Sequence[Node]) -> list[str]:
    """What an eager op reads, in order.

    `x * x` is given x twice and decomposes into one node; `pow(x, 2)` becomes `x * x` but is given
    x once, and so is an op whose several nodes share an operand.
    """
    values = [value for node in nodes for value in node.value_args]
    given_twice = len(nodes) == 1 and not label.startswith("aten.pow")
    return values if given_twice else list(dict.fromkeys(values))


def _eager_name(label: str) -> str:
    """`aten.mul.Tensor` as the profiler writes it; a cast runs as a copy."""
    parts = label.split(".")
    if label.startswith(("prims.convert_element_type", "aten._to_copy")):
        return "aten::copy_"
    return "::".join(parts[:2]) if len(parts) > 1 else label
