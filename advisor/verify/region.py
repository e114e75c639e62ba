"""Does a plan compute what its site in the captured graph does? Both are run, the graph is right.

The site's FX nodes are executed with their real ATen ops on random inputs, laid out as the graph
has them, everything in float64; so is the plan. Random numbers are those of the seed on both sides.
A plan with a wrong constant, a swapped operand, a missing op or another dtype differs and is
refused. What float64 cannot show is a cast between floats in the middle: the kernel then rounds
otherwise, which its own verification bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from advisor.model.gathers import index_names
from advisor.model.members import parts
from advisor.model.plan import FusionPlan, Site
from advisor.verify.interpret import evaluate
from advisor.verify.philox import uniform
from advisor.verify.timing import site_inputs

# float64 against float64: only the order of operations may differ.
EXACT_RELATIVE_ERROR = 1e-11
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# Inductor's name for random numbers of a seed, and how the graph makes them narrower.
RANDOM = "prims.inductor_random.default"
CASTS = ("prims.convert_element_type.default", "aten._to_copy.default")
# Every other row is small, so that an epsilon beside a sum of squares counts.
SMALL = 1e-3


def region_disagreement(
    plan: FusionPlan,
    site: Site,
    fx_aliases: Mapping[str, Sequence[fx.Node]],
    device: torch.device,
) -> str | None:
    """Why the plan is not the region at `site`, or None if both agree in float64.

    `fx_aliases` leads from a value of the lowered graph to all FX nodes that hold it.
    """
    if plan.members:
        why = (region_disagreement(p, own, fx_aliases, device) for p, own in parts(plan, site))
        return next((f"a member: {reason}" for reason in why if reason), None)
    missing = [v for v in (*site.inputs, *site.outputs) if v not in fx_aliases]
    if missing:
        return f"the graph has no {missing[0]}: the workload has changed, profile again"
    inputs = [fx_aliases[value] for value in site.inputs]
    outputs = [fx_aliases[value][0] for value in site.outputs]
    nodes = [*(held[0] for held in inputs), *outputs]
    dtypes = [item.dtype for item in plan.inputs] + [item.dtype for item in plan.outputs]
    for node, dtype in zip(nodes, dtypes, strict=True):
        if str(node.meta["val"].dtype) != f"torch.{dtype}":
            return f"{node.name} is {node.meta['val'].dtype}, not {dtype}"
    for positive in (False, True):
        torch.manual_seed(0)
        given = _drawn(plan, site, device, positive, [_extent(held[0]) for held in inputs])
        try:
            truth = _truth(plan, inputs, outputs, given)
        except _OutsideError as error:
            return str(error)
        mine = evaluate(plan, given, "exact")
        for position, (want, got) in enumerate(zip(truth, mine, strict=True)):
            mine_there = _as_read(outputs[position], plan, site, position, got)
            reason = _difference(want.reshape(-1), _readable(mine_there).reshape(-1))
            if reason:
                return f"output {position}: {reason}"
        if all(bool(torch.isfinite(want).any()) for want in truth if want.numel()):
            return None
    return "neither it nor the region gives a finite number, so they cannot be compared"


def _extent(node: fx.Node) -> int:
    """How many elements of memory a node's tensor reaches over."""
    value = node.meta["val"]
    pairs = zip(value.shape, value.stride(), strict=True)
    return 1 + sum((_seen(size) - 1) * _seen(stride) for size, stride in pairs)


def _seen(number: int | torch.SymInt) -> int:
    """A size as large as it was when the graph was captured: `int` would make it that for good."""
    return int(number.node.hint) if isinstance(number, torch.SymInt) else number


def _drawn(
    plan: FusionPlan, site: Site, device: torch.device, positive: bool, least: Sequence[int]
) -> list[torch.Tensor]:
    """Random inputs laid out as the site has them; positive ones for logarithms and roots.

    The last row is minus infinity, as where everything is masked; not where rows are reduced.
    """
    given = site_inputs(plan, site, device, least)
    rows = plan.row_axes - (plan.product is not None)  # what the depth adds up stays finite
    axis = max(range(rows), key=site.row_sizes.__getitem__)
    indices = index_names(plan)
    for item, tensor in zip(plan.inputs, given, strict=True):
        if item.name in indices:
            continue  # within its table as it is
        if positive and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            tensor.add_(1)  # a count, perhaps, by which something is divided
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            continue  # in eight bits nothing is computed
        if positive:
            tensor.abs_().add_(0.25)
        if tensor.shape[axis] > 1:
            tensor[(slice(None),) * axis + (slice(1, None, 2),)].mul_(SMALL)
        if tensor.shape[axis] > 2 and not positive and not plan.late_values():
            tensor.select(axis, -1).fill_(float("-inf"))
    return given


def _truth(
    plan: FusionPlan,
    inputs: Sequence[Sequence[fx.Node]],
    outputs: Sequence[fx.Node],
    given: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """The region's own results in float64; the graph itself counts, so a plan may do it wrong."""
    env: dict[fx.Node, Any] = {}
    for item, nodes, tensor in zip(plan.inputs, inputs, given, strict=True):
        for node in nodes if item.counts is None else ():
            value = _as_node_value(node, tensor)
            env[node] = value.double() if value.is_floating_point() else value
    return [_readable(_run(node, env)) for node in outputs]


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of eight bits as float32: nothing is computed in them."""
    eight = tensor.is_floating_point() and tensor.dtype.itemsize == 1
    return tensor.float() if eight else tensor


def _as_read(
    node: fx.Node, plan: FusionPlan, site: Site, position: int, result: torch.Tensor
) -> torch.Tensor:
    """An output of the plan as the FX node's readers see the memory that the kernel writes."""
    shape = plan.outputs[position].shape(site.row_sizes, site.column_axes)
    result = result.expand(shape)
    if site.output_strides:
        written = torch.empty_strided(
            shape, site.output_strides[position], dtype=result.dtype, device=result.device
        )
        result = written.copy_(result)
    else:
        result = result.contiguous()
    value = node.meta["val"]
    shape, strides = tuple(map(_seen, value.shape)), tuple(map(_seen, value.stride()))
    return result.as_strided(shape, strides, 0) if result.numel() == math.prod(shape) else result


def _difference(want: torch.Tensor, got: torch.Tensor) -> str | None:
    if want.numel() != got.numel():
        return f"{got.numel()} elements, the region gives {want.numel()}"
    if not want.is_floating_point():
        return None if torch.equal(want, got.to(want.dtype)) else "other integers than the region's"
    if not want.numel():
        return None
    finite = torch.isfinite(want)
    alike = torch.where(finite, torch.isfinite(got), (want == got) | (want.isnan() & got.isnan()))
    if unlike := int((~alike).sum()):
        return f"{unlike} elements are non-finite where the region's are not, or the reverse"
    error = torch.where(finite, want - got, 0.0).abs().amax()
    scale = torch.where(finite, want, 0.0).abs().amax().clamp(min=1e-300)
    worst = float((error / scale).item())
    if worst <= EXACT_RELATIVE_ERROR:
        return None
    return f"differs from the region it replaces by {worst:.2e} of its largest value, in float64"


def _as_node_value(node: fx.Node, tensor: torch.Tensor) -> torch.Tensor:
    """The memory behind the plan's input, read with the shape and strides of the FX node."""
    value = node.meta["val"]
    shape, strides = list(map(_seen, value.shape)), list(map(_seen, value.stride()))
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= tensor.untyped_storage().nbytes() // tensor.element_size():
        raise _OutsideError(f"{node.name} is larger than the input bound to it")
    return tensor.as_strided(shape, strides, 0)


class _OutsideError(Exception):
    """The region reaches a value that no input of the plan holds."""


def _run(node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    """Execute what leads to a node, in float64, stopping at values already known."""
    pending = [node]
    while pending:
        current = pending[-1]
        if current in env:
            pending.pop()
            continue
        size = current.meta.get("val")
        if isinstance(size, torch.SymInt):
            env[current] = _seen(size)
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


def _is_drawn(node: fx.Node) -> bool:
    """Whether a node holds random numbers as they were drawn, or made narrower."""
    while str(node.target) in CASTS and node.meta["val"].dtype in FLOATS:
        source = node.args[0]
        if not isinstance(source, fx.Node):
            return False
        node = source
    return str(node.target) == RANDOM


def _wide(node: fx.Node, args: Any) -> Any:
    """Arguments of which none is a float and the result is one: its default is float32."""
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    value = node.meta.get("val")
    made = isinstance(value, torch.Tensor) and value.dtype in FLOATS
    if not made or any(tensor.is_floating_point() for tensor in tensors):
        return args
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t if t.dtype == torch.bool else t.double(), args
    )


def _call(node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
    """One FX call with its dtypes widened: casts to a float and float results become float64.

    Random numbers stay float32 where the graph makes them narrower, as in Inductor's kernels.
    """
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: env[n], (node.args, dict(node.kwargs)))
    if str(node.target) == RANDOM:
        return uniform(args[1], args[0])
    if _is_drawn(node):
        return args[0]
    args, kwargs = pytree.tree_map_only(
        torch.dtype, lambda dtype: torch.float64 if dtype in FLOATS else dtype, (args, kwargs)
    )
    if "device" in kwargs:
        tensors: Sequence[torch.Tensor] = [
            t for t in pytree.tree_leaves(list(env.values())) if isinstance(t, torch.Tensor)
        ]
        kwargs["device"] = tensors[0].device
    assert callable(node.target)
    result = node.target(*_wide(node, args), **kwargs)
    if node.target is torch.ops.aten.var_mean.correction:
        # Of a row with infinities a one-pass mean is NaN, a sum gives the infinity; both are used.
        source, axes = (*args, None)[:2]
        return result[0], torch.mean(source, axes, keepdim=kwargs.get("keepdim", False))
    return result
