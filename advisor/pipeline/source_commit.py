"""The commit of a workload's source, as `git` tells it; where it cannot tell, there is none.

What is asked writes nothing and runs none of the repository's hooks. A file that the repository
ignores (an installed package below it) is not of its commits.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from advisor.model.report import Commit

SHORT_HASH = 12
_TIMEOUT_S = 3.0
# A hook or a monitor named by the repository's own configuration would be a program that is run.
_GIT = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
)
# They bound the search for a repository; others may point at another one, as within a hook.
_KEPT = ("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")


def commit_of(file: Path | None) -> Commit | None:
    """The commit that `file` lies in; None without a repository, a commit or `git`."""
    if file is None:
        return None
    place = file.resolve()
    head = _told(place.parent, "rev-list", "--max-count=1", "--timestamp", "HEAD").split()
    if len(head) != 2 or not head[0].isdecimal():
        return None
    tracked = _ends(place.parent, "ls-files", "--error-unmatch", "--", place.name)
    if tracked == 1 and _ends(place.parent, "check-ignore", "--quiet", "--", place.name) != 1:
        return None
    moment = datetime.fromtimestamp(int(head[0]), timezone.utc).isoformat(timespec="seconds")
    dirty = True if tracked == 1 else _has_changes(place.parent)
    return Commit(id=head[1][:SHORT_HASH], committed=moment, dirty=dirty)


def _has_changes(folder: Path) -> bool | None:
    """Whether a file of the repository differs from its commit; None if that takes too long.

    Files that git does not know are left out: runs are often kept beside the source.
    """
    asked = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    answer = _run(folder, *asked)
    return bool(answer.stdout.strip()) if answer is not None and answer.returncode == 0 else None


def _told(folder: Path, *arguments: str) -> str:
    answer = _run(folder, *arguments)
    return answer.stdout if answer is not None and answer.returncode == 0 else ""


def _ends(folder: Path, *arguments: str) -> int | None:
    answer = _run(folder, *arguments)
    return None if answer is None else answer.returncode


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """The command at its end; None where it cannot be run or takes too long."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in _KEPT}
    try:
        return subprocess.run(
            [*_GIT, "-C", str(folder), *arguments],
            env=kept | {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
