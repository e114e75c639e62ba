"""Property tests draw the same examples in every run of one commit, so that a verdict is of it.

`FUSION_ADVISOR_EXAMPLES=1000` draws others, and more of them where a test asks how many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.builders.forked import Forked

ROOT = str(Path(__file__).parents[1])

with suppress(ImportError):  # GPU tests run where no property test does
    from hypothesis import settings

    settings.register_profile("suite", derandomize="FUSION_ADVISOR_EXAMPLES" not in os.environ)
    settings.load_profile("suite")


@pytest.fixture(scope="session")
def _compilers() -> Iterator[object]:
    with Forked(("tests.builders.warm_compiler",), PYTHONPATH=ROOT) as running:
        yield running.module


@pytest.fixture
def forked_compilers(_compilers: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that this process starts to compile are forked; tests/verify starts real ones."""
    from advisor.verify import _compile_process

    monkeypatch.setattr(_compile_process, "subprocess", _compilers)


@pytest.fixture(scope="session")
def interpreting() -> Iterator[Forked]:
    """Runs programs that interpret kernels, forked from one that has imported what they import."""
    modules = ("tests.builders.warm_interpreter",)
    settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ROOT}
    with Forked(modules, **settings) as running:
        yield running
