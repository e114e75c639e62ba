"""Git repositories for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

WHEN = "2026-03-01T10:00:00+00:00"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    """A git command in a repository, as nobody in particular; what it printed."""
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_COMMITTER_DATE": WHEN}
    return subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env=own,
    ).stdout.strip()


def committed(folder: Path) -> None:
    """Make a folder a repository with one commit of all that is in it."""
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
