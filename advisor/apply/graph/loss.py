"""The loss over a vocabulary in a Dynamo graph becomes one that computes its logits in pieces.

`cross_entropy(h Wᵀ + b, labels)` is found from each loss by dataflow, through views, shifts by
slicing, casts, scales and a soft cap, spelled with `log_softmax` and `nll_loss` or not. Then comes
`advisor.apply.chunked_loss` in its place. Legal where nothing else reads the logits.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from advisor.apply.chunked_loss import chunked_cross_entropy
from advisor.apply.graph.constants import Constants
from advisor.apply.graph.emit import Emitter, arranged, erase
from advisor.apply.graph.flow import Flow
from advisor.apply.graph.loss_site import LossReader, LossSite, is_loss
from advisor.apply.graph.products import Size, tensor
from advisor.apply.graph.records import Rewritten
from advisor.apply.graph.spelling import spelled
from advisor.errors import IllegalFusionError
from advisor.model.loss_chunks import LossSizes, rows_of_chunk
from advisor.units import format_bytes
from collectors.live.fx_builder import location_of

# What changes what is differentiated.
_MODES = frozenset(("_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode"))


def rewrite_losses(gm: fx.GraphModule, *, chunk: int | None = None) -> tuple[Rewritten, ...]:
    """Replace every loss over a vocabulary of a Dynamo graph in place, where that is legal.

    `chunk` is the number of rows whose logits exist at once; by default it is chosen from rows and
    memory, and a loss is left alone where that saves no memory. Gives one record a site: replaced,
    or refused with the reason.
    """
    flow = Flow(gm.graph)
    constants = Constants(flow)
    found: list[Rewritten] = []
    for node in [item for item in gm.graph.nodes if is_loss(item)]:
        record = _rewritten(gm, node, constants, chunk)
        if record is None:
            continue
        found.append(record)
        if record.refused is None:
            constants.rebind(Flow(gm.graph))
    if any(record.refused is None for record in found):
        gm.graph.lint()
        gm.recompile()
    return tuple(found)


def _rewritten(
    gm: fx.GraphModule, loss: fx.Node, constants: Constants, chunk: int | None
) -> Rewritten | None:
    what, location = "cross-entropy", location_of(loss)
    try:
        site = LossReader(constants.flow, constants).site(loss)
        if site is None:
            return None
        what = _in_words(site)
        _check_between(site, constants.flow)
        change = _priced(site, chunk)
        _replace(gm, site, constants.flow, chunk or 0)
    except IllegalFusionError as error:
        return Rewritten(what=what, location=location, route="chunked_loss", refused=error.what)
    return Rewritten(what=what, location=location, route="chunked_loss", changes=(change,))


def sizes_of(site: LossSite) -> LossSizes | None:
    """The sizes of a site; None if the number of rows is only known at run time."""
    logits, hidden = tensor(site.projection.node), tensor(site.projection.hidden)
    classes, features = logits.shape[-1], hidden.shape[-1]
    rows = tensor(site.labels).numel()
    if not all(isinstance(size, int) for size in (rows, classes, features)):
        return None
    weight = tensor(site.projection.weight.node).requires_grad
    trains = weight or hidden.requires_grad
    return LossSizes(rows, classes, features, logits.element_size(), trains, weight)


def _priced(site: LossSite, chunk: int | None) -> str:
    """What becomes of the logits, in words.

    Raises `IllegalFusionError` where their pieces and what is held beside them are no smaller.
    """
    sizes = sizes_of(site)
    if sizes is None:
        return "the logits never exist whole"
    wanted = chunk or rows_of_chunk(sizes.rows, sizes.classes, sizes.item_bytes)
    saved = sizes.saved_bytes(wanted, compiled=True)
    if chunk is None and wanted >= sizes.rows:
        raise IllegalFusionError(f"it would save no memory: {sizes.rows} rows are one piece")
    if chunk is None and saved <= 0:
        raise IllegalFusionError(
            "it would save no memory: the gradient of the weight, summed in float32, takes as much"
            " as the logits"
        )
    return (
        f"{format_bytes(sizes.logits_bytes)} of logits never exist whole: {wanted} rows at a time,"
        f" {format_bytes(max(saved, 0))} less memory at the loss"
    )


def _check_between(site: LossSite, flow: Flow) -> None:
    """What the one call reads still holds what the projection read."""
    place = flow.position
    first, last = place[site.projection.node], place[site.loss]
    for node, number in place.items():
        if first < number < last and spelled(node) in _MODES:
            raise IllegalFusionError(f"{spelled(node)} changes the mode in the middle of it")
    weight = site.projection.weight
    reads = [(site.projection.hidden, first), (weight.node, place[weight.reader])]
    if site.projection.bias is not None:
        reads.append((site.projection.bias, first))
    reads += [(node, place[node]) for node in site.region]
    for node, since in reads:
        writer = flow.write_to((node,), since, last, frozenset())
        if writer is not None:
            raise IllegalFusionError(f"{spelled(writer)} writes in place in the middle of it")


def _replace(gm: fx.GraphModule, site: LossSite, flow: Flow, chunk: int) -> None:
    emit = Emitter(gm.graph, site.loss)
    before = set(gm.graph.nodes)
    projection = site.projection
    try:
        rows = _as_rows(emit, site)
        call = emit.call(
            chunked_cross_entropy,
            rows,
            arranged(emit, projection.weight),
            projection.bias,
            emit.method("reshape", site.labels, (-1,)),
            compute=tensor(projection.node).dtype,
            result=tensor(site.loss).dtype,
            reduction=site.reduction,
            ignore_index=site.ignore_index,
            label_smoothing=site.label_smoothing,
            cut=tuple(site.cut),
            chunk=chunk,
        )
    except IllegalFusionError:
        for node in reversed([n for n in gm.graph.nodes if n not in before]):
            gm.graph.erase_node(node)
        raise
    site.loss.replace_all_uses_with(call)
    erase(gm.graph, site.region, flow.position)


def _as_rows(emit: Emitter, site: LossSite) -> fx.Node:
    """What the projection reads, shaped and cut as its logits were: [rows, features]."""
    node = site.projection.hidden
    features = tensor(node).shape[-1]
    for step in site.shaping:
        if step.target in (operator.getitem, "__getitem__"):
            node = emit.call(operator.getitem, node, step.args[1])
        else:
            node = emit.method("reshape", node, _with_one_open(tensor(step), features))
    return node if tensor(node).dim() == 2 else emit.method("flatten", node, 0, -2)


def _with_one_open(shaped: torch.Tensor, features: Size) -> tuple[Size, ...]:
    """The leading sizes of a shape with other features; one size known at run time is -1."""
    leading = tuple(shaped.shape[:-1])
    unknown = [axis for axis, size in enumerate(leading) if not isinstance(size, int)]
    if len(unknown) == 1:
        leading = (*leading[: unknown[0]], -1, *leading[unknown[0] + 1 :])
    return (*leading, features)


def _in_words(site: LossSite) -> str:
    logits = tensor(site.projection.node)
    rows = tensor(site.labels).numel()
    count = str(rows) if isinstance(rows, int) else "any number of"
    return f"cross-entropy of {count} rows over {logits.shape[-1]} classes"
