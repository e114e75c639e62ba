"""What a page is: a pattern of paths and a function from context and ids to a layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dash.development.base_component import Component

from dashboard.context import Context


@dataclass(frozen=True)
class Page:
    """One page; named groups of `pattern` become keyword arguments of `layout`.

    `tab` is its label among the pages of a run and `path` the address there (`{run}` is filled in).
    """

    name: str
    pattern: re.Pattern[str]
    layout: Callable[..., Component]
    title: str
    tab: str | None = None
    path: str = ""


def match(pages: tuple[Page, ...], path: str) -> tuple[Page, dict[str, str]] | None:
    """The page of a path and the ids in it, None if there is no such page."""
    for page in pages:
        found = page.pattern.fullmatch(path)
        if found is not None:
            return page, found.groupdict()
    return None


def run_path(run_id: str) -> str:
    """The address of a run."""
    return f"/run/{run_id}"


def finding_path(run_id: str, finding_id: str) -> str:
    """The address of a finding."""
    return f"/run/{run_id}/finding/{finding_id}"


__all__ = ["Context", "Page", "finding_path", "match", "run_path"]
