"""`rules` lists and explains every rule; the reference in docs/ is its output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from advisor.cli.main import run
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.rules_document import rule_document, rules_reference
from analyzers.rules import RULES
from tests.report.test_forms import Page, assert_harmless, rendered

REFERENCE = Path(__file__).parents[2] / "docs" / "rules.md"


@dataclass(frozen=True)
class Text:
    """A rule that says hostile things."""

    id: str = "a-rule"
    title: str = "<b>T</b> *x*"
    explanation: str = "First.\n\nSecond `code`."
    bad: str = "x = ```\n<script>"
    good: str = "y"


def test_every_rule_explains_itself_with_two_examples() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES) > 10
    for rule in RULES:
        assert len(rule.explanation) > 80, rule.id
        assert rule.title
        assert rule.bad.strip() != rule.good.strip() != "", rule.id


def test_the_list_names_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules"]) == 0
    out = capsys.readouterr().out
    assert all(rule.id in out and rule.title in out for rule in RULES)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_one_rule_is_explained(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule = RULES[0]
    assert run(["rules", rule.id, "--format", form]) == 0
    out = capsys.readouterr().out
    assert rule.bad.splitlines()[0] in out
    assert "Leaves alone:" in out


def test_a_rule_is_found_by_the_id_that_its_findings_begin_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of which a report prints the whole id, and not the rule's."""
    for name in ("row-program", "row-program-3e81faf3ed"):
        assert run(["rules", name]) == 0
        assert "row_program" in capsys.readouterr().out
    assert run(["rules", "row-programs"]) == 2
    assert "there is no rule called 'row-programs'" in capsys.readouterr().err


def test_an_unknown_rule_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "gated_mpl"]) == 2
    assert "did you mean gated-mlp" in capsys.readouterr().err
    assert run(["rules", "§"]) == 2


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == to_markdown(rules_reference(RULES)), (
        "run `make docs`"
    )


def test_examples_stay_text() -> None:
    document = rule_document(Text())
    kinds, _ = rendered(to_markdown(document))
    assert "fence" in kinds
    assert not kinds & {"html_block", "html_inline", "em_open"}
    page = Page(to_html("t", document).replace("pre>", "p>"))
    assert_harmless(page)
    assert "x = ```\n<script>" in page.words()
