"""Which sizes a plan's kernel serves, beside those that it was seen and tuned with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import site_bytes
from advisor.model.winners import bucket_of

# Sizes that a line names; what is left is counted.
MOST_NAMED = 4


def unserved(plan: FusionPlan, columns: Sequence[int]) -> str | None:
    """Why its kernel does not serve any number of rows of so many columns (one number an axis).

    None where it does: the columns were seen, and so verified, and of the rows that were seen those
    of the site it was tuned for, the first, weigh most (bytes times executions).
    """
    seen = {site.column_axes for site in plan.sites}
    if tuple(columns) not in seen:
        return f"rows of {_times(columns)} columns were not verified, those of its sites were"
    first = plan.sites[0]
    weights: Counter[tuple[int, int]] = Counter()
    for site in plan.sites:
        if site.column_axes == first.column_axes:
            weights[bucket_of(site)] += round(site_bytes(plan, site) * site.executions)
    heaviest = max(weights, key=weights.__getitem__)
    if weights[heaviest] <= weights[bucket_of(first)]:
        return None
    most = next(site for site in plan.sites if bucket_of(site) == heaviest)
    return (
        f"most of what was seen has {most.rows:,} rows, and its kernel was tuned for {first.rows:,}"
    )


def sizes_served(plan: FusionPlan) -> str | None:
    """The sizes that its kernel is called with, in words; None where no site is known."""
    if not plan.sites:
        return None
    seen = list(dict.fromkeys(_size(plan, site) for site in plan.sites))
    named = ", ".join(seen[:MOST_NAMED])
    if len(seen) > MOST_NAMED:
        named += f" and {len(seen) - MOST_NAMED} more"
    if plan.members or plan.states or plan.product is not None:
        return f"{named}; in graphs compiled for any size the compiler's own code runs"
    if why := unserved(plan, plan.sites[0].column_axes):
        return f"{named}; in graphs compiled for any size the compiler's own code runs: {why}"
    return f"{named}; in graphs compiled for any number of rows too"


def _size(plan: FusionPlan, site: Site) -> str:
    if plan.members:
        return f"{site.columns:,} elements of {len(plan.members)} programs"
    if plan.stepped:
        inner = f"{site.row_sizes[-1]:,} {'steps' if plan.states else 'deep'}"
        return f"{_times(site.row_sizes[:-1])} rows × {inner} × {site.columns:,} columns"
    return f"{site.rows:,} rows × {_times(site.column_axes)} columns"


def _times(columns: Sequence[int]) -> str:
    return " × ".join(f"{size:,}" for size in columns)
