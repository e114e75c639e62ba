"""Optimizer updates as many passes over all parameters."""

from __future__ import annotations

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.graph import Node
from advisor.units import format_fraction, format_ns
from analyzers.library_ops import call_of
from analyzers.rules.base import Match, Place, Rule, exposure, finding_id, members_of, plural
from analyzers.subject import Subject

# Tensors read and written by a multi-tensor op (ATen's ForeachBinaryOp*.cu, ForeachPointwiseOp.cu).
_PASSES = {
    **dict.fromkeys(("zero", "norm"), 1),
    **dict.fromkeys(("add_scalar", "mul", "sqrt", "neg", "copy", "reciprocal", "pow"), 2),
    **dict.fromkeys(("sign", "abs", "exp", "clamp_min", "clamp_max"), 2),
    **dict.fromkeys(("add", "div", "sub", "lerp", "maximum", "rsub"), 3),
    **dict.fromkeys(("addcmul", "addcdiv"), 4),
}
# One pass of Adam reads parameter, gradient and two moments, and writes all but the gradient.
_FUSED_PASSES = 7
_SGD_PASSES = 5
_SHARE = 0.01


def find(subject: Subject) -> tuple[Match, ...]:
    """Multi-tensor updates in several passes, and updates parameter by parameter."""
    found = []
    for facts in subject.graphs:
        nodes = [
            n
            for n in facts.graph.nodes
            if call_of(n).startswith("_foreach_") and subject.free(facts, n.id)
        ]
        updates = [n for n in nodes if _kind(n) in ("addcdiv", "lerp", "add", "mul")]
        if len(nodes) > 1 and updates:
            match = _match(subject, Place(facts, frozenset(n.id for n in nodes)), nodes)
            found += [match] if match is not None else []
    return tuple(found)


def _match(subject: Subject, place: Place, nodes: list[Node]) -> Match | None:
    price = place.facts.prices.price(place.facts.flow, place.fused)
    busy = subject.balance.device_ns if subject.balance else 0
    adaptive = any(_kind(n) in ("addcdiv", "addcmul") for n in nodes)
    passes = sum(_PASSES.get(_kind(n), 2) for n in nodes)
    kept = min((_FUSED_PASSES if adaptive else _SGD_PASSES) / passes, 1.0)
    saved = round(price.time_ns * (1 - kept))
    if price.time_ns < _SHARE * busy or saved <= 0:
        return None
    host = sum(place.facts.host_ns.get(n.id, 0) for n in nodes)
    host -= max((place.facts.host_ns.get(n.id, 0) for n in nodes), default=0)
    launches = sum(unit.launches for unit in price.units)
    exposed, evidence = exposure(subject, Range(low=0, mid=saved, high=saved), host, launches - 1)
    name = "Adam" if adaptive else "SGD"
    finding = Finding(
        id=finding_id(RULE.id, name),
        rule=RULE.id,
        kind="opportunity",
        title=f"Optimizer update ({name}-like) in {plural(len(nodes), 'multi-tensor op')}",
        exposed_saving_ns=exposed,
        evidence=(
            Evidence(
                kind="traffic",
                text=(
                    f"{passes} reads and writes of all parameters or their state; one fused update "
                    f"needs {_FUSED_PASSES if adaptive else _SGD_PASSES}"
                ),
                values={
                    "passes_before": passes,
                    "passes_after": _FUSED_PASSES if adaptive else _SGD_PASSES,
                },
            ),
            Evidence(
                kind="time",
                text=(
                    f"kernel time per step {format_ns(price.time_ns)} now; up to "
                    f"{format_fraction(1 - kept)} of it is traffic that goes"
                ),
                values={"before_ns": price.time_ns, "kernel_saving_ns": saved},
            ),
            evidence,
        ),
        members=members_of([place]),
        provenance=subject.provenance,
        action="construct the optimizer with fused=True",
        alternatives=(
            Alternative(
                route="compile_region",
                text=(
                    "torch.compile of optimizer.step; keep a changing learning rate in a tensor, "
                    "or every step recompiles"
                ),
            ),
            Alternative(
                route="do_not_fuse",
                text=(
                    "fused kernels of PyTorch before 2.3 needed twice the registers and lost to "
                    "these: compare time per parameter"
                ),
            ),
        ),
    )
    return Match(finding, place.nodes)


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
