"""Which scripts a page runs before it is drawn, which it fetches meanwhile, which only on need.

Dash puts the script of every component library before the first page, and asks for the second half
of a library when it draws the first component of it: two waits that a browser need not have. The
library of subgraphs, half a megabyte for one page, is left to `assets/late.js`, which is told its
address by a `meta` tag; what a page surely draws is fetched while the rest is being compiled.
"""

from __future__ import annotations

import re

GRID = "dash_ag_grid/async-community.js"
_SUITES = "/_dash-component-suites/"
_LATE = re.compile(rf'<script src="({_SUITES}dash_cytoscape/[\w@.-]+)"></script>\s*')


def arranged(scripts: str, drawn: tuple[str, ...]) -> tuple[str, str]:
    """The tags for the head and those for the body, from Dash's script tags.

    `drawn` names second halves of libraries (`GRID`) that the page needs whatever it shows.

    Raises `ValueError` if the library of subgraphs is not among the scripts.
    """
    late = _LATE.search(scripts)
    if late is None:
        raise ValueError("Dash serves no script for subgraphs")
    head = [f'<meta name="late-script" content="{late[1]}">']
    head += [f'<link rel="preload" as="script" href="{_SUITES}{name}">' for name in drawn]
    return "\n".join(head), _LATE.sub("", scripts)
