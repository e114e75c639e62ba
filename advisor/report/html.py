"""A document as one HTML file: no script, no request, light or dark as the system is, printable."""

from __future__ import annotations

from html import escape

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

# The policy forbids every request and every script, should an escape ever be missed.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --paper: #fff; --rule: #d9dce1;
  --good: #18794e; --bad: #c62a2f; --warn: #9a5b00; --bar: #e6edf7; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #a0a4ab; --paper: #15181c;
  --rule: #33383f; --good: #4cc38a; --bad: #ff8589; --warn: #f1a10d; --bar: #22304a; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
h1, h2, h3, p, li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); overflow-wrap: break-word; }
th { color: var(--dim); font-weight: 600; }
.figures { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
meter { width: 6rem; } pre { font: .9em/1.5 ui-monospace, monospace; overflow-x: auto; }
.strong { font-weight: 600; } .good { color: var(--good); } .dim { color: var(--dim); }
.bad { color: var(--bad); font-weight: 600; } .warn { color: var(--warn); }
@media print { body { margin: 0; max-width: none; font-size: 10pt; color: #000; background: #fff; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } .scroll { overflow: visible; } }
"""


def to_html(title: str, document: Document) -> str:
    """The document as a whole HTML page; the text of records is escaped, never interpreted."""
    body = "\n".join(_block(block) for block in document)
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(visible(text))


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_line(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_line(block.content)}</p>"
    if isinstance(block, Listing):
        return f"<pre>{chr(10).join(_text(row) for row in block.text.splitlines())}</pre>"
    if isinstance(block, Items):
        tag = "ol" if block.numbered else "ul"
        rows = "".join(f"<li>{_line(row)}</li>" for row in block.rows)
        return f"<{tag}>{rows}</{tag}>"
    return _table(block)


def _table(block: Table) -> str:
    marks = [' class="figures"' if column.figures else "" for column in block.columns]
    columns = zip(marks, block.columns, strict=True)
    head = "".join(f'<th scope="col"{mark}>{_text(c.title)}</th>' for mark, c in columns)
    shares = block.shares or (None,) * len(block.rows)
    if block.shares:
        head += '<th scope="col">Share</th>'
    rows = "\n".join(_row(row, marks, share) for row, share in zip(block.rows, shares, strict=True))
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _row(cells: tuple[Content, ...], marks: list[str], share: float | None) -> str:
    body = "".join(f"<td{mark}>{_line(cell)}</td>" for mark, cell in zip(marks, cells, strict=True))
    if share is not None:
        body += f'<td><meter min="0" max="1" value="{share:.4f}">{100 * share:.1f} %</meter></td>'
    return f"<tr>{body}</tr>"


def _line(content: Content) -> str:
    return "".join(_words(words) for words in line(content))


def _words(words: Words) -> str:
    text = _text(words.text)
    tag = "code" if words.code else "span"
    if words.mood != "plain":
        return f'<{tag} class="{words.mood}">{text}</{tag}>'
    return f"<code>{text}</code>" if words.code else text
