"""Chains of pointwise ops: a kernel of their own, where no other program takes the ops."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from advisor.pipeline.graph_programs import programs_of
from advisor.verify.region import region_disagreement
from analyzers.opportunities import Advice
from analyzers.rules import find_all, without_overlaps
from collectors.live.capture import capture
from collectors.live.fx_graph import Lowered
from collectors.live.workload import Workload
from tests.analyzers.rules.test_captured import graphs_of, subject_of

CPU = torch.device("cpu")


class Gates(nn.Module):
    """Two equal gates of other sizes, and a softmax that takes the ops before it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        gated = [functional.silu(a.cumsum(0)) * a for a in (x, z)]
        return [*gated, torch.softmax(y.cumsum(0) * 2.0 + 1.0, -1)]


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(1024, 2048), torch.randn(8, 32), torch.randn(2048, 1536)


def lowered() -> Lowered:
    work = Workload("gates", "inference", CPU, Gates(), inputs=inputs())
    (item,) = capture(work, generate_code=False)[0].graphs
    return item.lowered


def test_chains_are_programs_of_what_nothing_else_takes() -> None:
    graph = lowered()
    programs = programs_of(graph.graph).programs
    taken = [name for program in programs for name in program.site.nodes]
    assert len(taken) == len(set(taken))
    chains = [p for p in programs if {op.op for op in p.ops} >= {"exp", "mul"} and not _sums(p.ops)]
    assert len(chains) == 2
    assert len({chain.signature() for chain in chains}) == 1
    for chain in chains:
        plan = chain.as_plan("a" * 16, "gate", "inference")
        assert region_disagreement(plan, plan.sites[0], graph.fx_aliases, CPU) is None


def _sums(ops: object) -> bool:
    return "sum" in str(ops) or "max" in str(ops)


def test_the_finding_of_a_chain_has_its_kernel_and_the_advice_its_plan() -> None:
    subject = subject_of(graphs_of(Gates(), *inputs()))
    advice = subject.advice
    assert isinstance(advice, Advice)
    kept = without_overlaps(find_all(subject))
    (finding,) = (one for one in kept if one.rule == "pointwise-chain")
    assert finding.alternatives[0].route == "generated_kernel"
    assert finding.plan_id not in {plan.id for plan in advice.plans}
    named = {plan.id: plan for plan in advice.naming(kept).plans}
    assert finding.plan_id is not None
    plan = named[finding.plan_id]
    assert len(plan.sites) == 2
    (graph,) = (facts.graph for facts in subject.graphs)
    assert len(list(programs_of(graph).sites_of(plan, set()))) == 2


def test_what_follows_a_product_that_stays_with_the_library_has_its_sites() -> None:
    # One tile whose depth a library splits, where a tile kernel leaves the GPU idle.
    def down(act: nn.Module) -> tuple[nn.Module, ...]:
        return nn.Linear(4096, 64), act, nn.Tanh()

    model = nn.Sequential(*down(nn.GELU()), nn.Linear(64, 4096), *down(nn.ReLU()))
    subject = subject_of(graphs_of(model, torch.randn(8, 4096)))
    advice = subject.advice
    assert isinstance(advice, Advice)
    assert advice.gemms.plans == ()
    (graph,) = (facts.graph for facts in subject.graphs)
    programs = programs_of(graph)
    assert sum(program.product is not None for program in programs.programs) == 2
    plans = [plan for own, _, _ in advice.chains for plan in own]
    assert [len(list(programs.sites_of(plan, set()))) for plan in plans] == [1, 1]
