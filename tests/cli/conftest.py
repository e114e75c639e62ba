"""A run directory with a report, an applied record and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.store import RunDirectory
from tests.model import builders


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    run = RunDirectory.create_at(tmp_path / "run")
    run.write_report(builders.report())
    run.write_applied(builders.applied())
    return run.path
