"""The commit of a workload's source: asked of real repositories, and never a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.model.report import Commit
from advisor.pipeline import source_commit
from advisor.pipeline.source_commit import commit_of
from advisor.store import RunDirectory
from tests.builders.repository import WHEN, committed, git, needs_git

pytestmark = needs_git


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A committed file below the root of a repository."""
    file = tmp_path / "repo" / "models" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    committed(tmp_path / "repo")
    return file


def test_a_committed_file_has_its_commit_and_time(source: Path) -> None:
    full = git(source.parent, "rev-parse", "HEAD")
    assert commit_of(source) == Commit(id=full[:12], committed=WHEN, dirty=False)


def test_changes_anywhere_in_the_repository_are_told(source: Path) -> None:
    other = source.parents[1] / "other.py"
    other.write_text("y = 1\n")
    found = commit_of(source)
    assert found is not None
    assert found.dirty is False, "files that git does not know, as runs, are no change"
    assert (new := commit_of(other)) is not None
    assert new.dirty is True, "a workload that was never committed is one"
    source.write_text("x = 2\n")
    assert (edited := commit_of(source)) is not None
    assert edited == Commit(id=found.id, committed=WHEN, dirty=True)


def test_what_a_repository_ignores_is_not_of_its_commits(source: Path) -> None:
    (source.parents[1] / ".gitignore").write_text("venv/\n")
    installed = source.parents[1] / "venv" / "package.py"
    installed.parent.mkdir()
    installed.write_text("")
    assert commit_of(installed) is None


def test_the_environment_of_a_hook_does_not_lead_elsewhere(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(elsewhere, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))
    assert commit_of(source) is not None


def test_nothing_of_the_repository_is_run_or_written(source: Path) -> None:
    root = source.parents[1]
    trap, fired = root / "trap.sh", root / "fired"
    trap.write_text(f"#!/bin/sh\ntouch {fired}\n")
    trap.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(trap))
    git(root, "config", "core.hooksPath", str(root))
    trap.rename(root / "post-index-change")
    (root / "trap.sh").symlink_to(root / "post-index-change")
    source.touch()
    before = (root / ".git" / "index").read_bytes()
    assert commit_of(source) is not None
    assert not fired.exists()
    assert (root / ".git" / "index").read_bytes() == before


def test_without_repository_commit_or_git_there_is_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    loose = tmp_path / "loose" / "model.py"
    loose.parent.mkdir()
    assert commit_of(loose) is None
    git(loose.parent, "init", "-q")
    assert commit_of(loose) is None, "a repository without a commit"
    assert commit_of(tmp_path / "gone" / "model.py") is None
    assert commit_of(None) is None
    monkeypatch.setattr(source_commit, "_GIT", ("no-such-git",))
    assert commit_of(source) is None
    monkeypatch.setattr(source_commit, "_GIT", ("sleep", "9"))
    monkeypatch.setattr(source_commit, "_TIMEOUT_S", 0.05)
    assert commit_of(source) is None


def test_a_profile_has_the_commit_of_its_workload(profiled: RunDirectory) -> None:
    commit = profiled.report().workload.commit
    assert commit is not None
    assert commit == commit_of(profiled.path.parent / "workload.py")
    assert (commit.committed, commit.dirty) == (WHEN, False)
