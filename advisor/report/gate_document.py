"""The verdict of a gate as a document."""

from __future__ import annotations

from advisor.model.gate import GateResult
from advisor.report.document import (
    Block,
    Content,
    Document,
    Heading,
    Line,
    Paragraph,
    Words,
    code,
    table,
)
from advisor.units import counted

TITLES = {
    "passed": "Gate passed",
    "failed": "Gate failed",
    "not_comparable": "Gate refused: not comparable",
}


def gate_document(result: GateResult) -> Document:
    """The verdict, then every check, those that failed first."""
    against: Line = ()
    if result.baseline is not None:
        against = (Words(" against "), code(result.baseline))
    failed = len(result.failed)
    summary = f": {failed} of {counted(len(result.checks), 'check')} failed"
    blocks: list[Block] = [
        Heading(TITLES[result.status], 1),
        Paragraph((code(result.report), *against, Words(summary if failed else ""))),
    ]
    rows: list[tuple[Content, ...]] = [
        (
            Words(check.status, "good" if check.status == "passed" else "bad"),
            check.name,
            check.text,
        )
        for check in sorted(result.checks, key=lambda check: check.status == "passed")
    ]
    blocks.append(table((("", False), ("Check", False), ("Found", False)), rows))
    return tuple(blocks)
