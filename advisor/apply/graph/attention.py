"""Attention written out in a Dynamo graph becomes one call of fused attention.

`softmax(Q Kᵀ · scale + mask) V` is found from each softmax by dataflow, whatever its spelling, and
replaced by `scaled_dot_product_attention`, or by FlexAttention where scores are capped. Autograd
derives the backward pass from the replacement. Calls of `scaled_dot_product_attention` that are
there already get arguments that a fused kernel takes, where none takes them as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace
from torch import fx

from advisor.apply.graph.arguments import Inputs, inputs_of
from advisor.apply.graph.constants import Constants
from advisor.apply.graph.cudnn import LEFT_OUT, leave_out_cudnn
from advisor.apply.graph.emit import Emitter, erase, relax_layout, sized
from advisor.apply.graph.fitting import fit_own_calls, kernels_of, masked_calls
from advisor.apply.graph.flexible import BlockCache, check_flex, write_flex_call
from advisor.apply.graph.flow import Flow
from advisor.apply.graph.library import write_library_call
from advisor.apply.graph.masks import Mask, mask_of
from advisor.apply.graph.products import Size
from advisor.apply.graph.records import Rewritten, Route
from advisor.apply.graph.sdpa import attention_calls_of, graphs_of
from advisor.apply.graph.site import Reader, Site
from advisor.apply.graph.softmax import Softmax, softmaxes
from advisor.apply.graph.spelling import spelled
from advisor.errors import IllegalFusionError
from collectors.live.fx_builder import location_of

# Ops that run a graph given as their first argument on the others.
_WRAPPERS = frozenset(("tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap"))
# What changes how the ops after it are computed or differentiated.
_MODES = frozenset(
    (
        "_set_grad_enabled",
        "_enter_autocast",
        "_exit_autocast",
        "_enter_inference_mode",
        "_exit_inference_mode",
        "_vmap_increment_nesting",
        "_vmap_decrement_nesting",
    )
)


# A record and the node that calls fused attention now; None where the site stays.
_Found = tuple[Rewritten, fx.Node | None]


@dataclass(frozen=True)
class _Choice:
    """What a caller wants of routes, and what its sites share."""

    flex_devices: frozenset[str]
    prefer_flex: bool
    nested: bool = False
    blocks: BlockCache = field(default_factory=dict)


def rewrite_attention(
    gm: fx.GraphModule,
    *,
    prefer_flex: bool = False,
    flex_devices: Collection[str] = ("cuda",),
) -> tuple[Rewritten, ...]:
    """Replace every written-out attention of a Dynamo graph in place, where that is legal.

    FlexAttention takes what `scaled_dot_product_attention` cannot express, on `flex_devices`;
    with `prefer_flex` also what that one needs a mask tensor for. Checkpointed parts are
    rewritten too. Gives one record a site: replaced, or refused with the reason. A second call
    finds only what was refused. A softmax that is no attention gives no record; of the program's
    own calls with a mask, `prefer_flex` has one that says why they stay. Where cuDNN may
    return wrong gradients for what is written here, it is left out (see `cudnn`).
    """
    found = _rewrite_graph(gm, _Choice(frozenset(flex_devices), prefer_flex), {})
    written = {node for _, node in found}
    own = [call for call in attention_calls_of(gm) if call.node not in written]
    found += fit_own_calls(own)
    if prefer_flex:
        found += [(record, None) for record in masked_calls(own, {node for _, node in found})]
    changed = {node for record, node in found if record.refused is None}
    ours = [call for call in attention_calls_of(gm) if call.node in changed]
    theirs = [call for call in attention_calls_of(gm) if call.node not in changed]
    reasons = dict(zip((c.node for c in ours), leave_out_cudnn(ours, theirs), strict=True))
    if changed:
        for module in graphs_of(gm):
            module.graph.lint()
            module.recompile()
    return tuple(
        _on_record(record, reasons.get(node, "") if node else "") for record, node in found
    )


def _on_record(record: Rewritten, reason: str) -> Rewritten:
    """A record that says why cuDNN is left out, if it is."""
    if not reason:
        return record
    backends = tuple(name for name in record.backends if name != "cudnn")
    return replace(record, backends=backends, changes=(*record.changes, LEFT_OUT + reason))


def _rewrite_graph(
    gm: fx.GraphModule, choice: _Choice, given: Mapping[fx.Node, torch.Tensor]
) -> list[_Found]:
    flow = Flow(gm.graph)
    constants = Constants(flow, given)
    found: list[_Found] = []
    for call, body in _bodies(gm):
        known = _known_arguments(call, body, constants)
        found += _rewrite_graph(body, dataclasses.replace(choice, nested=True), known)
    for softmax in list(softmaxes(flow, gm.graph)):
        one = _rewritten(gm, softmax, constants, choice)
        if one is None:
            continue
        found.append(one)
        if one[0].refused is None:
            constants.rebind(Flow(gm.graph))
    return found


def _bodies(gm: fx.GraphModule) -> list[tuple[fx.Node, fx.GraphModule]]:
    """Graphs of checkpointed and wrapped parts, with the only call of each."""
    found = []
    for node in gm.graph.find_nodes(op="get_attr"):
        body = getattr(gm, str(node.target), None)
        calls = list(node.users)
        if not isinstance(body, fx.GraphModule) or len(calls) != 1:
            continue
        call = calls[0]
        if getattr(call.target, "__name__", "") in _WRAPPERS and call.args[0] is node:
            found.append((call, body))
    return found


def _known_arguments(
    call: fx.Node, body: fx.GraphModule, constants: Constants
) -> dict[fx.Node, torch.Tensor]:
    """The arguments of a body that are constants where it is called."""
    places = body.graph.find_nodes(op="placeholder")
    found = {}
    for place, argument in zip(places, call.args[1:], strict=False):
        value = constants.value(argument, call) if isinstance(argument, fx.Node) else None
        if value is not None and len(places) == len(call.args) - 1:
            found[place] = value
    return found


def _rewritten(
    gm: fx.GraphModule, softmax: Softmax, constants: Constants, choice: _Choice
) -> _Found | None:
    flow, location = constants.flow, location_of(softmax.result)
    what = "attention"
    route: Route | None = None
    try:
        site = Reader(flow, constants).site(softmax)
        if site is None:
            return None
        _check_private(site, flow)
        inputs = inputs_of(site, constants)
        what = _in_words(site, inputs)
        shapes = inputs.shapes
        mask = mask_of(inputs.steps, (shapes.queries, shapes.keys), inputs.dtype, constants)
        what += f", {mask.words}"
        not_flex = _why_not_flex(site, inputs, mask, choice)
        preferred = bool(inputs.caps) or (choice.prefer_flex and not not_flex)
        route = "flex_attention" if preferred else "scaled_dot_product_attention"
        if route == "flex_attention":
            check_flex(site, inputs, mask, choice.flex_devices, nested=choice.nested)
        _check_writes(site, inputs, flow)
        call = _replace(gm, site, inputs, mask, route, constants, choice.blocks)
    except IllegalFusionError as error:
        return Rewritten(what=what, location=location, route=route, refused=error.what), None
    record = Rewritten(
        what=what,
        location=location,
        route=route,
        backends=kernels_of(call) if route == "scaled_dot_product_attention" else (),
        or_flex=not not_flex,
        not_flex=not_flex,
        changes=_changes(site, mask),
    )
    return record, call


def _why_not_flex(site: Site, inputs: Inputs, mask: Mask, choice: _Choice) -> str:
    """Why FlexAttention is not for what `scaled_dot_product_attention` takes; empty if it is."""
    if mask.kind == "none":
        return "there is no mask or bias, and the library call reads none"
    if mask.kind == "causal":
        return "the mask is causal, which the library call takes as is_causal"
    try:
        check_flex(site, inputs, mask, choice.flex_devices, nested=choice.nested)
    except IllegalFusionError as error:
        return error.what
    return ""


def _replace(
    gm: fx.GraphModule,
    site: Site,
    inputs: Inputs,
    mask: Mask,
    route: Route,
    constants: Constants,
    blocks: BlockCache,
) -> fx.Node:
    """The call that stands in the place of the site."""
    emit = Emitter(gm.graph, site.result.node)
    before = set(gm.graph.nodes)
    try:
        if route == "flex_attention":
            call = write_flex_call(emit, gm, site, inputs, mask, constants, blocks)
        else:
            call = write_library_call(emit, site, inputs, mask, constants)
        result = _as_before(emit, call, site)
    except IllegalFusionError:
        for node in reversed([n for n in gm.graph.nodes if n not in before]):
            gm.graph.erase_node(node)
        raise
    position = constants.flow.position
    site.result.node.replace_all_uses_with(result)
    erase(gm.graph, site.region, position)
    relax_layout(emit, result)
    return call


def _as_before(emit: Emitter, call: fx.Node, site: Site) -> fx.Node:
    """The result of the call with the axes of the product that it replaces."""
    product = site.result
    wanted = sized(product.node)
    inner: list[Size] = list(wanted)
    for place, axis in enumerate(product.order):
        inner[axis] = wanted[place]
    node = call
    if len(inner) != 4:
        node = emit.method("reshape", node, tuple(inner))
    if product.order != tuple(range(len(wanted))):
        node = emit.method("permute", node, product.order)
    return node


def _check_private(site: Site, flow: Flow) -> None:
    """Nothing but the site reads scores or weights."""
    region = set(site.region)
    softmax = site.region.index(site.softmax.result)
    for place, node in enumerate(site.region):
        for reader in flow.readers(node) if node is not site.result.node else ():
            if reader not in region:
                kind = "scores" if place < softmax else "weights"
                raise IllegalFusionError(f"the attention {kind} are also read by {spelled(reader)}")


def _check_writes(site: Site, inputs: Inputs, flow: Flow) -> None:
    """Everything that the one call reads still holds what the ops read."""
    place, last = flow.position, flow.position[site.result.node]
    known = frozenset(site.region)
    first = min(place[node] for node in site.region)
    for node, number in place.items():
        if first < number < last and spelled(node) in _MODES:
            raise IllegalFusionError(f"{spelled(node)} changes the mode in the middle of it")
    reads = [(node, place[reader]) for node, reader in inputs.reads(site)]
    reads += [(node, place[node]) for node in site.region]
    for node, first in reads:
        writer = flow.write_to((node,), first, last, known)
        if writer is not None:
            raise IllegalFusionError(f"{spelled(writer)} writes in place in the middle of it")


def _in_words(site: Site, inputs: Inputs) -> str:
    shapes = inputs.shapes
    grouped = f", {inputs.groups} to one of keys and values," if inputs.groups > 1 else ""
    capped = ", scores capped by tanh" if inputs.caps else ""
    dropout = f", dropout {site.dropout:g}" if site.dropout else ""
    return (
        f"attention of {_count(shapes.lead[1])} heads{grouped} of {_count(shapes.dim)},"
        f" {_count(shapes.queries)} queries by {_count(shapes.keys)} keys{capped}{dropout}"
    )


def _count(size: Size) -> str:
    return str(size) if isinstance(size, int) else "any number of"


def _changes(site: Site, mask: Mask) -> tuple[str, ...]:
    dropped = "dropout draws other random numbers of the same distribution"
    return (*mask.changes, dropped) if site.dropout else mask.changes
