"""What is said where a run kept nothing, of which there is neither a recipe nor a patch."""

from __future__ import annotations

from advisor.errors import UsageError
from advisor.model.applied import Applied


def nothing_kept(applied: Applied | None, what: str, where: str) -> UsageError:
    """The error of a run that kept nothing, with what to do about it."""
    if applied is None:
        return UsageError(what, where=where, remedy="`fusion-advisor apply` it first")
    measured = applied.set.verdict != "not_measured"
    return UsageError(
        what,
        where=where,
        why=f"it was applied: {applied.set.reason}",
        remedy="`fusion-advisor show` says what each plan came to"
        if measured
        else "`fusion-advisor apply` a run that was profiled on a GPU, there",
    )
