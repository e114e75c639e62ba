"""Names of reports may turn the order of a text: what a page shows of them is spelled out.

Behind a right-to-left override, `18.6 %` is read as `% 6.81`. Other text is left alone, also what
is written from right to left.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from dash.development.base_component import Component

from advisor.report.document import visible

T = TypeVar("T")
# Control characters but tab and line feed, and what steers the direction of text.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Of components, what is shown as text; keys of rows and of choices are compared with as they are.
_SHOWN = ("children", "title", "label", "code")


def legible(shown: T) -> T:
    """Text, or components changed in place, without characters that change how others are read."""
    found: Any = shown
    if isinstance(found, str):
        found = _STEERING.sub(lambda one: visible(one[0]), found)
    elif isinstance(found, list | tuple):
        found = type(found)([legible(item) for item in found])
    elif isinstance(found, Component):
        _component(found)
    result: T = found
    return result


def _component(shown: Component) -> None:
    for name in _SHOWN:
        if (value := getattr(shown, name, None)) is not None:
            setattr(shown, name, legible(value))
    if rows := getattr(shown, "rowData", None):
        told = [{key: legible(value) for key, value in row.items()} for row in rows]
        setattr(shown, "rowData", told)  # noqa: B010 - of grids alone
    if isinstance(choices := getattr(shown, "data", None), list):
        for choice in choices:
            if isinstance(choice, dict) and "label" in choice:
                choice["label"] = legible(choice["label"])
