"""Statements of generated source within 100 columns, broken as a formatter would break them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

WIDTH = 100
INDENT = "    "
# Where an expression inside brackets may be broken, loosest binding first.
_OPERATORS = ((" | ",), (" & ",), (" + ", " - "), (" * ", " / "))


def statement(text: str, depth: int = 0) -> list[str]:
    """The lines of a statement at a depth: one if it fits, else its longest call is opened."""
    return _opened(text, INDENT * depth)


def indented(lines: Iterable[str]) -> list[str]:
    """Statements one level further in: the body of what stands before them."""
    return [INDENT + line for line in lines]


def docstring(text: str, depth: int = 0) -> list[str]:
    """A docstring without quotes or backslashes in it, wrapped if it does not fit on one line."""
    indent = INDENT * depth
    line = f'{indent}"""{text}"""'
    if len(line) <= WIDTH:
        return [line]
    return [*wrapped('"""' + text, depth), f'{indent}"""']


def wrapped(text: str, depth: int = 0) -> list[str]:
    """Prose at a depth; what fits on one line is left as it is."""
    indent = INDENT * depth
    if len(indent) + len(text) <= WIDTH:
        return [indent + text]
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _opened(text: str, indent: str) -> list[str]:
    pairs = [] if len(indent) + len(text) <= WIDTH else list(_brackets(text))
    if not pairs:
        return [indent + text]
    opening, closing = max(pairs, key=lambda pair: pair[1] - pair[0])
    inner = text[opening + 1 : closing]
    # A comma at the end of a call changes nothing; in mere parentheses it would make a tuple.
    before = text[opening - 1 : opening]
    is_call = before.isalnum() or before == "_"
    head, tail = indent + text[: opening + 1], indent + text[closing:]
    deeper = indent + INDENT
    if len(deeper) + len(inner) <= WIDTH:
        return [head, deeper + inner, tail]
    if not is_call:
        return [head, *_broken(inner, deeper), tail]
    body: list[str] = []
    for argument in _split(inner, (", ",)):
        body += _broken(argument, deeper)
        body[-1] += ","
    return [head, *body, tail]


def _broken(expression: str, indent: str) -> list[str]:
    """An expression that stands inside brackets: one operand a line if it does not fit."""
    if len(indent) + len(expression) <= WIDTH:
        return [indent + expression]
    for operators in _OPERATORS:
        parts = _split(expression, operators, keep=True)
        if len(parts) > 1:
            return [line for part in parts for line in _opened(part, indent)]
    return _opened(expression, indent)


def _brackets(text: str) -> Iterator[tuple[int, int]]:
    """Outermost round brackets with something inside: positions of both ends."""
    depth = opening = 0
    for position, character in enumerate(text):
        if character in "([":
            opening = position if depth == 0 else opening
            depth += 1
        elif character in ")]":
            depth -= 1
            if depth == 0 and character == ")" and position > opening + 1:
                yield opening, position


def _split(text: str, separators: tuple[str, ...], *, keep: bool = False) -> list[str]:
    """Parts between separators outside brackets; `keep` leaves an operator with its right part."""
    parts, start, depth = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        found = next((s for s in separators if text.startswith(s, position)), None)
        if depth == 0 and found is not None:
            parts.append(text[start:position])
            start = position + (1 if keep else len(found))
    return [*parts, text[start:]]
