"""Benchmarks are run by hand, where a GPU is: here, that what they import is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
OURS = ("advisor", "analyzers", "collectors", "dashboard", "tests")


def imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import from our packages, at the top or within a function."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS
        for alias in node.names
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in imports(path)
        if not hasattr(importlib.import_module(module), name)
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not missing


def test_the_table_of_kernels_names_the_rows_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    rows, tables = importlib.import_module("kernel_rows"), importlib.import_module("kernel_table")
    refused = rows.Row(name="softmax", shape=(4, 8), gpu="a GPU", why="it spills")
    text = tables.table(rows.Results(rows=(refused,)), ["softmax 4x8", "rope 2x2"])
    assert "it spills" in text
    (told,) = (line for line in text.splitlines() if "are not there" in line)
    assert told.startswith("- 1 of 2 rows")
    assert told.endswith(": rope 2x2")
