"""What actions do to the graphs of a step, or would do: place by place, or why nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.apply.graph.records import Rewritten
from advisor.apply.recipe import ON_GRAPH, Recipe
from advisor.model.actions import WITH_LOSS, ActionKind, facts_of
from advisor.pipeline.graph_programs import NO_SITE

NO_FLEX = "FlexAttention is for none of them"
NO_PROJECTED_LOSS = (
    "no loss of a projection is in the graphs of the model, nor of model and loss together"
)


def became(item: Rewritten, with_loss: bool = False) -> str:
    """What became of one site, in a line; of a model compiled `with_loss`, perhaps."""
    if item.refused is not None:
        return f"{item.what}: stays, {item.refused}"
    whole = [WITH_LOSS] if with_loss or item.with_loss else []
    return "; ".join((f"{item.what}: {item.route}", *item.changes, *whole))


def rewritten_by(recipe: Recipe) -> str:
    """That a plan has no site in a graph, which actions kept before it may have rewritten."""
    done = [facts_of(kind).title for kind in recipe.actions if kind in ON_GRAPH]
    if done:
        return f"no site of it is left in the graph after {', '.join(done)}"
    return NO_SITE


def places_in(found: Sequence[Rewritten]) -> int:
    """In how many places an action on graphs would change something."""
    return sum(item.refused is None for item in found)


def nothing_in(kind: ActionKind, found: Sequence[Rewritten]) -> str:
    """Why an action on graphs is not tried in what was looked at; empty if it is."""
    if not places_in(found):
        return nothing_rewritten(kind, [became(item) for item in found])
    if kind == "flex_attention" and not any(item.or_flex for item in found):
        reasons = dict.fromkeys(item.not_flex or item.refused or "" for item in found)
        return f"{NO_FLEX}: {'; '.join(filter(None, reasons))}"
    return ""


def nothing_rewritten(kind: ActionKind, details: Sequence[str]) -> str:
    """Why an action on graphs has nothing to do there, of what became of each place."""
    reasons = list(dict.fromkeys(details))
    if reasons:
        return reasons[0]
    return NO_PROJECTED_LOSS if kind == "chunked_loss" else "no site of it is in the graphs"
