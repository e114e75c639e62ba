"""What is said of an error: that of the code that raised it, whoever hands it on."""

from __future__ import annotations

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
