"""Markdown and HTML of reports: complete, self-contained, obeying nothing that a record says."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace

from advisor.model.applied import Applied
from advisor.model.report import KernelRow, Report
from advisor.report.document import Document, Heading, Items, Paragraph, Words, code, table, visible
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from advisor.report.report_document import report_document
from advisor.report.text import render
from advisor.store import RunStore
from tests.builders.run import sample_run
from tests.model import builders, strategies

BREAK = "\N{ZERO WIDTH SPACE}"
HOSTILE = (
    "<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "&lt;b&gt; & &#64;",
    "[x](javascript:alert(1))", "![x](http://evil/x.png)", "http://evil.example www.evil.example",
    "@someone closes #12 :smile:", "| a | b |", "**bold** __b__ ~~s~~ $x$", "`a` ``b``", "\\|",
    "\\",
    "# head #", "- item", "1. one", "+", "> quote", "    indented", "---", "===", "```", "~~~",
    "line\nbreak\r\n\n# next", "\x1b[2J", "\u202eevil", '"><a href="//evil">', "a<!-- -->b",
)  # fmt: skip
PLACES = ("heading", "paragraph", "bullet", "number", "cell", "code", "code cell", "strong")


def one(text: str, place: str) -> Document:
    """A document with `text` in one place."""
    forms: dict[str, Document] = {
        "heading": (Heading(text, 3),),
        "paragraph": (Paragraph(text),),
        "bullet": (Items((text,)),),
        "number": (Items((text,), numbered=True),),
        "cell": (table([("A", False), ("B", True)], [(text, "x")]),),
        "code": (Paragraph(code(text)),),
        "code cell": (table([("A", False)], [(code(text),)]),),
        "strong": (Paragraph((Words("a "), Words(text, "strong"), Words(" z"))),),
    }
    return forms[place]


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def words(self) -> str:
        return "".join(self.text)


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "ul", "ol",
    "li", "div", "table", "thead", "tbody", "tr", "th", "td", "span", "code", "meter",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "scope", "min", "max", "value",
}  # fmt: skip


def assert_harmless(page: Page) -> None:
    """Only our own tags, closed; no attribute that could run or load anything."""
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert {name for _, attributes in page.tags for name in attributes} <= ATTRIBUTES


def flat(tokens: list[Token]) -> list[Token]:
    return [t for token in tokens for t in (token, *flat(token.children or []))]


def rendered(text: str) -> tuple[set[str], str]:
    """Kinds of tokens in Markdown (with GitHub's tables and strikethrough), and its text."""
    found = flat(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text))
    body = "".join(t.content for t in found if t.type in ("text", "code_inline", "text_special"))
    return {t.type for t in found}, body.replace(BREAK, "")


FORBIDDEN = {
    "html_block", "html_inline", "link_open", "image", "fence", "code_block", "blockquote_open",
    "hr", "em_open", "s_open", "softbreak", "hardbreak", "lheading_open",
}  # fmt: skip


def assert_is_text(text: str, place: str) -> None:
    kinds, body = rendered(to_markdown(one(text, place)))
    assert not kinds & FORBIDDEN
    allowed = {"strong": {"strong_open"}, "code": {"code_inline"}, "code cell": {"code_inline"}}
    extra = {"strong_open", "code_inline", "heading_open", "bullet_list_open", "ordered_list_open"}
    own = {"heading": "heading_open", "bullet": "bullet_list_open", "number": "ordered_list_open"}
    assert kinds & extra <= allowed.get(place, set()) | {own.get(place, "")}
    assert visible(text).strip() in body
    page = Page(to_html("t", one(text, place)))
    assert_harmless(page)
    assert visible(text) in page.words()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str, place: str) -> None:
    assert_is_text(text, place)


@settings(max_examples=150, deadline=None)
@given(text=st.text("<>&`*_[]()#|~!:-+.1a \\$\n@w/\"'", max_size=12), place=st.sampled_from(PLACES))
def test_any_text_stays_text(text: str, place: str) -> None:
    if text.strip() and place != "strong":
        assert_is_text(text, place)


def test_links_and_mentions_are_broken() -> None:
    for text in ("@someone", "#12", "http://evil", "www.evil", ":smile:"):
        assert text not in to_markdown(one(text, "paragraph"))
    assert "aten::add 03:04:05" in to_markdown(one("aten::add 03:04:05", "paragraph"))


def test_a_page_loads_nothing_and_has_both_modes() -> None:
    text = to_html("t", report_document(builders.report(), builders.applied()))
    assert "default-src &#x27;none&#x27;" in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.parametrize("write", [to_markdown, lambda document: to_html("t", document)])
def test_a_real_run_says_everything(write: object, tmp_path: Path) -> None:
    run = sample_run(RunStore(tmp_path))
    text = write(report_document(run.report(), run.applied()))  # type: ignore[operator]
    for words in (
        "RMS norm written in pieces", "1.36 ms", "of a 6.42 ms step", "The decode loop waits",
        "9 sites share one signature", "5.1", "register-spill-1", "model.layers.0.input_layernorm",
        "sm90_xmma_gemm_bf16bf16_bf16f32", "launch-outside-window", "Recommended order", "kept",
        "reads and writes the activation seven times",
    ):  # fmt: skip
        assert words in text, words


def test_the_share_of_each_kernel_is_drawn() -> None:
    rows = (
        KernelRow(name="a", role="gemm", library="cublas", count=1, time_ns=75),
        KernelRow(name="b", role="gemm", library="cublas", count=1, time_ns=25),
    )
    text = to_html("t", report_document(replace(builders.report(), kernels=rows)))
    assert 'value="0.7500">75.0 %<' in text


def test_many_kernels_are_counted_not_listed() -> None:
    rows = tuple(
        KernelRow(name=f"k{n}", role="gemm", library="x", count=1, time_ns=n) for n in range(100)
    )
    text = to_markdown(report_document(replace(builders.report(), kernels=rows)))
    assert "and 60 kernels more" in text
    assert "`k99`" in text
    assert "`k1`" not in text


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(report=strategies.reports(), applied=st.none() | strategies.applications())
def test_any_valid_report_takes_every_form(report: Report, applied: Applied | None) -> None:
    document = report_document(report, applied)
    assert_harmless(Page(to_html(report.workload.target, document)))
    kinds, _ = rendered(to_markdown(document))
    assert not kinds & FORBIDDEN
    text = render(to_terminal(document), width=80)
    assert "\x1b" not in text
