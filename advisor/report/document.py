"""A document as data: what every printed form of a record is written from.

A record becomes blocks once (`report_document`, `compare_document`, ...); Markdown, HTML and the
terminal each write the same blocks. Text is kept as it came: escaping is the writer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Mood = Literal["plain", "strong", "good", "bad", "warn", "dim"]


@dataclass(frozen=True)
class Words:
    """A run of text; `code` marks a name that is quoted as it is (a kernel, a path, a command)."""

    text: str
    mood: Mood = "plain"
    code: bool = False


Line: TypeAlias = tuple[Words, ...]
Content: TypeAlias = str | Words | Line


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the document's own."""

    text: Content
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """One paragraph."""

    content: Content


@dataclass(frozen=True)
class Items:
    """A list of lines, numbered or not."""

    rows: tuple[Content, ...]
    numbered: bool = False


@dataclass(frozen=True)
class Listing:
    """Lines of a program, kept as they are."""

    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table; `figures` are set to the right and never broken over lines."""

    title: str
    figures: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose rows are as long as its columns; `share` in [0, 1] draws a bar behind a row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Content, ...], ...]
    shares: tuple[float, ...] = ()


Block: TypeAlias = Heading | Paragraph | Items | Listing | Table
Document: TypeAlias = tuple[Block, ...]


def line(content: Content) -> Line:
    """Content of any of its three forms as words."""
    if isinstance(content, str):
        return (Words(content),)
    return (content,) if isinstance(content, Words) else content


def code(text: str, mood: Mood = "plain") -> Words:
    """A quoted name."""
    return Words(text, mood, code=True)


def table(
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[Content]],
    shares: Iterable[float] = (),
) -> Table:
    """A table from titles (and whether they hold figures) and rows."""
    return Table(
        tuple(Column(title, figures) for title, figures in columns),
        tuple(tuple(row) for row in rows),
        tuple(shares),
    )


def visible(text: str) -> str:
    """Text on one line with control, bidirectional and other unprintable characters spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
