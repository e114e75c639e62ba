"""What a rule looks at: graphs with dataflow and prices, metrics, the trace, the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.model.compiler import CompilerFacts
from advisor.model.findings import FindingProvenance
from advisor.model.graph import Graph
from advisor.model.metric_names import per_step_name
from advisor.model.overfusion import KernelCode
from advisor.model.range_names import STEP_PREFIX
from advisor.model.report import Metric
from advisor.model.step_record import StepRecord
from advisor.model.trace import Trace
from analyzers.balance import Balance
from analyzers.dataflow import Dataflow, dataflow
from analyzers.execution_graph import ExecutedPart
from analyzers.exposure import Exposure, Situation
from analyzers.opportunities import Advice, PricedGraph
from analyzers.pricing import PriceList, price_list

NodeKey = tuple[str, str]


@dataclass(frozen=True)
class GraphFacts:
    """One graph: dataflow, present prices; inferred ones also host time and kernels by node.

    `part` says which part of a step an executed graph is (`optimizer`), "" for the others.
    """

    graph: Graph
    flow: Dataflow
    prices: PriceList
    host_ns: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    part: str = ""


@dataclass(frozen=True)
class RankFacts:
    """Figures of one rank per step, for rules that compare ranks."""

    rank: int
    comm_ns: int
    busy_ns: int


@dataclass(frozen=True)
class Subject:
    """Everything known of one workload; `claimed` nodes are spoken for by an earlier rule.

    `doubt` says why idle time may be recording that is missing, "" if nothing speaks for it.
    `advice` holds the row programs where they have been looked for already.
    `step` holds the launches where they have been read already. `balance` is None where neither a
    clean step nor a profiled one is known, `exposure` where no step was recorded.
    """

    graphs: tuple[GraphFacts, ...]
    provenance: FindingProvenance
    metrics: Mapping[str, Metric]
    eager: bool
    gpu: Gpu | None = None
    calibration: Calibration | None = None
    balance: Balance | None = None
    exposure: Exposure | None = None
    trace: Trace | None = None
    step_prefix: str = STEP_PREFIX
    steps: int = 0
    ranks: tuple[RankFacts, ...] = ()
    doubt: str = ""
    claimed: frozenset[NodeKey] = frozenset()
    advice: Advice | None = None
    compiler: CompilerFacts | None = None
    codes: tuple[KernelCode, ...] = ()
    step: StepRecord | None = None

    def metric(self, name: str) -> float | None:
        """A metric (`starved_ns`) per step, else of the whole trace; None if unknown."""
        for candidate in (per_step_name(name), name):
            found = self.metrics.get(candidate)
            if found is not None and found.value is not None:
                return float(found.value)
        return None

    @property
    def when(self) -> str:
        """What figures are of: a step, or all of a trace in which none is marked."""
        clean = self.balance is not None and self.balance.clean
        marked = self.trace is None or self.steps > 0 or clean
        return "per step" if marked else "in the whole recording"

    @property
    def on_amd(self) -> bool:
        """Whether the trace's launches are HIP's."""
        names = () if self.trace is None else self.trace.launches["name"].cat.categories
        return any(str(name).startswith("hip") for name in names)

    def free(self, facts: GraphFacts, name: str) -> bool:
        """Whether no earlier rule has claimed a node."""
        return (facts.graph.id, name) not in self.claimed

    def with_parts(self, parts: Sequence[ExecutedPart]) -> Subject:
        """The subject with the parts of the step that no captured graph covers."""
        facts = [
            GraphFacts(part.graph, dataflow(part.graph), part.prices, part=part.part)
            for part in parts
        ]
        return replace(self, graphs=(*self.graphs, *facts))

    def without(self, nodes: frozenset[NodeKey]) -> Subject:
        """The subject with more nodes claimed."""
        return replace(self, claimed=self.claimed | nodes)


def captured_subject(
    graphs: Sequence[PricedGraph],
    advice: Advice,
    situation: Situation,
    metrics: Mapping[str, Metric],
    trace: Trace | None,
    compiler: CompilerFacts | None = None,
) -> Subject:
    """A captured workload: exact graphs, the clean step if one was timed, row programs as found."""
    balance = None
    if situation.step_ns is not None and situation.busy_ns is not None:
        balance = Balance(device_ns=situation.busy_ns, span_ns=situation.step_ns, clean=True)
    return Subject(
        graphs=tuple(
            GraphFacts(item.graph, item.flow, item.prices or price_list(())) for item in graphs
        ),
        provenance="exact",
        metrics=metrics,
        eager=situation.eager,
        gpu=situation.gpu,
        calibration=situation.calibration,
        balance=balance,
        exposure=situation.exposure,
        trace=trace,
        steps=1 if balance is not None else 0,
        advice=advice,
        compiler=compiler,
        codes=() if compiler is None else compiler.codes(),
    )
