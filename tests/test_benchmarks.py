"""Benchmarks are run by hand, where a GPU is: here, that what they import is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
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


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A benchmark where no GPU is visible."""
    return subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["gemm_epilogue", "batch_norms", "gpm", "zoo", "zoo_profiles"])
def test_what_needs_a_gpu_says_so_on_one_line(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out = ("--out", tmp_path / "out") if name in ("gpm", "zoo", "zoo_profiles") else ()
    done = run(name, *out)
    assert done.returncode == 2
    assert done.stderr.startswith("a GPU is needed, PyTorch finds none")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("zoo", ("--table", "--out")), ("zoo_profiles", ("--table", "--out")),
     ("replay", ("--recorded",))],
)  # fmt: skip
def test_a_table_of_nothing_replaces_no_record(
    name: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """The record of the zoo was emptied before its table failed."""
    kept = {path: path.read_bytes() for path in FOLDER.glob("*.*")}
    done = run(name, *arguments, tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"no results in {tmp_path}: measure first\n"
    assert kept == {path: path.read_bytes() for path in FOLDER.glob("*.*")}
