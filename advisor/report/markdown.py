"""A document as GitHub-flavoured Markdown: no text of a record becomes markup, link or mention."""

from __future__ import annotations

import re

from advisor.report.document import (
    Block,
    Content,
    Document,
    Heading,
    Items,
    Listing,
    Paragraph,
    Table,
    Words,
    line,
    visible,
)

# What opens markup anywhere in CommonMark or its GitHub extensions; `<`, `>`, `&` become entities.
# An underscore inside a word and a tilde before a space open nothing.
_MARKUP = re.compile(r"([\\`*\[\]#|$]|(?<![^\W_])_|_(?![^\W_])|~(?=\S))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# What opens markup at the start of a line only: lists, numbered lists, rules.
_START = re.compile(r"^(\d{0,9})([-+.)](?= |$)|[-=](?=[-= ]*$))")
# GitHub links these in finished text, where no escape reaches: an invisible break keeps them text.
_LINKED = re.compile(
    r"(@|\bwww|\b[a-z]{2,12}(?=://)|#|:(?=[a-z+-][\w+-]*:))(?=[\w.:/+-])", re.IGNORECASE
)
_BREAK = "\N{ZERO WIDTH SPACE}"
_EMPHASIS = {"strong": "**", "bad": "**"}


def to_markdown(document: Document) -> str:
    """The document as Markdown text with a final newline."""
    return "\n\n".join(_block(block) for block in document) + "\n"


def escaped(text: str) -> str:
    """Text as Markdown that renders as that text and nothing else."""
    shown = _LINKED.sub(rf"\1{_BREAK}", visible(text))
    shown = re.sub("[&<>]", lambda found: _ENTITIES[found[0]], shown)
    return _MARKUP.sub(r"\\\1", shown)


def quoted(text: str) -> str:
    """Text in a code span long enough to hold its own backticks."""
    shown = visible(text)
    if not shown.strip():
        return escaped(shown)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_line(block.text)}"
    if isinstance(block, Paragraph):
        return _line(block.content)
    if isinstance(block, Listing):
        return _listing(block.text)
    if isinstance(block, Items):
        marks = (f"{n}." if block.numbered else "-" for n in range(1, len(block.rows) + 1))
        return "\n".join(
            f"{mark} {_line(row)}" for mark, row in zip(marks, block.rows, strict=True)
        )
    return _table(block)


def _listing(text: str) -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((fence, *(visible(row) for row in text.splitlines()), fence))


def _table(block: Table) -> str:
    head = _row(tuple(column.title for column in block.columns))
    rule = "|".join(" ---: " if column.figures else " --- " for column in block.columns)
    return "\n".join((head, f"|{rule}|", *(_row(row) for row in block.rows)))


def _row(cells: tuple[Content, ...]) -> str:
    return f"| {' | '.join(_line(cell, in_table=True) for cell in cells)} |"


def _line(content: Content, *, in_table: bool = False) -> str:
    text = "".join(_words(words, in_table) for words in line(content)).strip()
    return _START.sub(r"\1\\\2", text)


def _words(words: Words, in_table: bool) -> str:
    if words.code and not (in_table and "\\|" in words.text):
        # In a table a bar ends the cell even inside a code span, unless it is escaped.
        return quoted(words.text).replace("|", "\\|") if in_table else quoted(words.text)
    text = escaped(words.text)
    mark = _EMPHASIS.get(words.mood, "")
    if not mark or not text.strip():
        return text
    body = text.strip()
    before, _, after = text.partition(body)
    return f"{before}{mark}{body}{mark}{after}"
