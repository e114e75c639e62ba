"""What a page is: a pattern of paths and a function from context and ids to a layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dash.development.base_component import Component


@dataclass(frozen=True)
class Page:
    """One page; named groups of `pattern` become keyword arguments of `layout`.

    `drawn` names what of `dashboard.scripts` the page needs whatever it shows.
    """

    name: str
    pattern: re.Pattern[str]
    layout: Callable[..., Component]
    title: str
    drawn: tuple[str, ...] = ()


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


def kernel_path(run_id: str, place: int) -> str:
    """The address of a kernel, by its place in the report."""
    return f"/run/{run_id}/kernel/{place}"


def timeline_path(run_id: str, finding_id: str) -> str:
    """The address of a timeline with a finding marked."""
    return f"/run/{run_id}/timeline/{finding_id}"


def finding_path(run_id: str, finding_id: str) -> str:
    """The address of a finding."""
    return f"/run/{run_id}/finding/{finding_id}"
