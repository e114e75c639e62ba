"""What written-out loops cost, and what a scan in one or two kernels would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.model.base import Range
from advisor.model.optable import item_bytes
from analyzers.cost_model import kernel_time
from analyzers.node_work import elements_of
from analyzers.program_cost import nodes_bytes, sum_of
from analyzers.reads import passes
from analyzers.recurrence import Recurrence
from analyzers.rules.base import Cost, Place, cost_of
from analyzers.rules.chains import units_of
from analyzers.rules.walk import is_gemm
from analyzers.scan_form import Form, reads_states
from analyzers.subject import GraphFacts, Subject


@dataclass(frozen=True)
class Site:
    """One loop with what its step computes; `place` holds all its nodes."""

    loop: Recurrence
    form: Form
    place: Place

    @property
    def facts(self) -> GraphFacts:
        """The graph it is in."""
        return self.place.facts

    @property
    def piece(self) -> str:
        """What a step consists of today."""
        return "generated kernel" if self.facts.prices.fused else "op"

    def ops(self) -> int:
        """How many ops a step has, or kernels once compiled, counted in its fullest step."""
        return max(units_of(self.facts, step) for step in self._steps())

    def launches(self) -> int:
        """The kernels that run for it today, as far as they are known."""
        price = self.facts.prices.price(self.facts.flow, self.place.fused)
        return sum(unit.launches for unit in price.units)

    def step_places(self) -> list[Place]:
        """Each step's ops but for matrix products: what a compiler makes one kernel of."""
        nodes = self.facts.flow.nodes
        steps = [frozenset(n for n in step if not is_gemm(nodes[n])) for step in self._steps()]
        return [Place(self.facts, step) for step in steps if step]

    def signature(self) -> tuple[str, ...]:
        """What a step computes, whatever the sizes."""
        rows = [self.facts.flow.nodes[self.loop.sample(at)] for at in range(len(self.loop.columns))]
        looks = sorted(
            f"{n.target if n.op == 'opaque' else n.op}:{n.outputs[0].dtype}" for n in rows
        )
        return (self.form.what, *looks)

    def _steps(self) -> list[list[str]]:
        """The nodes of each step that the scan would compute."""
        numbers = sorted({k for column in self.loop.columns for k in column})
        return [[n for n in self.loop.step(k) if n in self.place.fused] for k in numbers]


def site_cost(subject: Subject, sites: Sequence[Site]) -> Cost:
    """The cost of all loops, with one kernel for each in their place.

    Without a GPU to take its time from, it reaches the bandwidth of today's kernels.
    """
    cost = cost_of(subject, [site.place for site in sites])
    after = sum(bytes_once(site) * site.facts.graph.executions for site in sites)
    cost = replace(cost, bytes_before=max(cost.bytes_before, after), bytes_after=after)
    then = scanned(subject, sites)
    return cost if then is None else replace(cost, saved_ns=saved(cost.time_ns, then))


def saved(now: int, then: Range) -> Range:
    """What goes of a time, never less than nothing."""
    low, mid, high = (max(now - time, 0) for time in (then.high, then.mid, then.low))
    return Range(low=low, mid=mid, high=high)


def scanned(subject: Subject, sites: Sequence[Site]) -> Range | None:
    """The time of one kernel a loop, between two bounds; None without a GPU to take it from.

    The fastest loads ahead of the recurrence and takes the time of its traffic; the slowest waits
    for a trip to memory in every step.
    """
    gpu, calibration = subject.gpu, subject.calibration
    if gpu is None or calibration is None:
        return None
    times = []
    for site in sites:
        moved = bytes_once(site)
        fast = kernel_time(gpu, calibration, bytes_moved=moved)
        slow = kernel_time(gpu, calibration, bytes_moved=moved, trips=site.loop.steps)
        once = Range(low=fast.low, mid=(fast.mid + slow.mid) // 2, high=slow.high)
        times.append(once.scaled(site.facts.graph.executions))
    return sum_of(times)


def in_parallel(subject: Subject, sites: Sequence[Site]) -> Range | None:
    """The time of parallel scans: each writes all states, which a second kernel reads out."""
    gpu, calibration = subject.gpu, subject.calibration
    if gpu is None or calibration is None:
        return None
    times = []
    for site in sites:
        states = _state_bytes(site) if reads_states(site.facts.flow, site.loop) else 0
        each = [bytes_once(site) + states, *([states] if states else [])]
        once = sum_of(kernel_time(gpu, calibration, bytes_moved=moved) for moved in each)
        times.append(once.scaled(site.facts.graph.executions))
    return sum_of(times)


def bytes_once(site: Site) -> int:
    """What a loop reads and what others read of it, once each."""
    flow, names = site.facts.flow, set(site.place.fused)
    inner = set(names)
    for node in site.facts.graph.nodes:
        if passes(node) and node.id in flow.index and set(_sources(site, node.id)) <= inner:
            uses = flow.uses.get(node.value(), ())
            if uses and all(use.consumer in names for use in uses):
                inner.add(node.id)
    return nodes_bytes(flow, inner)


def _sources(site: Site, name: str) -> list[str]:
    flow = site.facts.flow
    return [flow.base(v)[1:].partition("#")[0] for v in flow.nodes[name].value_args]


def _state_bytes(site: Site) -> int:
    """All states of a loop, as one tensor."""
    flow = site.facts.flow
    metas = [
        flow.nodes[name].outputs[0]
        for at in site.loop.states
        for name in site.loop.columns[at].values()
    ]
    return sum(elements_of(flow, meta) * item_bytes(meta.dtype) for meta in metas)
