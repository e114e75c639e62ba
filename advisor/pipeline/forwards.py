"""Which plans are the whole `forward` of a module: by the captured graph, then by numbers.

The graph shows that a site's ops are those of one call, that this call has no other, and what goes
in and comes out; the source, what else decides what is computed; running both, that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.model.base import check_deep
from advisor.model.forward import Forwards, PlanForwards, WholeForward
from advisor.model.graph import Graph, Node
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, Site
from advisor.verify.forward import Binding, bind_forward
from collectors.live.forward_source import ForwardSource, read_forward
from collectors.live.module_calls import ModuleCall, ModuleCalls

# Sites of a plan that are looked at: those of the layers of a model are alike.
MOST_TRIED = 4
BACKWARD = "it is part of the backward pass, which no forward holds"
BROKEN = "the step has several graphs, in which calls of modules cannot be told apart"
NO_MODEL = "a script or a step of one's own says of no module what calls it"
TOGETHER = "it holds programs of several places"
LOOP = "it is a loop"
PRODUCT = "its product is launched over [rows, depth, columns], not over what a forward is given"
RANDOM = "it draws random numbers, other ones than the forward does"


def find_forwards(
    plans: Sequence[FusionPlan], graphs: Sequence[Graph], calls: ModuleCalls | None, part: Any
) -> Forwards:
    """What is known of each plan; `part` is what was captured, `calls` its calls of modules."""
    if calls is None or not isinstance(part, nn.Module):
        told = [PlanForwards(plan_id=plan.id, reason=NO_MODEL) for plan in plans]
        return Forwards(plans=tuple(told))
    by_id = {graph.id: graph for graph in graphs}
    return Forwards(plans=tuple(_of_plan(plan, by_id, calls, part) for plan in plans))


def _of_plan(
    plan: FusionPlan, graphs: dict[str, Graph], calls: ModuleCalls, part: nn.Module
) -> PlanForwards:
    why = _hopeless(plan, calls)
    if why:
        return PlanForwards(plan_id=plan.id, reason=why)
    found: dict[tuple[str, str], WholeForward] = {}
    reasons: list[str] = []
    for site in _tried(plan.sites):
        try:
            forward = _whole(plan, site, graphs[site.graph], calls, part)
            found.setdefault((forward.file, forward.type_name), forward)
        except IllegalFusionError as error:
            reasons.append(error.what)
    if found:
        return PlanForwards(plan_id=plan.id, forwards=tuple(found.values()))
    return PlanForwards(plan_id=plan.id, reason=reasons[0] if reasons else "it has no site")


def _hopeless(plan: FusionPlan, calls: ModuleCalls) -> str:
    """Why no site of a plan is worth a look; "" if they are."""
    if plan.phase == "backward":
        return BACKWARD
    if plan.members:
        return TOGETHER
    if plan.states:
        return LOOP
    if plan.product is not None:
        return PRODUCT
    if plan.drawn_values():
        return RANDOM
    return BROKEN if calls.graphs != 1 else ""


def _tried(sites: Iterable[Site]) -> list[Site]:
    """The first and the last sites: what is at the ends of a model may differ."""
    every = list(sites)
    half = MOST_TRIED // 2
    return every if len(every) <= MOST_TRIED else [*every[:half], *every[-half:]]


def _whole(
    plan: FusionPlan, site: Site, graph: Graph, calls: ModuleCalls, part: nn.Module
) -> WholeForward:
    """The forward that the plan is at a site; raises `IllegalFusionError` with the reason."""
    call = _one_call(site, graph, calls)
    try:
        module = part.get_submodule(call.path)
    except AttributeError:
        raise IllegalFusionError(f"the model has no module {call.path}") from None
    name = type(module).__name__
    try:
        source = read_forward(module, len(call.values))
        held = bind_forward(
            plan, site, module, source.parameters, call.reads,
            sizes_matter=source.depends_on_sizes,
        )  # fmt: skip
    except IllegalFusionError as error:
        raise IllegalFusionError(f"{name} ({call.path or 'the model'}): {error.what}") from error
    found = _record(call, name, source, held)
    try:
        check_deep(found)  # names and lines of any program: a record that holds them is read again
    except InvalidRecordError as error:
        raise IllegalFusionError(f"{name[:40]!r}: {error.what}") from error
    return found


def _one_call(site: Site, graph: Graph, calls: ModuleCalls) -> ModuleCall:
    """The call whose ops are those of a site, no more and no fewer."""
    nodes, own = graph.by_id(), set(site.nodes)
    found: dict[int, ModuleCall] = {}
    for name in site.nodes:
        call = calls.of_node.get(nodes[name].origin or "")
        if call is None:
            raise IllegalFusionError(f"its {nodes[name].op} is in no forward of a module")
        found[id(call)] = call
    call, *others = found.values()
    if others:
        named = sorted({item.path or "the model itself" for item in found.values()})
        raise IllegalFusionError(f"it holds ops of {' and '.join(named)}")
    where = call.path or "the model"
    if call.inner is not None:
        raise IllegalFusionError(f"the forward of {where} also calls {call.inner}")
    if call.foreign is not None:
        raise IllegalFusionError(f"the forward of {where} reads {call.foreign} of another module")
    left = [n for n in graph.nodes if n.origin in call.nodes and n.id not in own and _computes(n)]
    if left:
        raise IllegalFusionError(f"the forward of {where} also computes {_named(left[0])}")
    if len(call.results) != 1:
        raise IllegalFusionError(f"the forward of {where} gives {len(call.results)} tensors")
    return call


def _computes(node: Node) -> bool:
    return bool(node.args) and spec_of(node.op).kind != "view"


def _named(node: Node) -> str:
    return node.op if node.op != "opaque" else node.label or node.target


def _record(call: ModuleCall, name: str, source: ForwardSource, held: Binding) -> WholeForward:
    used = {item.name for item in held.inputs if item.holder == "argument"}
    here = Path.cwd()
    file = source.file.relative_to(here) if source.file.is_relative_to(here) else source.file.name
    return WholeForward(
        module=call.path,
        type_name=name,
        owner=source.owner,
        file=Path(file).as_posix(),
        inputs=held.inputs,
        constants=source.constants,
        output=held.output,
        shape=call.results[0].shape,
        exact=held.exact,
        arguments=tuple(item for item in source.parameters if item in used),
        variable=source.variable,
        indent=source.indent,
        body=source.body,
        imports=source.imports,
    )
