"""Plans for products with what follows them, and products that stay with the library, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from advisor.model.base import Phase, Range
from advisor.model.gemm import product_text
from advisor.model.optable import FLOAT_DTYPES
from advisor.model.plan import FusionPlan
from advisor.units import format_fraction, format_ns
from analyzers.exposure import Situation
from analyzers.gemm_cost import GemmPlace, Share, Worth, gemm_prediction, place_worth, shares_of
from analyzers.gemm_programs import GemmFound, gemm_programs
from analyzers.prediction import PricedFlow
from analyzers.row_plans import Program, cluster, plan_of

# Of a product with what follows it: at best less than this is within what steps vary by.
LEAST_SHARE = 0.02
# Ops that together say what an activation is; the first found names it. Those of gradients are told
# by their ops alone.
_ACTIVATIONS = (({"erf", "mul"}, "GELU"), ({"neg", "exp", "div"}, "SiLU"))
_FUNCTIONS = (("erf", "erf"), ("tanh", "tanh"), ("sigmoid", "sigmoid"), ("relu", "ReLU"),
              ("exp", "exponential"))  # fmt: skip
FUSED_ALREADY = "the compiler's own template computes what follows the product already"


@dataclass(frozen=True)
class GemmPlan:
    """A plan with its places and what it is worth there."""

    plan: FusionPlan
    places: tuple[GemmPlace, ...]
    worth: Worth
    share: Share
    why: str = ""

    @property
    def likely(self) -> bool:
        """Whether it is expected to win: else it is tried only by whoever asks for it."""
        return self.worth.saving.mid > 0


@dataclass(frozen=True)
class Left:
    """A product that stays as it is: by graph and node, its sizes if it has a program, and why."""

    graph: str
    node: str
    sizes: str
    why: str


@dataclass(frozen=True)
class GemmAdvice:
    """What is worth trying, and what stays with the library."""

    plans: tuple[GemmPlan, ...] = ()
    left: tuple[Left, ...] = ()


def advise_gemms(
    graphs: Sequence[tuple[PricedFlow, frozenset[str]]], situation: Situation
) -> GemmAdvice:
    """The products of graphs that are compiled, each graph with the ops that others take."""
    facts = {held.flow.graph.id: held for held, _ in graphs}
    programs: list[tuple[Phase, Program]] = []
    left: list[Left] = []
    reasons: dict[tuple[str, str], GemmFound] = {}
    for held, taken in graphs:
        if held.flow.graph.source != "compiled":
            continue
        for found in gemm_programs(held.flow, taken):
            key = (held.flow.graph.id, found.node)
            if found.program is None:
                left.append(Left(*key, "", _blame(held, found)))
                continue
            reasons[key] = found
            programs.append((held.phase, found.program))
    made = []
    for group in cluster(programs):
        item = _planned(group, facts, situation, reasons)
        made += [item] if isinstance(item, GemmPlan) else []
        left += item if isinstance(item, list) else []
    return GemmAdvice(tuple(made), tuple(left))


def _planned(
    group: Sequence[Program],
    facts: dict[str, PricedFlow],
    situation: Situation,
    reasons: dict[tuple[str, str], GemmFound],
) -> GemmPlan | list[Left]:
    """A plan for equal programs, or why all of them stay with the library."""
    first = facts[group[0].site.graph]
    bare = plan_of(list(group), first.phase, "")
    plan = msgspec.structs.replace(bare, title=title_of(bare))
    places = [GemmPlace(facts[site.graph], site) for site in plan.sites]
    if any(place.is_fused() for place in places):
        return [_left(place, FUSED_ALREADY) for place in places]
    each = [place_worth(plan, place, situation) for place in places]
    worth = each[0]
    for one in each[1:]:
        worth = worth.plus(one)
    share = shares_of(plan, plan.sites, [one.product for one in each], situation)
    why = cannot_win(worth, share)
    if why:
        return [_left(place, why) for place in places]
    prediction = gemm_prediction(plan, places, worth, situation)
    priced = msgspec.structs.replace(plan, prediction=prediction)
    found = reasons[(group[0].site.graph, group[0].site.nodes[0])]
    return GemmPlan(priced, tuple(places), worth, share, _blame(first, found))


def cannot_win(worth: Worth, share: Share) -> str:
    """Why one kernel is slower by any honest estimate, "" where it may be faster."""
    before = worth.product.mid + worth.follows.mid
    if worth.saving.high > LEAST_SHARE * before:
        return ""
    part = format_fraction(worth.follows.mid / before if before else None)
    return (
        f"what follows takes {format_ns(worth.follows.mid)}, {part} of it and the product: a "
        f"generated product reaches at best {format_fraction(share.best)} of the library's speed, "
        "which costs more or leaves nothing that could be measured"
    )


def unlikely(item: GemmPlan) -> str:
    """Why a plan that may win is not tried unasked."""
    worth, share = item.worth, item.share
    besides = worth.besides_ns
    more = (
        f", and takes {format_ns(besides)} more for what it reads and writes besides"
        if besides
        else ""
    )
    return (
        f"expected to lose {format_ns(-worth.saving.mid)}: what follows takes "
        f"{format_ns(worth.follows.mid)}, the product {format_ns(worth.product.mid)}, of which a "
        f"generated one usually keeps {format_fraction(share.usual)} of the speed (estimated)"
        f"{more}; apply --only {item.plan.id} measures it all the same"
    )


def _left(place: GemmPlace, why: str) -> Left:
    return Left(place.site.graph, place.product, product_text(place.site), why)


def _blame(held: PricedFlow, found: GemmFound) -> str:
    """A reason with the op that it is about."""
    if not found.why or found.blamed in ("", found.node):
        return found.why
    node = held.flow.nodes[found.blamed]
    return f"{node.label or node.target}: {found.why}"


def title_of(plan: FusionPlan) -> str:
    """What a plan is called: `matrix product with bias, GELU, a residual sum`."""
    ops = {op.op for op in plan.ops}
    inputs = [item for item in plan.inputs if not item.spans[plan.row_axes - 1]]
    along = [item for item in inputs if item.spans[-1] and not any(item.spans[:-1])]
    # Numbers of the columns, or a mask of them, are none.
    words = ["bias"] if any(item.dtype in FLOAT_DTYPES for item in along) else []
    forward = plan.phase != "backward"
    named = [name for needed, name in _ACTIVATIONS if forward and needed <= ops]
    words += [*named, *(name for op, name in _FUNCTIONS if op in ops)][:1]
    whole = {item.name for item in inputs if item.spans[-1] and any(item.spans[:-1])}
    if whole:
        summed = {arg for op in plan.ops if op.op == "add" for arg in op.args}
        words.append("a residual sum" if whole <= summed else "another tensor")
    if len(plan.outputs) > 1:
        words.append(f"{len(plan.outputs)} results")
    return f"matrix product with {', '.join(words) or 'what follows'}"


def none_saved(saving: Range) -> Range:
    """What trying it can cost the step: nothing, since what loses is taken out."""
    low, mid, high = (max(ns, 0) for ns in (saving.low, saving.mid, saving.high))
    return Range(low=low, mid=mid, high=high, coverage=saving.coverage)
