"""A document on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.report.document import Block, Content, Document, Heading, Items, Listing, Table, line
from advisor.report.text import plain
from advisor.report.text import table as rich_table

_STYLES = {
    "plain": "",
    "strong": "bold",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
}


def to_terminal(document: Document) -> RenderableType:
    """The document for a terminal; widths are the console's."""
    return Group(*(_block(block, first=not n) for n, block in enumerate(document)))


def _block(block: Block, *, first: bool) -> RenderableType:
    if isinstance(block, Heading):
        text = Text("" if first else "\n").append_text(_line(block.text))
        text.stylize("bold")
        return text
    if isinstance(block, Listing):
        return Group(*(plain(f"    {row}", "dim") for row in block.text.splitlines()))
    if isinstance(block, Items):
        marks = [f"{n}. " if block.numbered else "- " for n in range(1, len(block.rows) + 1)]
        rows = zip(marks, block.rows, strict=True)
        return Group(*(Text(mark).append_text(_line(row)) for mark, row in rows))
    if isinstance(block, Table):
        return _table(block)
    return _line(block.content)


def _table(block: Table) -> RenderableType:
    rows = rich_table([(column.title, column.figures) for column in block.columns])
    for row in block.rows:
        rows.add_row(*(_line(cell) for cell in row))
    return rows


def _line(content: Content) -> Text:
    text = Text()
    for words in line(content):
        text.append_text(plain(words.text, _STYLES[words.mood]))
    return text
