"""A run directory with a report, an applied record and nothing else; output 100 columns wide."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.store import RunDirectory
from tests.model import builders


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of a file, whatever the terminal or the processes that run the tests."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    run = RunDirectory.create_at(tmp_path / "run")
    run.write_report(builders.report())
    run.write_applied(builders.applied())
    return run.path
