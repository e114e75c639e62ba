"""Which sizes a plan's kernel serves, beside those that it was seen and tuned with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from advisor.model.gemm import product_rows
from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import site_bytes
from advisor.model.winners import bucket_of
from advisor.units import counted

# Sizes that a line names; what is left is counted.
MOST_NAMED = 4


def unserved(plan: FusionPlan, at: Site) -> str | None:
    """Why its kernel does not serve any number of rows as long as those of a site.

    None where it does: the length was seen, and so verified, and of the rows that were seen those
    of the site it was tuned for, the first, weigh most (bytes times executions).
    """
    if _length(plan, at) not in {_length(plan, site) for site in plan.sites}:
        long = _times(at.column_axes, "column")
        return f"rows of {long} were not verified, those of its sites were"
    first = plan.sites[0]
    weights: Counter[tuple[int, int]] = Counter()
    for site in plan.sites:
        if _length(plan, site) == _length(plan, first):
            weights[bucket_of(site)] += round(site_bytes(plan, site) * site.executions)
    heaviest = max(weights, key=weights.__getitem__)
    if weights[heaviest] <= weights[bucket_of(first)]:
        return None
    most = next(site for site in plan.sites if bucket_of(site) == heaviest)
    rows, tuned = (product_rows(site) if plan.product else site.rows for site in (most, first))
    return f"most of what was seen has {rows:,} rows, and its kernel was tuned for {tuned:,}"


def sizes_served(plan: FusionPlan) -> str | None:
    """The sizes that its kernel is called with, in words; None where no site is known."""
    if not plan.sites:
        return None
    seen = list(dict.fromkeys(_size(plan, site) for site in plan.sites))
    named = ", ".join(seen[:MOST_NAMED])
    if len(seen) > MOST_NAMED:
        named += f" and {len(seen) - MOST_NAMED} more"
    if plan.members or plan.states:
        return f"{named}; in graphs compiled for any size the compiler's own code runs"
    if why := unserved(plan, plan.sites[0]):
        return f"{named}; in graphs compiled for any size the compiler's own code runs: {why}"
    return f"{named}; in graphs compiled for any number of rows too"


def _size(plan: FusionPlan, site: Site) -> str:
    if plan.members:
        return f"{site.columns:,} elements of {len(plan.members)} programs"
    if plan.stepped:
        inner = f"{site.row_sizes[-1]:,} {'steps' if plan.states else 'deep'}"
        rows, columns = _times(site.row_sizes[:-1], "row"), counted(site.columns, "column")
        return f"{rows} × {inner} × {columns}"
    return f"{counted(site.rows, 'row')} × {_times(site.column_axes, 'column')}"


def _length(plan: FusionPlan, site: Site) -> tuple[int, ...]:
    """What does not vary where the number of rows does: columns, the depth of a product."""
    return (*site.column_axes, *(site.row_sizes[-1:] if plan.product else ()))


def _times(sizes: Sequence[int], noun: str) -> str:
    *outer, last = sizes
    text = counted(last, noun) if not outer else f"{last:,} {noun}s"
    return " × ".join([*(f"{size:,}" for size in outer), text])
