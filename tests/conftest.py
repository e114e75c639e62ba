"""Property tests draw the same examples in every run of one commit, so that a verdict is of it.

`FUSION_ADVISOR_EXAMPLES=1000` draws others, and more of them where a test asks how many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

with suppress(ImportError):  # GPU tests run where no property test does
    from hypothesis import settings

    settings.register_profile("suite", derandomize="FUSION_ADVISOR_EXAMPLES" not in os.environ)
    settings.load_profile("suite")


@pytest.fixture(scope="session")
def _compilers() -> Iterator[object]:
    from tests.builders.forked import Forked

    root = str(Path(__file__).parents[1])
    with Forked(("tests.builders.warm_compiler",), PYTHONPATH=root) as running:
        yield running.module


@pytest.fixture
def forked_compilers(_compilers: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that this process starts to compile are forked; tests/verify starts real ones."""
    from advisor.verify import _compile_process

    monkeypatch.setattr(_compile_process, "subprocess", _compilers)
