"""The verdict of a gate as a document."""

from __future__ import annotations

from advisor.model.gate import CheckStatus, GateResult
from advisor.report.document import (
    Block,
    Content,
    Document,
    Heading,
    Line,
    Mood,
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
    "unknown": "Gate undecided: nobody can tell whether every limit holds",
}
AS_FAR_AS_KNOWN = "Gate passed as far as is known"
REMEDY = (
    "Give run directories whose steps were recorded on a GPU, or let what is unknown pass: "
    "--allow-unknown, allow_unknown = true under [comparison]; of findings without a price, "
    'unpriced = "count" or "ignore" under [[finding]] decides.'
)
MOODS: dict[CheckStatus, Mood] = {"passed": "good", "failed": "bad", "unknown": "warn"}
ORDER: tuple[CheckStatus, ...] = ("failed", "unknown", "passed")


def gate_document(result: GateResult) -> Document:
    """The verdict, then every check: those that failed, that are unknown, that passed."""
    against: Line = ()
    if result.baseline is not None:
        against = (Words(" against "), code(result.baseline))
    title = TITLES[result.status]
    if result.status == "passed" and result.unknown:
        title = AS_FAR_AS_KNOWN
    blocks: list[Block] = [
        Heading(title, 1),
        Paragraph((code(result.report), *against, Words(_summary(result)))),
    ]
    rows: list[tuple[Content, ...]] = [
        (
            Words(check.status, MOODS[check.status]),
            check.name,
            check.text,
        )
        for check in sorted(result.checks, key=lambda check: ORDER.index(check.status))
    ]
    blocks.append(table((("", False), ("Check", False), ("Found", False)), rows))
    if result.status == "unknown":
        blocks.append(Paragraph((Words(REMEDY, "dim"),)))
    return tuple(blocks)


def _summary(result: GateResult) -> str:
    """How many checks did not pass, ` of … checks`; "" if all did."""
    counts = {"failed": len(result.failed), "unknown": len(result.unknown)}
    words = [f"{count} {status}" for status, count in counts.items() if count]
    return f": of {counted(len(result.checks), 'check')} {', '.join(words)}" if words else ""
