"""The rules as a document: what each looks for, what it fires on and what it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from advisor.report.document import (
    Block,
    Content,
    Document,
    Heading,
    Listing,
    Paragraph,
    Words,
    code,
    table,
)


class RuleText(Protocol):
    """What a rule says about itself; `bad` is what fires, `good` what does not."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def explanation(self) -> str: ...
    @property
    def bad(self) -> str: ...
    @property
    def good(self) -> str: ...


def rules_table(rules: Sequence[RuleText]) -> Document:
    """One line a rule."""
    rows: list[tuple[Content, ...]] = [(code(rule.id), rule.title) for rule in rules]
    return (table((("Rule", False), ("Looks for", False)), rows),)


def rule_document(rule: RuleText, level: int = 1) -> Document:
    """One rule explained, with a bad and a good example."""
    title = (Words(rule.title), Words(" · "), code(rule.id, "dim"))
    blocks: list[Block] = [Heading(title, level)]
    blocks += [Paragraph(text) for text in rule.explanation.split("\n\n")]
    for name, example in (("Fires on", rule.bad), ("Leaves alone", rule.good)):
        blocks += [Paragraph(Words(f"{name}:", "strong")), Listing(example)]
    return tuple(blocks)


def rules_reference(rules: Sequence[RuleText]) -> Document:
    """All rules: the table, then each in full."""
    intro = (
        "Every rule looks at one kind of graph, whether it was captured exactly or inferred from a "
        "trace. A rule that lacks its evidence says what it needs; it neither guesses nor fires."
    )
    blocks: list[Block] = [Heading("Rules", 1), Paragraph(intro), *rules_table(rules)]
    for rule in rules:
        blocks += rule_document(rule, 2)
    return tuple(blocks)
