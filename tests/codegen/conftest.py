"""One interpreting child for all code-generation tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton", reason="interpreting kernels needs triton")

from tests.codegen.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    with Interpreter(tmp_path_factory.mktemp("interpreter")) as child:
        yield child
