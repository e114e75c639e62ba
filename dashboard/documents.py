"""A `Document` as components: what the other printed forms say, the page says in the same words."""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

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
from dashboard.parts import section

_MARKS = {"good": "✓ ", "bad": "✕ ", "warn": "! "}


def sections(document: Document) -> list[Component]:
    """A section for each heading of the document, with what stands below it."""
    found: list[Component] = []
    title, body = "", list[Component]()
    for block in (*document, Heading("", 2)):
        if not isinstance(block, Heading):
            body.append(_block(block))
            continue
        if body:
            found.append(section(title or "Summary", *body))
        title, body = _text(block.text), []
    return found


def _block(block: Block) -> Component:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Items):
        rows = [html.Li(_spans(row)) for row in block.rows]
        return html.Ol(rows) if block.numbered else html.Ul(rows)
    if isinstance(block, Listing):
        return html.Pre(block.text, className="log")
    if isinstance(block, Paragraph):
        return dmc.Text(_spans(block.content), className="wrap")
    return dmc.Text(_spans(block.text), fw=600)


def _table(block: Table) -> Component:
    head = html.Thead(
        html.Tr([html.Th(column.title or "–", scope="col") for column in block.columns])
    )
    body = html.Tbody([html.Tr([html.Td(_spans(cell)) for cell in row]) for row in block.rows])
    return html.Div(html.Table([head, body], className="plain"), className="scroll", tabIndex=0)


def _spans(content: Content) -> Sequence[Component]:
    return [_words(words) for words in line(content)]


def _words(words: Words) -> Component:
    """A colour never carries meaning alone: good and bad have their marks."""
    text = visible(words.text)
    mark = _MARKS.get(words.mood, "") if not text.startswith(tuple(_MARKS.values())) else ""
    name = f"mood-{words.mood}"
    return html.Code(text, className=name) if words.code else html.Span(mark + text, className=name)


def _text(content: Content) -> str:
    return "".join(words.text for words in line(content))
