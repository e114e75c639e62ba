"""The modelled time of programs, of single ops and of what a swap leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.model.base import Range
from advisor.model.column_configs import workspace_bytes
from advisor.model.configs import bytes_read_again, default_config
from advisor.model.dealing import dealt, dealt_sector_bytes
from advisor.model.graph import TABLE, node_of
from advisor.model.launch import LaunchConfig, grid_size
from advisor.model.optable import item_bytes, spec_of
from advisor.model.plan import FusionPlan, Site
from advisor.model.ranking import LIVE_TILES, STREAMED_REGISTERS, resident_programs
from advisor.model.scan import lanes_of
from advisor.model.scan_configs import chain_ns, joining_ops
from advisor.model.sectors import sector_bytes, writes_along_rows
from advisor.model.site_work import site_arithmetic, site_bytes
from analyzers.cost_model import kernel_time
from analyzers.dataflow import Dataflow
from analyzers.node_work import elements_of, source_op_work
from analyzers.pricing import Unit

_ADDING_PRODUCTS = ("aten.addmm.default", "aten.baddbmm.default")
_PRODUCTS = ("aten.mm.default", "aten.bmm.default")
# Programs of the usual 8 warps that fill the 64 warps of a multiprocessor.
RESIDENT_PROGRAMS_PER_SM = 8


def sum_of(times: Iterable[Range]) -> Range:
    """The sum of times with correlated errors; nothing takes no time."""
    found = list(times)
    return reduce(Range.plus, found) if found else Range(low=0, mid=0, high=0)


def program_time(plan: FusionPlan, site: Site, gpu: Gpu, calibration: Calibration) -> Range:
    """The predicted time of the generated kernels at one site, times the executions per step."""
    if plan.members:
        return _group_time(plan, site, gpu, calibration)
    flops, special = site_arithmetic(plan, site)
    config = default_config(plan, site)
    if plan.states:
        return scan_time(plan, config, site, gpu, calibration).scaled(site.executions)
    if config.scheme == "split":
        return _split_time(plan, config, site, gpu, calibration).scaled(site.executions)
    partial = workspace_bytes(plan, config, site)
    moved = site_bytes(plan, site)
    again, held = _read_again(plan, config, site, gpu)
    moved += 0 if held else again
    touched = sector_bytes(plan, site, config) + again
    cost = kernel_time(
        gpu,
        calibration,
        bytes_moved=moved + partial,
        cached_bytes=touched + partial if touched > moved else 0,
        flops=flops,
        special=special,
        programs=grid_size(config, site.rows, site.columns),
        resident_programs=gpu.sm_count * RESIDENT_PROGRAMS_PER_SM,
    )
    if partial:
        cost = cost.plus(kernel_time(gpu, calibration, bytes_moved=partial))
    return cost.scaled(site.executions)


def _read_again(plan: FusionPlan, config: LaunchConfig, site: Site, gpu: Gpu) -> tuple[int, bool]:
    """(bytes of rows that a later pass reads again, whether L2 holds those of all programs).

    Only of programs of many rows that write along these: a row by itself stays near.
    """
    if config.scheme not in ("looped", "online") or not writes_along_rows(plan, site):
        return 0, True
    again = bytes_read_again(plan, config.scheme)
    per_thread = config.block_rows * (config.block_columns or 1) / (32 * config.num_warps)
    registers = STREAMED_REGISTERS + LIVE_TILES * per_thread
    resident = gpu.sm_count * resident_programs(config.num_warps, registers)
    rows = min(site.rows, resident * config.block_rows)
    return again * site.rows * site.columns, again * rows * site.columns <= (gpu.l2_bytes or 0)


def _split_time(
    plan: FusionPlan, config: LaunchConfig, site: Site, gpu: Gpu, calibration: Calibration
) -> Range:
    """The same of rows that programs share: one launch reads all, a second reads it again.

    What the first read is in L2 for the second, if it fits there; the partial results are few. Of
    sectors that are not filled, the first has its share by bytes.
    """
    flops, special = site_arithmetic(plan, site)
    again = bytes_read_again(plan, "split") * site.rows * site.columns
    held = again <= (gpu.l2_bytes or 0)
    moved = site_bytes(plan, site)
    touched = sector_bytes(plan, site, config)
    pieces = again * touched // max(moved, 1)
    first = kernel_time(
        gpu, calibration, bytes_moved=again, cached_bytes=pieces if pieces > again else 0
    )
    return first.plus(
        kernel_time(
            gpu,
            calibration,
            bytes_moved=moved - again if held else moved,
            cached_bytes=touched,
            flops=flops,
            special=special,
        )
    )


def _group_time(plan: FusionPlan, site: Site, gpu: Gpu, calibration: Calibration) -> Range:
    """The same of a horizontal plan: one launch whose programs are those of all members."""
    flops, special = site_arithmetic(plan, site)
    elements = default_config(plan, site).block_columns or 1
    moved, touched = site_bytes(plan, site), dealt_sector_bytes(plan, site, elements)
    cost = kernel_time(
        gpu,
        calibration,
        bytes_moved=moved,
        cached_bytes=touched if touched > moved else 0,
        flops=flops,
        special=special,
        programs=sum(dealt(plan, site, elements)),
        resident_programs=gpu.sm_count * RESIDENT_PROGRAMS_PER_SM,
    )
    return cost.scaled(site.executions)


def scan_time(
    plan: FusionPlan, config: LaunchConfig, site: Site, gpu: Gpu, calibration: Calibration
) -> Range:
    """The predicted time of a scan: its traffic beside a chain of steps that wait for each other.

    Blocks of steps wait for one trip to memory each and for the levels of their tree; one step
    after the other, for its arithmetic, or for memory where no loads are ahead of it.
    """
    flops, special = site_arithmetic(plan, site)
    flops += joining_ops(site, config)
    shares = config.splits or 1
    trips = chain_ns(plan, site, config) / calibration.trip_ns
    touched = sector_bytes(plan, site, config)
    partial = 2 * 4 * lanes_of(site) * site.columns * shares if config.splits else 0
    programs = -(-lanes_of(site) // config.block_rows) * shares
    cost = kernel_time(
        gpu,
        calibration,
        bytes_moved=site_bytes(plan, site) + partial,
        cached_bytes=touched + partial,
        flops=flops,
        special=special,
        trips=trips,
        programs=programs,
        resident_programs=gpu.sm_count * RESIDENT_PROGRAMS_PER_SM,
    )
    if partial:
        again = site_bytes(plan, site) + partial
        cost = cost.plus(kernel_time(gpu, calibration, bytes_moved=again))
    return cost


def modelled_before(
    flow: Dataflow,
    members: Iterable[str],
    gpu: Gpu,
    calibration: Calibration,
    *,
    only: frozenset[str],
    again: bool = True,
) -> tuple[Range, int]:
    """(modelled time of source ops with nodes in `only`, bytes of all source ops), a step, eager.

    Eager launches one kernel for a source op (for batch norms a few), however many nodes it was
    decomposed into: it reads what the op reads once and writes what others read of it. Equal ops
    are counted `again`, unless a compiler has made one of them; what it computes a second time in
    a backward pass, eager has saved.
    """
    costs = []
    moved = 0
    for group in source_ops(flow, members, again=again):
        nodes = {name for name in group if not flow.nodes[name].recomputed}
        size = nodes_bytes(flow, nodes)
        moved += size
        if not group & only or not nodes or _launches_nothing(flow, nodes):
            continue
        kernels = source_op_work(flow, nodes, size, gpu)
        costs += [work.time(gpu, calibration) for work in kernels]
    executions = flow.graph.executions
    return sum_of(costs).scaled(executions), moved * executions


def _launches_nothing(flow: Dataflow, nodes: set[str]) -> bool:
    """Whether all results are empty: PyTorch returns before a launch then (`TensorIterator`)."""
    metas = [meta for name in nodes if (meta := flow.meta(flow.nodes[name].value())) is not None]
    return bool(metas) and not any(elements_of(flow, meta) for meta in metas)


def source_ops(flow: Dataflow, members: Iterable[str], *, again: bool = False) -> list[set[str]]:
    """Nodes by the op of the user's program that they were decomposed from, in order.

    With `again` an op that computes what an earlier one did counts too: eager runs both. The bias
    that a product adds is in none: eager's kernel of the product adds it.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for name in members:
        node = flow.nodes[name]
        found.setdefault((node.origin or name, node.label), set()).add(name)
        for other in node.repeats if again else ():
            found.setdefault((other.origin, other.label), set()).add(name)
    return [
        nodes for op, nodes in found.items() if not (own := _product_of(flow, op)) or own in nodes
    ]


def _product_of(flow: Dataflow, op: tuple[str, str]) -> str:
    """The node of the product in a source op that adds to one (`addmm`); empty if there is none.

    The compiler takes the two apart where pointwise ops follow.
    """
    if op[1] not in _ADDING_PRODUCTS:
        return ""
    nodes = flow.nodes.values()
    own = (n.id for n in nodes if n.target in _PRODUCTS and (n.origin or n.id, n.label) == op)
    return next(own, "")


def residual_time(
    flow: Dataflow, shared: Sequence[Unit], gone: frozenset[str], gpu: Gpu, calibration: Calibration
) -> Range | None:
    """What partly replaced kernels must still do, ns a step; each left-over node counts once."""
    costs = []
    done = set(gone)
    for unit in shared:
        left = {
            name
            for name in unit.nodes - done
            if name in flow.index and spec_of(flow.nodes[name].op).kind != "opaque"
        }
        done |= left
        size = nodes_bytes(flow, left)
        if size:
            costs.append(kernel_time(gpu, calibration, bytes_moved=size))
    return sum_of(costs).scaled(flow.graph.executions) if costs else None


def nodes_bytes(flow: Dataflow, names: set[str]) -> int:
    """Bytes a kernel of these nodes moves: what it reads and what others read of it, once each."""
    inputs: set[str] = set()
    total = 0
    for name in names:
        node = flow.nodes[name]
        inputs |= {base for v in node.value_args if node_of(base := flow.base(v))[0] not in names}
        value = node.value()
        outside = any(use.consumer not in names for use in flow.uses.get(value, ()))
        if outside or value in flow.escapes_graph:
            total += _bytes(flow, value)
    return total + sum(_read_bytes(flow, value, names) for value in inputs)


def _read_bytes(flow: Dataflow, value: str, names: set[str]) -> int:
    """Bytes of an input of some nodes; of a table at most as many as its lookups give."""
    size = _bytes(flow, value)
    readers = {use.consumer for use in flow.uses.get(value, ())} & names
    places = [(flow.nodes[name], flow.nodes[name].attributes.get(TABLE)) for name in readers]
    if not places or any(
        not isinstance(place, int) or flow.base(str(node.args[place])) != value
        for node, place in places
    ):
        return size
    return min(size, sum(_bytes(flow, node.value()) for node, _ in places))


def _bytes(flow: Dataflow, value: str) -> int:
    meta = flow.meta(value)
    return 0 if meta is None else elements_of(flow, meta) * item_bytes(meta.dtype)
