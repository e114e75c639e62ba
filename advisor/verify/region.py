"""Does a plan compute what its site in the captured graph does? Both are run, the graph is right.

The site's FX nodes are executed on random inputs with their real ATen ops and dtypes, and again in
float64; so is the plan. A plan with a wrong constant, a swapped operand or a missing cast differs
and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from advisor.model.plan import FusionPlan, Site
from advisor.verify.interpret import evaluate
from advisor.verify.timing import site_inputs

# float64 against float64: only the order of operations may differ.
EXACT_RELATIVE_ERROR = 1e-9
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def region_disagreement(
    plan: FusionPlan, site: Site, fx_node: Mapping[str, fx.Node], device: torch.device
) -> str | None:
    """Why the plan is not the region at `site`, or None if both agree in float64."""
    missing = [v for v in (*site.inputs, *site.outputs) if v not in fx_node]
    if missing:
        return f"the graph has no {missing[0]}"
    torch.manual_seed(0)
    given = site_inputs(plan, site, device)
    inputs = [fx_node[value] for value in site.inputs]
    outputs = [fx_node[value] for value in site.outputs]
    env: dict[fx.Node, Any] = {}
    for node, tensor in zip(inputs, given, strict=True):
        value = _as_node_value(node, tensor, site)
        env[node] = value.double() if value.is_floating_point() else value
    try:
        truth = [_run(node, env) for node in outputs]
    except _OutsideError as error:
        return str(error)
    mine = evaluate(plan, given, "exact")
    for position, (want, got) in enumerate(zip(truth, mine, strict=True)):
        if want.numel() != got.numel():
            return f"output {position}: {got.numel()} elements, the region gives {want.numel()}"
        reason = _difference(want.reshape(-1), got.reshape(-1))
        if reason:
            return f"output {position}: {reason}"
    return None


def _difference(want: torch.Tensor, got: torch.Tensor) -> str | None:
    if not want.is_floating_point():
        return None if torch.equal(want, got.to(want.dtype)) else "other integers than the region's"
    scale = want.abs().amax().clamp(min=1e-300)
    worst = float(((want - got.double()).abs().amax() / scale).item())
    if worst <= EXACT_RELATIVE_ERROR:
        return None
    return f"differs from the region it replaces by {worst:.2e} of its largest value, in float64"


def _as_node_value(node: fx.Node, tensor: torch.Tensor, site: Site) -> torch.Tensor:
    """The plan's view of an input, put back into the shape that the FX node has."""
    value = node.meta["val"]
    if tensor.numel() == value.numel():
        return tensor.reshape(tuple(value.shape))
    sizes = (*site.row_sizes, site.columns)
    return tensor.expand(
        [s if n > 1 else n for s, n in zip(sizes, tensor.shape, strict=True)]
    ).reshape(tuple(value.shape))


class _OutsideError(Exception):
    """The region reaches a value that is no input of the plan."""


def _run(node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    """Execute what leads to a node, in float64, stopping at values already known."""
    pending = [node]
    while pending:
        current = pending[-1]
        if current in env:
            pending.pop()
            continue
        if current.op != "call_function":
            raise _OutsideError(f"the region also reads {current.name}")
        waiting = [n for n in current.all_input_nodes if n not in env]
        if waiting:
            pending += waiting
            continue
        env[current] = _call(current, env)
        pending.pop()
    return env[node]


def _call(node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
    """One FX call with its dtypes widened: casts to a float and float results become float64."""
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: env[n], (node.args, dict(node.kwargs)))
    args, kwargs = pytree.tree_map_only(
        torch.dtype, lambda dtype: torch.float64 if dtype in FLOATS else dtype, (args, kwargs)
    )
    if "device" in kwargs:
        tensors: Sequence[torch.Tensor] = [
            t for t in pytree.tree_leaves(list(env.values())) if isinstance(t, torch.Tensor)
        ]
        kwargs["device"] = tensors[0].device
    assert callable(node.target)
    return node.target(*args, **kwargs)
