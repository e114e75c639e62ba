"""Optimizer updates as many passes over all parameters."""

from __future__ import annotations

from dataclasses import replace

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding, finding_id
from advisor.model.graph import Node
from advisor.model.optable import item_bytes
from advisor.model.range_names import OPTIMIZER_STEP
from advisor.units import counted, format_fraction, format_ns
from analyzers.cost_model import kernel_time
from analyzers.dataflow import Dataflow
from analyzers.library_ops import call_of
from analyzers.node_work import elements_of
from analyzers.replay_changes import Change, distinct
from analyzers.rules.base import (
    Match,
    Place,
    Rule,
    basis_text,
    change_of,
    cost_of,
    exposure,
    is_worth,
    members_of,
    opportunity,
)
from analyzers.subject import GraphFacts, Subject

# Tensors read and written by a multi-tensor op (ATen's ForeachBinaryOp*.cu, ForeachPointwiseOp.cu),
# where nobody recorded how many lists it was given.
_PASSES = {
    **dict.fromkeys(("zero", "norm"), 1),
    **dict.fromkeys(("add_scalar", "mul", "sqrt", "neg", "copy", "reciprocal", "pow"), 2),
    **dict.fromkeys(("sign", "abs", "exp", "clamp_min", "clamp_max"), 2),
    **dict.fromkeys(("add", "div", "sub", "lerp", "maximum", "rsub"), 3),
    **dict.fromkeys(("addcmul", "addcdiv"), 4),
}
# Only writes, only reads, or writes without having read.
_OTHERWISE = ("zero", "norm", "copy")
# One pass of Adam reads parameter, gradient and two moments, and writes all but the gradient.
_FUSED_PASSES = 7
_SGD_PASSES = 5
_SHARE = 0.01
_FEWEST_UPDATES = 8


# PyTorch's other optimizers have no such argument.
_ACTION = (
    "construct the optimizer with fused=True where it is Adam, AdamW, SGD or Adagrad; any other "
    "with torch.compile of its step"
)
_ALTERNATIVES = (
    Alternative(
        route="generated_kernel",
        text=(
            "one launch of a kernel of ours for all parameters (Adam, AdamW, SGD, Lion): `apply` "
            "times it beside the fused one and keeps the faster (--only multi_tensor)"
        ),
    ),
    Alternative(
        route="compile_region",
        text=(
            "torch.compile of optimizer.step; keep a changing learning rate in a tensor, or every "
            "step recompiles"
        ),
    ),
    Alternative(
        route="do_not_fuse",
        text=(
            "fused Adam of PyTorch before 2.3 needed almost twice the registers and could lose to "
            "these (pytorch#121857): compare time per parameter"
        ),
    ),
)


def find(subject: Subject) -> tuple[Match, ...]:
    """Multi-tensor updates in several passes, and updates parameter by parameter."""
    found = []
    for facts in subject.graphs:
        nodes = [
            n
            for n in facts.graph.nodes
            if call_of(n).startswith("_foreach_") and subject.free(facts, n.id)
        ]
        nodes = _of_parameters(nodes, facts.flow)
        updates = [n for n in nodes if _kind(n) in ("addcdiv", "lerp", "add", "mul")]
        if len(nodes) > 1 and updates:
            match = _match(subject, Place(facts, frozenset(n.id for n in nodes)), nodes)
            found += [match] if match is not None else []
        else:
            found += _one_by_one(subject, facts)
    return tuple(found)


def _one_by_one(subject: Subject, facts: GraphFacts) -> list[Match]:
    """Updates in place that the optimizer's step launches parameter by parameter."""
    inside = _launched_in_step(subject, facts)
    ops = {facts.flow.nodes[name].origin for name in inside} - {None}
    nodes = [n.id for n in facts.graph.nodes if n.origin in ops and n.id in facts.flow.index]
    updates = [name for name in inside if facts.flow.nodes[name].label.endswith("_")]
    place = Place(facts, frozenset(n for n in nodes if subject.free(facts, n)))
    if len(updates) < _FEWEST_UPDATES or not place.fused:
        return []
    cost = cost_of(subject, [place])
    if not is_worth(subject, cost):
        return []
    return [
        opportunity(
            RULE.id,
            subject,
            [place],
            cost,
            title=f"Optimizer update in {counted(len(inside), 'op')}, parameter by parameter",
            action=f"{_ACTION}, or with foreach=True",
            dataflow=(
                "each parameter is updated by small ops of its own; they write in place, so they"
                " are fused by the library's multi-tensor kernels, not by reordering"
            ),
            key="one by one",
        )
    ]


def _launched_in_step(subject: Subject, facts: GraphFacts) -> list[str]:
    """First nodes of the ops whose kernels an optimizer step launched, fused ones left out."""
    if facts.part == "optimizer":
        return _first_nodes(facts)
    trace = subject.trace
    if trace is None:
        return []
    ranges = trace.ranges[trace.ranges["name"].astype(str).str.startswith(OPTIMIZER_STEP)]
    starts = ranges["start_ns"].to_numpy()
    ends = starts + ranges["duration_ns"].to_numpy()
    launch = trace.kernels["launch"].to_numpy(dtype="int64", na_value=-1)
    begun = trace.launches["start_ns"].to_numpy()
    found = []
    for name, rows in facts.kernels.items():
        call = launch[rows[0]]
        fused = call_of(facts.flow.nodes[name]).startswith("_fused_")
        if call >= 0 and not fused and ((starts <= begun[call]) & (begun[call] < ends)).any():
            found.append(name)
    return found


def _first_nodes(facts: GraphFacts) -> list[str]:
    """The first node of each op of an executed optimizer step, fused ones left out."""
    firsts: dict[str, str] = {}
    for node in facts.graph.nodes:
        works = node.origin is not None and node.id in facts.flow.index
        if works and not call_of(node).startswith("_fused_"):
            firsts.setdefault(str(node.origin), node.id)
    return list(firsts.values())


def _modelled_ns(subject: Subject, nodes: list[Node], flow: Dataflow) -> int:
    """What multi-tensor ops that were not timed would take: their passes over their list."""
    if subject.gpu is None or subject.calibration is None:
        return 0
    total = 0
    for node in nodes:
        moved = _list_bytes(node, flow) * _passes_of(node)
        total += kernel_time(subject.gpu, subject.calibration, bytes_moved=moved).mid
    return total


def _list_bytes(node: Node, flow: Dataflow) -> int:
    """Bytes of one of the lists of tensors that an op goes through."""
    values = node.value_args
    lists = node.attributes.get("lists")
    own = values[: len(values) // lists] if isinstance(lists, int) and lists else values
    metas = [meta for value in own if (meta := flow.meta(value)) is not None]
    return sum(elements_of(flow, meta) * item_bytes(meta.dtype) for meta in metas)


def _of_parameters(nodes: list[Node], flow: Dataflow) -> list[Node]:
    """The ops that go through lists as large as the parameters; not those that count steps."""
    sizes = [_list_bytes(node, flow) for node in nodes]
    least = _SHARE * max(sizes, default=0)
    return [node for node, size in zip(nodes, sizes, strict=True) if size >= least]


def _match(subject: Subject, place: Place, nodes: list[Node]) -> Match | None:
    price = place.facts.prices.price(place.facts.flow, place.fused)
    busy = subject.balance.device_ns if subject.balance else 0
    adaptive = any(_kind(n) in ("addcdiv", "addcmul") for n in nodes)
    before, after = _passes(nodes, adaptive=adaptive)
    untimed = [node for node in nodes if node.id in price.unpriced]
    time_ns = price.time_ns + _modelled_ns(subject, untimed, place.facts.flow)
    saved = round(time_ns * (1 - min(after / before, 1.0)))
    if time_ns < _SHARE * busy or saved <= 0:
        return None
    basis = basis_text(measured=bool(price.units), modelled=bool(untimed))
    traffic = Evidence(
        kind="traffic",
        text=(
            f"{before} reads and writes of all parameters or their state; one fused update "
            f"needs {after}"
        ),
        values={"passes_before": before, "passes_after": after},
    )
    time = Evidence(
        kind="time",
        text=(
            f"kernel time {subject.when} {format_ns(time_ns)} now ({basis}); up to "
            f"{format_fraction(saved / time_ns)} of it is traffic that goes"
        ),
        values={"before_ns": time_ns, "kernel_saving_ns": saved},
    )
    change = _as_one_op(change_of([place], Range(low=0, mid=saved, high=saved)), place)
    exposed, host = exposure(subject, change)
    name = "Adam" if adaptive else "SGD"
    finding = Finding(
        id=finding_id(RULE.id, name),
        rule=RULE.id,
        kind="opportunity",
        title=f"Optimizer update ({name}-like) in {counted(len(nodes), 'multi-tensor op')}",
        exposed_saving_ns=exposed,
        evidence=(traffic, time, host),
        members=members_of([place]),
        provenance=subject.provenance,
        action=_ACTION,
        alternatives=_ALTERNATIVES,
    )
    return Match(finding, place.nodes, change.saved_ns, "library", change)


def _as_one_op(change: Change, place: Place) -> Change:
    """The kernels of one op are left, not one alone: a launch holds so many tensors and no more.

    The op of most launches stands for the fused one, which has more lists to hold.
    """
    own = [unit.kernels for unit in place.facts.prices.price(place.facts.flow, place.fused).units]
    left = max(map(len, own), default=0)
    sites: list[list[int]] = [[] for _ in range(left)]
    for kernels in own:
        for at, row in enumerate(kernels):
            # What has fewer launches than that goes with the last of them.
            sites[at + left - len(kernels)].append(row)
    return replace(change, sites=distinct(sites)) if left else change


def _passes(nodes: list[Node], *, adaptive: bool) -> tuple[int, int]:
    """Reads and writes of all parameters or their state: (now, of one fused update)."""
    # Parameters of each dtype and device are a list of their own, with every op repeated.
    lists = max(sum(_kind(n) == "addcdiv" for n in nodes), 1)
    fused = _FUSED_PASSES if adaptive else _SGD_PASSES
    return sum(map(_passes_of, nodes)), lists * fused


def _passes_of(node: Node) -> int:
    """It reads each of its lists and writes one: `_foreach_div_` by numbers is no three passes."""
    kind, lists = _kind(node), node.attributes.get("lists")
    if not isinstance(lists, int) or not lists or kind in _OTHERWISE:
        return _PASSES.get(kind, 2)
    return lists + 1


def _kind(node: Node) -> str:
    """`aten._foreach_addcdiv_.Scalar` → addcdiv; an addition of a number is another op."""
    name = call_of(node).removeprefix("_foreach_").rstrip("_")
    return "add_scalar" if name == "add" and node.attributes.get("lists") == 1 else name


RULE = Rule(
    id="optimizer-updates",
    title="Optimizer updates in several passes",
    explanation=(
        "A foreach optimizer runs each arithmetic step of the update over all parameters before "
        "the next: Adam reads and writes every state tensor several times. A fused update touches "
        "each once. Updates mutate in place, so they are fused by the library, not by rewriting "
        "their order."
    ),
    bad=(
        "_foreach_lerp_, _foreach_mul_, _foreach_addcmul_, _foreach_sqrt, _foreach_div_, "
        "_foreach_add_, _foreach_addcdiv_"
    ),
    good="_fused_adamw_",
    find=find,
)
