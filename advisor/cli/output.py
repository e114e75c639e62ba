"""What a command says: renderables and text on stdout, sized and coloured for where it goes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import click
from rich.console import RenderableType

from advisor.errors import UsageError
from advisor.report.text import render
from advisor.store.store import RUN_ID

_NOT_ASCII = re.compile(r"[^\x00-\x7e]")
NARROWEST, WIDEST = 60, 140
FILE_WIDTH = 100
ANOTHER = "name a file in a folder that is there and may be written in"


def echo(renderable: RenderableType) -> None:
    """Print a renderable: as wide as the terminal, in colour unless `NO_COLOR` is set.

    A pipe or a file gets 100 columns (or `COLUMNS`) and no colour.
    """
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((FILE_WIDTH, 24)).columns
    width = max(NARROWEST, min(WIDEST, columns))
    colour = terminal and not os.environ.get("NO_COLOR")
    click.echo(render(renderable, width=width, colour=colour), nl=False)


def echo_json(data: bytes) -> None:
    """Print JSON as it is, but spell out what a terminal would act on; no value changes by it.

    JSON escapes control characters below 32 itself; C1 controls, marks that turn the direction of
    text and other unprintable characters may stand in its strings as they are.
    """
    click.echo(_NOT_ASCII.sub(_spelled, data.decode().rstrip("\n")))


def _spelled(match: re.Match[str]) -> str:
    character = match.group()
    if character.isprintable():
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def warn_unlisted(run: Path) -> None:
    """Say on stderr that a run's directory has a name which the dashboard cannot show."""
    name = run.resolve().name
    if not RUN_ID.fullmatch(name):
        click.echo(
            f"note: `serve` does not list {name!r}, whose name is no run id: "
            "letters, digits, - and _ only",
            err=True,
        )


def check_folder(path: Path) -> None:
    """Raises `UsageError`, before the work, for a file that is to be written where no folder is."""
    if not path.parent.is_dir():
        raise UsageError(
            "cannot write", where=str(path), why="its folder is not there", remedy=ANOTHER
        )


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named; raises `UsageError` where that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "cannot write", where=str(path), why=error.strerror or str(error), remedy=ANOTHER
        ) from error
