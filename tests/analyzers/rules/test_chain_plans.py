"""Chains under a product's bet: both are ways of one finding, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.plan import FusionPlan
from analyzers.opportunities import Advice, Built
from analyzers.replay_changes import Change
from analyzers.rules import Match, find_all, without_overlaps
from analyzers.rules.chain_plans import with_kernels
from analyzers.subject import Subject
from tests.analyzers.rules.test_captured import graphs_of, subject_of
from tests.builders.captured import captured_training
from tests.model import builders

ROWS, WIDE = 2048, 3072


def gate(y: torch.Tensor) -> torch.Tensor:
    return y * torch.sigmoid(1.702 * y)


class Projected(nn.Module):
    """What `after` makes of a product, and of other tensors."""

    def __init__(self, after: Callable[..., Any], depth: int = 768) -> None:
        super().__init__()
        self.after, self.linear = after, nn.Linear(depth, WIDE)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.after(self.linear(x), *others)


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def subject(after: Callable[..., Any], *others: torch.Tensor, depth: int = 768) -> Subject:
    module = Projected(after, depth).to(torch.bfloat16)
    found: Subject = subject_of(graphs_of(module, tensor(ROWS, depth), *others))
    return found


def found_in(subject: Subject) -> tuple[list[Finding], dict[str, FusionPlan]]:
    """The findings that are opportunities, and every plan that findings name."""
    kept = without_overlaps(find_all(subject))
    assert isinstance(subject.advice, Advice)
    plans = {plan.id: plan for plan in subject.advice.naming(kept).plans}
    named = {name for finding in kept for way in finding.alternatives for name in way.plan_ids}
    assert named <= plans.keys()
    return [finding for finding in kept if finding.kind == "opportunity"], plans


def ways(finding: Finding, plans: dict[str, FusionPlan]) -> list[list[str]]:
    """Of each way that has kernels, what its plans are called."""
    return [[plans[name].title for name in way.plan_ids] for way in finding.alternatives
            if way.plan_ids]  # fmt: skip


def test_a_chain_is_found_under_a_product_that_may_lose_and_holds_it() -> None:
    """The chain, which is sure to save as much, was not looked for."""
    (finding,), plans = found_in(subject(gate))
    assert finding.rule == "pointwise-chain"
    assert ways(finding, plans) == [["pointwise chain"], ["matrix product with bias, sigmoid"]]
    chain, product = (way.saving_ns for way in finding.alternatives[:2])
    assert chain is not None
    assert product is not None
    assert 0 < product.low < chain.low, "what is sure is worth more at its worst"


def test_a_chain_has_its_kernel_where_the_product_is_expected_to_lose() -> None:
    """A plan that nobody tries unasked took the ops from it."""
    (finding,), plans = found_in(subject(gate, depth=8192))
    assert ways(finding, plans) == [["pointwise chain"]]


def test_what_a_product_leaves_of_a_chain_is_part_of_its_way() -> None:
    def marked(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = gate(y)
        return y, (y > 0.1) & (y < 0.9)

    (finding,), plans = found_in(subject(marked))
    whole, beside = [way for way in finding.alternatives if way.plan_ids]
    product, rest = (plans[name] for name in beside.plan_ids)
    assert (product.family, [op.op for op in rest.ops]) == ("gemm", ["gt", "lt", "logical_and"])
    assert beside.text.endswith("sigmoid; pointwise chain at 1 site")
    (chain,) = (plans[name] for name in whole.plan_ids)
    own = {*chain.sites[0].nodes}
    assert own - {*product.sites[0].nodes} == {*rest.sites[0].nodes}
    assert own & {*rest.sites[0].nodes} == {*rest.sites[0].nodes}
    _assert_adds_up(beside, [product, rest])


def test_a_product_leaves_the_chain_its_other_sites() -> None:
    def both(y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gate(y), gate(z.cumsum(0))

    (finding,), plans = found_in(subject(both, tensor(ROWS, 2048)))
    whole, beside = [way for way in finding.alternatives if way.plan_ids]
    assert whole.plan_ids == beside.plan_ids[1:]
    assert beside.text.endswith("sigmoid; pointwise chain at 1 site")
    product, chain = (plans[name] for name in beside.plan_ids)
    assert (len(product.sites), len(chain.sites)) == (1, 2)
    assert whole.saving_ns is not None
    share = whole.saving_ns.scaled(2048 / (2048 + WIDE))  # of the bytes, not of the sites
    assert product.prediction is not None
    assert beside.saving_ns is not None
    assert beside.saving_ns.mid == product.prediction.saving_ns.mid + share.mid


def _assert_adds_up(way: Alternative, plans: Sequence[FusionPlan]) -> None:
    parts = [plan.prediction.saving_ns for plan in plans if plan.prediction is not None]
    assert way.saving_ns is not None
    assert way.saving_ns.mid == sum(part.mid for part in parts)


@pytest.mark.parametrize("rows", [16, ROWS])
def test_one_kernel_of_a_gate_and_what_follows_it_is_told_with_the_gate(rows: int) -> None:
    """Two findings told of its ops, so that neither had a kernel."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (nn.Linear(768, WIDE, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> Any:
            g = self.up(x)
            return torch.sigmoid(1.7 * g) * g * self.down(x) * 0.5 + 1

    told: Subject = subject_of(graphs_of(Gated().to(torch.bfloat16), tensor(rows, 768)))
    (finding,), plans = found_in(told)
    assert finding.rule == "gated-mlp"
    way = finding.alternatives[0]
    (plan,) = (plans[name] for name in way.plan_ids)
    assert len(plan.ops) == 6
    assert way.saving_ns is not None
    assert finding.kernel_saving_ns == way.saving_ns.mid, "its figures are of all six"
    texts = [item.text for item in finding.evidence if item.kind == "dataflow"]
    assert any("computes 2 ops beside these" in text for text in texts)
    finding.check()


def test_in_training_a_kernel_is_in_one_finding() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(768, WIDE), nn.Linear(WIDE, 768)
            self.norm = nn.LayerNorm(768)

        def forward(self, x: torch.Tensor) -> Any:
            return self.norm(x + self.down(gate(self.up(x)))).float().square().mean()

    module = Block().to(torch.bfloat16)
    x = tensor(ROWS, 768).requires_grad_()
    graphs = [item.lowered.graph for item in captured_training(module, x).graphs]
    told: Subject = subject_of(graphs)
    found, plans = found_in(told)
    of_gate = [f for f in found if "matrix product" in str(ways(f, plans))]
    assert [f.rule for f in of_gate] == ["pointwise-chain"]
    assert ways(of_gate[0], plans)[0] == ["pointwise chain"]
    assert len([f for f in found if f.rule == "row_program"]) == 3
    _assert_apart(find_all(told), found)


def _assert_apart(matches: Iterable[Match], kept: Iterable[Finding]) -> None:
    """No node is spoken for by two of the findings that were kept."""
    names, seen = {finding.id for finding in kept}, set[tuple[str, str]]()
    for match in matches:
        if match.finding.id in names:
            assert not match.nodes & seen
            seen |= match.nodes


# --- whatever tells of which ops ------------------------------------------------------------------

NODES = "abcdefghijkl"
RULE = builders.plan().rule


def priced(mid: int) -> Range:
    return Range(low=mid // 2, mid=mid, high=2 * mid)


def match(name: str, nodes: str, mid: int, *, bet: bool = False) -> Match:
    plan: tuple[str, ...] = (f"{name}-plan",) if bet else ()
    way = Alternative(route="generated_kernel", text=name, saving_ns=priced(mid), plan_ids=plan)
    finding = Finding(
        id=name, rule=RULE, kind="opportunity", title=name, exposed_saving_ns=None,
        evidence=(Evidence(kind="cannot_judge", text="", values={"kernel_saving_ns": mid}),),
        provenance="exact", action="", alternatives=(way,) if bet else (),
        plan_id=plan[0] if bet else None,
    )  # fmt: skip
    keys = frozenset(("g", node) for node in nodes)
    return Match(finding, keys, priced(mid), "generated_kernel" if bet else "library", bet=bet)


def chain(name: str, sites: Sequence[str], mid: int) -> Built:
    first = builders.plan().sites[0]
    plan = replace(
        builders.plan(),
        id=f"{name}-plan",
        title=name,
        sites=tuple(replace(first, graph="g", nodes=tuple(nodes)) for nodes in sites),
    )
    told = match(name, "", mid, bet=True).finding
    return [plan], told, Change(saved_ns=priced(mid))


@st.composite
def parted(draw: st.DrawFn) -> list[str]:
    """Some of the nodes, in order, dealt to sites of their own."""
    cuts = sorted(draw(st.sets(st.integers(0, len(NODES)), min_size=1, max_size=6)))
    return [NODES[a:b] for a, b in pairwise(cuts)]


@st.composite
def dealt(draw: st.DrawFn) -> tuple[list[Match], list[Built]]:
    """Sure findings and chains of nodes of their own each, a bet on any, chains beside the bet."""
    amounts = st.integers(1, 1_000)
    bet = "".join(sorted(draw(st.sets(st.sampled_from(NODES), min_size=1, max_size=6))))
    sure = [match(f"m{n}", nodes, draw(amounts)) for n, nodes in enumerate(draw(parted()))]
    sites = draw(parted())
    split = draw(st.integers(0, len(sites)))
    groups = [group for group in (sites[:split], sites[split:]) if group]
    chains = [chain(f"c{n}", group, draw(amounts)) for n, group in enumerate(groups)]
    beside = ["".join(node for node in nodes if node not in bet) for nodes in sites]
    left = [chain(f"r{n}", [nodes], draw(amounts)) for n, nodes in enumerate(beside) if nodes]
    return [*sure, match("bet", bet, draw(amounts), bet=True)], [*chains, *left]


@settings(max_examples=300)
@given(dealt())
def test_no_op_is_counted_twice(case: tuple[list[Match], list[Built]]) -> None:
    matches, chains = case
    found = with_kernels(matches, chains)
    assert [item.finding.id for item in found] == [item.finding.id for item in matches]
    sites = {
        plan.id: [{*site.nodes} for site in plan.sites] for own, _, _ in chains for plan in own
    }
    prices = {told.id: told.alternatives[0].saving_ns for _, told, _ in chains}
    bet = found[-1]
    sites["bet-plan"] = [{name for _, name in bet.nodes}]
    prices["bet"] = matches[-1].saved_ns
    mains = [item.finding.plan_id for item in found if item.finding.plan_id is not None]
    assert len(mains) == len({*mains}), "a kernel is told by one finding"
    for item in found:
        for way in item.finding.alternatives:
            taken: set[str] = set()
            worth = 0.0
            # As they are put in: a site that an earlier plan has taken from is not swapped.
            for name in way.plan_ids:
                free = [site for site in sites[name] if not site & taken]
                assert free, "every kernel of a way has a place in it"
                price = prices[name.removesuffix("-plan")]
                assert price is not None
                worth += price.mid * len(free) / len(sites[name])
                taken |= set().union(*free)
            assert way.saving_ns is not None
            assert way.saving_ns.mid == pytest.approx(worth, abs=len(way.plan_ids))
            if not item.bet:
                assert {("g", name) for name in taken} <= item.nodes
    _assert_apart(found, without_overlaps(found))
