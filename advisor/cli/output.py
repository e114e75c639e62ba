"""What a command says: renderables and text on stdout, sized and coloured for where it goes."""

from __future__ import annotations

import os
import shutil
import sys

import click
from rich.console import RenderableType

from advisor.report.text import render

NARROWEST, WIDEST = 60, 140
FILE_WIDTH = 100


def echo(renderable: RenderableType) -> None:
    """Print a renderable: as wide as the terminal, in colour unless `NO_COLOR` is set.

    A pipe or a file gets 100 columns (or `COLUMNS`) and no colour.
    """
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((FILE_WIDTH, 24)).columns
    width = max(NARROWEST, min(WIDEST, columns))
    colour = terminal and not os.environ.get("NO_COLOR")
    click.echo(render(renderable, width=width, colour=colour), nl=False)
