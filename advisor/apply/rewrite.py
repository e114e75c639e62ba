"""Swap plan sites for kernel calls in a post-grad FX graph.

The call is inserted as the functional Triton wrapper that Dynamo itself emits for a user's kernel,
so Inductor schedules, launches and (in CUDA-graph mode) captures it like its own kernels, without a
dispatcher call. Whatever cannot be swapped stays as it is, with the reason.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch._inductor.pattern_matcher import stable_topological_sort

from advisor.apply.kernels import ReadyKernel
from advisor.apply.run_time_sizes import (
    MAX_ROWS,
    SizeNodes,
    check_run_time,
    is_known,
    launches_at_run_time,
)
from advisor.codegen import abi
from advisor.codegen.families import site_launches
from advisor.codegen.launches import Launch
from advisor.errors import IllegalFusionError
from advisor.model.gemm import product_rows
from advisor.model.launch import LaunchConfig, unsuitable
from advisor.model.plan import FusionPlan, PlanInput, Site

# Numbers of columns are 32-bit in a kernel; the last share of a row that several programs share
# may end beyond it.
MAX_COLUMNS = 2**30
# What takes one seed of those that a graph draws with.
SEED = "prims.inductor_lookup_seed.default"


@dataclass(frozen=True)
class Swap:
    """One site of a graph and the kernel that takes its place; `plan` numbers as the site does."""

    kernel: ReadyKernel
    plan: FusionPlan
    site: Site


@dataclass(frozen=True)
class Outcome:
    """What became of one swap: None, or why the site kept its original ops."""

    swap: Swap
    refused: str | None


def rewrite(
    graph: fx.Graph,
    fx_node: Mapping[str, fx.Node],
    fx_aliases: Mapping[str, Sequence[fx.Node]],
    swaps: Sequence[Swap],
) -> tuple[Outcome, ...]:
    """Swap every legal site.

    `fx_node` and `fx_aliases` lead from values of the lowered graph to its FX nodes.
    """
    outcomes = []
    current = dict(fx_node)
    for swap in swaps:
        try:
            _swap(graph, current, fx_aliases, swap)
            outcomes.append(Outcome(swap, None))
        except IllegalFusionError as error:
            outcomes.append(Outcome(swap, error.what))
    return tuple(outcomes)


def _swap(
    graph: fx.Graph,
    fx_node: dict[str, fx.Node],
    fx_aliases: Mapping[str, Sequence[fx.Node]],
    swap: Swap,
) -> None:
    site = swap.site
    missing = [value for value in (*site.inputs, *site.outputs) if value not in fx_node]
    if missing:
        raise IllegalFusionError(f"{missing[0]} has no node in the graph being compiled")
    inputs = [fx_node[value] for value in site.inputs]
    outputs = [fx_node[value] for value in site.outputs]
    _check_one_device(inputs + outputs)
    if not _are_static(inputs + outputs) or site.run_time is not None:
        check_run_time(swap.plan, site)
    _check_launch(swap.kernel.config, site)
    position = {node: index for index, node in enumerate(graph.nodes)}
    replaced = _living(fx_aliases, site.outputs)
    region = _region({*inputs, *_living(fx_aliases, site.inputs)}, replaced)
    _check_no_wait(position, inputs, replaced)
    _check_no_write_between(graph, position, region)
    # Arguments of the graph stay in front of everything.
    arguments = graph.find_nodes(op="placeholder")[-1:]
    anchor = max((*inputs, *arguments), key=position.__getitem__)
    early = any(
        position[user] < position[anchor] for old in replaced for user in old.users - region.keys()
    )
    made: list[fx.Node] = []
    try:
        with graph.inserting_after(anchor):
            results = _insert_call(graph, swap, inputs, outputs, made)
    except IllegalFusionError:
        for node in reversed(made):
            graph.erase_node(node)
        raise
    for value, result in zip(site.outputs, results, strict=True):
        for old in _living(fx_aliases, (value,)):
            old.replace_all_uses_with(result)
        fx_node[value] = result
    _erase_dead(graph, replaced)
    if early:
        stable_topological_sort(graph)


def _living(fx_aliases: Mapping[str, Sequence[fx.Node]], values: Sequence[str]) -> list[fx.Node]:
    """All nodes that hold one of the values and were not erased by an earlier swap."""
    return [node for value in values for node in fx_aliases.get(value, ()) if not node._erased]


def _region(inputs: Set[fx.Node], replaced: Sequence[fx.Node]) -> dict[fx.Node, None]:
    """The nodes between the inputs and the replaced values, these included."""
    found: dict[fx.Node, None] = {}
    pending = list(replaced)
    while pending:
        node = pending.pop()
        if node in found or node in inputs or node.op != "call_function":
            continue
        found[node] = None
        pending += node.all_input_nodes
    return found


def _check_no_wait(
    position: Mapping[fx.Node, int], inputs: Sequence[fx.Node], replaced: Sequence[fx.Node]
) -> None:
    """Refuse a site one of whose inputs is computed from one of its own results."""
    first = min(position[node] for node in replaced)
    seen: set[fx.Node] = set()
    pending = list(inputs)
    while pending:
        node = pending.pop()
        if node in seen or position[node] < first:
            continue
        if node in replaced:
            raise IllegalFusionError("another kernel of the graph waits for one of its results")
        seen.add(node)
        pending += node.all_input_nodes


def _check_one_device(nodes: Sequence[fx.Node]) -> None:
    """Refuse a site with tensors on several devices: a kernel reads the memory of its own."""
    values = [node.meta.get("val") for node in nodes]
    devices = dict.fromkeys(str(v.device) for v in values if isinstance(v, torch.Tensor))
    if len(devices) > 1:
        raise IllegalFusionError(f"its tensors are on {' and '.join(devices)}")


def _are_static(nodes: Sequence[fx.Node]) -> bool:
    """Whether all sizes are known; raises `IllegalFusionError` for what no kernel reads."""
    static = True
    for node in nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise IllegalFusionError(f"{node.name} is not a tensor")
        if value.device.type not in ("cuda", "cpu"):
            raise IllegalFusionError(f"{node.name} is on {value.device.type}")
        static &= all(map(is_known, (*value.shape, *value.stride())))
    return static


def _check_launch(config: LaunchConfig, site: Site) -> None:
    """Refuse a site that the configuration, chosen for rows of another length, does not suit."""
    why = unsuitable(config, site.columns)
    if why is not None:
        raise IllegalFusionError(why)
    rows = product_rows(site) if config.scheme == "gemm" else site.rows
    if rows > MAX_ROWS:
        raise IllegalFusionError(f"{rows:,} rows are more than a kernel can number")
    if site.columns > MAX_COLUMNS:
        raise IllegalFusionError(f"{site.columns:,} columns are more than a kernel can number")


def _check_no_write_between(
    graph: fx.Graph, position: Mapping[fx.Node, int], region: Iterable[fx.Node]
) -> None:
    """Refuse a site with a write among its nodes: one call reads all inputs at one time."""
    places = [position[node] for node in region]
    first, last = min(places), max(places)
    for node in graph.nodes:
        if first < position[node] < last and _writes(node):
            raise IllegalFusionError(f"{node.name} writes to memory in the middle of the site")


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    return bool(schema is not None and schema.is_mutable)


def _insert_call(
    graph: fx.Graph,
    swap: Swap,
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    made: list[fx.Node],
) -> list[fx.Node]:
    """Allocate outputs, call the kernels functionally, return the nodes that hold the results.

    Kernels after the first read the partial results of those before them. `made` are all new nodes.
    """
    plan, site, config = swap.plan, swap.site, swap.kernel.config
    sizes = SizeNodes(graph, inputs, made)
    calls = (
        site_launches(plan, config, site)
        if site.run_time is None
        else launches_at_run_time(plan, config, site, sizes)
    )
    held = {
        item.name: _in_memory(graph, item, node, made, sizes)
        for item, node in zip(plan.inputs, inputs, strict=True)
    }
    wanted = dict(zip(abi.output_names(plan), outputs, strict=True))
    calls = _of_tables(calls, plan, inputs)
    for launch, function in zip(calls, swap.kernel.functions, strict=True):
        for name in launch.kernel.writes:
            like = wanted.get(name, outputs[0])
            empty = _empty(graph, launch.workspace.get(name), like, sizes)
            held[name] = empty
            made.append(empty)
        call = _launch_node(graph, launch, function, held, sizes)
        _describe(call, outputs[0], with_value=False)
        made.append(call)
        for name in launch.kernel.writes:
            written, empty = graph.call_function(operator.getitem, (call, name)), held[name]
            _describe(written, empty)
            held[name] = written
            made.append(written)
    _in_order(made)
    return [held[name] for name in wanted]


def _of_tables(
    calls: Sequence[Launch], plan: FusionPlan, inputs: Sequence[fx.Node]
) -> tuple[Launch, ...]:
    """The launches with the number of rows that each table has here, one of PyTorch's."""
    rows = {
        abi.rows_name(item): node.meta["val"].shape[0]
        for item, node in zip(plan.inputs, inputs, strict=True)
        if item.gathered is not None
    }
    return tuple(
        replace(one, scalars={name: rows.get(name, size) for name, size in one.scalars.items()})
        for one in calls
    )


def _in_memory(
    graph: fx.Graph, item: PlanInput, node: fx.Node, made: list[fx.Node], sizes: SizeNodes
) -> fx.Node:
    """A tensor to read, without a kernel that makes it: one seed of many is read where it lies, and
    of what is counted nothing is read.
    """
    if item.counts is not None:
        made.append(_empty(graph, None, node, sizes))
        return made[-1]
    if str(node.target) != SEED:
        return node
    seed = graph.call_function(torch.ops.aten.select.int, (node.args[0], 0, node.args[1]))
    _describe(seed, node)
    made.append(seed)
    return seed


def _empty(
    graph: fx.Graph, workspace: tuple[int, int] | None, like: fx.Node, sizes: SizeNodes
) -> fx.Node:
    """Memory for an output like an old one, or for partial results on the same device."""
    value = like.meta["val"]
    shape = list(value.shape if workspace is None else workspace)
    dtype = value.dtype if workspace is None else getattr(torch, abi.PARTIAL_DTYPE)
    options = {"dtype": dtype, "device": value.device, "pin_memory": False}
    given = [sizes.operand(size) for size in shape]
    # Whether a tensor of unknown sizes is contiguous is not asked: the answer would be a guard.
    if workspace is None and not (_are_static([like]) and value.is_contiguous()):
        layout = (given, [sizes.operand(stride) for stride in value.stride()])
        empty = graph.call_function(torch.ops.aten.empty_strided.default, layout, options)
    else:
        empty = graph.call_function(torch.ops.aten.empty.memory_format, (given,), options)
    _describe(empty, like, with_value=workspace is None)
    if workspace is not None:
        empty.meta["val"] = value.new_empty(shape, dtype=dtype)
    return empty


def _launch_node(
    graph: fx.Graph,
    launch: Launch,
    function: Any,
    held: Mapping[str, fx.Node],
    sizes: SizeNodes,
) -> fx.Node:
    """One kernel as the functional wrapper that Inductor knows; what is known is constant."""
    arguments: dict[str, Any] = {name: held[name] for name in launch.kernel.tensors}
    scalars = {name: sizes.operand(value) for name, value in launch.scalars.items()}
    arguments |= {name: value for name, value in scalars.items() if not is_known(value)}
    constants = {name: value for name, value in scalars.items() if is_known(value)}
    call = graph.call_function(
        triton_kernel_wrapper_functional,
        (),
        {
            "kernel_idx": kernel_side_table.add_kernel(function),
            "constant_args_idx": kernel_side_table.add_constant_args(constants | launch.constants),
            "grid": [tuple(sizes.operand(count) for count in launch.grid)],
            "tma_descriptor_metadata": {},
            "kwargs": arguments,
            "tensors_to_clone": list(launch.kernel.writes),
        },
    )
    # The strides that the arguments count on, exactly: else Inductor keeps but their order.
    call.meta["eager_input_vals"] = fx.map_arg(
        (call.args, call.kwargs), lambda node: node.meta["val"]
    )
    call.meta["val"] = {name: held[name].meta["val"] for name in launch.kernel.writes}
    return call


def _in_order(nodes: Sequence[fx.Node]) -> None:
    """Nodes inserted at one point stand in reverse; put them in the order of creation."""
    for first, second in pairwise(nodes):
        first.append(second)


def _describe(node: fx.Node, like: fx.Node, *, with_value: bool = True) -> None:
    """Give a new node the shape, place in the source and module of the node it stands for."""
    value_keys = ("val", "tensor_meta") if with_value else ()
    for key in (*value_keys, "stack_trace", "nn_module_stack", "original_aten", "from_node"):
        if key in like.meta:
            node.meta[key] = like.meta[key]


def _erase_dead(graph: fx.Graph, roots: Sequence[fx.Node]) -> None:
    """Remove what only the replaced nodes used."""
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node.users or node.op != "call_function" or node.is_impure() or node._erased:
            continue
        pending += node.all_input_nodes
        graph.erase_node(node)
