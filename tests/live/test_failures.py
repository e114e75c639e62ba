"""What is said of an error: that of the code that raised it, whoever hands it on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from collectors.live.failures import failure, first_line


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("too many sizes\nmore"), "RuntimeError: too many sizes"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_an_error_in_a_backend_is_told_itself(raised: Exception, said: str) -> None:
    def backend(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        raise raised

    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="backend='backend' raised") as told:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert first_line(told.value) == said
    assert said in failure("the step failed", told.value, where="w").line()


def test_the_errors_of_other_code_keep_their_own_words() -> None:
    class OwnError(Exception):
        inner_exception = ValueError("another")

    assert first_line(OwnError("mine")) == "OwnError: mine"


def test_a_package_that_is_missing_is_to_be_installed_where_the_tool_is() -> None:
    error = ModuleNotFoundError("No module named 'transformers'", name="transformers")
    line = failure("the factory failed", error, where="a.py:f", remedy="it must return").line()
    assert line.startswith("a.py:f: the factory failed: ModuleNotFoundError: No module named")
    assert line.endswith(f". install it where fusion-advisor is installed: {sys.prefix}")
