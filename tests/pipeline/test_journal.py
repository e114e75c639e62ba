"""Applications that are ended before their end, and what the next one makes of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import pytest

pytest.importorskip("torch", reason="searches compile with torch")

from advisor.apply.judge import Judgement
from advisor.apply.recipe import Recipe
from advisor.errors import EXIT_UNREADABLE, AbortedError, StorageError, WorkloadError
from advisor.model.actions import ActionKind
from advisor.pipeline import child, supervisor
from advisor.pipeline.job import ApplyJob, Failed, JobError, failed_of
from advisor.pipeline.journal import Written, begun, restore, survive
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Alone
from advisor.pipeline.search import Search
from advisor.pipeline.supervisor import death, supervise
from advisor.pipeline.trials import Trial
from advisor.pipeline.verdicts import action_verdicts
from advisor.store import RunDirectory, RunStore
from tests.builders.run import sample_run
from tests.pipeline.test_search import Scripted, quiet, saving

ROOT = Path(__file__).parents[2]
VERSIONS = {"torch": "2.11.0"}
TIMES = saving(channels_last=100, fused_optimizer=300, cuda_graph=50)

SEARCH = """
    import os, sys
    from pathlib import Path
    from advisor.store import RunDirectory
    from tests.pipeline.test_journal import TIMES, search_of
    from tests.pipeline.test_search import Scripted

    class Deadly(Scripted):
        def build(self, recipe):
            sys.stdout.write(recipe.name() + "\\n")
            sys.stdout.flush()
            if "fused_optimizer" in recipe.actions:
                os.kill(os.getpid(), 11)
            return super().build(recipe)

    search_of(RunDirectory.at(Path(sys.argv[1])), Deadly(TIMES, TIMES))
"""


@dataclass
class Telling(Scripted):
    """It keeps the names of what is built, in order."""

    names: list[str] = field(default_factory=list)

    def build(self, recipe: Recipe) -> Variant:
        self.names.append(recipe.name())
        return super().build(recipe)


def search_of(run: RunDirectory, bench: Scripted) -> dict[str, tuple[str, str]]:
    """Verdict and reason of each action, once what an earlier attempt knew is restored."""
    attempt = begun(run, (), "a GPU", VERSIONS, Alone())
    kinds: tuple[ActionKind, ...] = ("channels_last", "fused_optimizer", "cuda_graph")
    trials = [Trial("asked", action=kind) for kind in kinds]
    restore(trials, attempt)
    journal = Written(run, attempt)
    found = Search(cast(Bench, bench), {}, trials, Path(), quiet, journal=journal)
    _, result = found.run()
    return {v.kind: (v.verdict, v.reason) for v in action_verdicts(trials, result)}


def searched(run: RunDirectory) -> subprocess.CompletedProcess[str]:
    """One process that searches, until it dies."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SEARCH), str(run.path)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A signed run, of which nothing was applied."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return sample_run(RunStore(tmp_path), applied=False)


def test_what_ended_the_process_is_out_and_nothing_is_tried_twice(run: RunDirectory) -> None:
    first = searched(run)
    assert first.returncode == -11, first.stderr
    assert first.stdout.split()[-1] == "channels_last+fused_optimizer"
    attempt = run.attempt()
    assert attempt is not None
    assert attempt.running == "asked: fused_optimizer"
    assert [(t.action, t.keep) for t in attempt.trials] == [("channels_last", True)]
    error = death(first.returncode, "rewrite", "net.py:make", out_of_memory=False)
    assert survive(run, error)
    second = Telling(TIMES, TIMES)
    verdicts = search_of(run, second)
    # What won before is built again as the best so far; it is not tried again.
    assert second.names[0] == "channels_last"
    assert "channels_last+cuda_graph" in second.names
    assert verdicts["channels_last"][0] == verdicts["cuda_graph"][0] == "kept"
    assert verdicts["fused_optimizer"][0] == "refused"
    assert "was killed by signal 11 (SIGSEGV)" in verdicts["fused_optimizer"][1]


def test_only_what_is_tried_may_end_a_process_and_only_once(run: RunDirectory) -> None:
    died = WorkloadError("the workload's process was killed by signal 9 (SIGKILL)")
    assert not survive(run, died), "nothing was begun"
    journal = Written(run, begun(run, (), "a GPU", VERSIONS, Alone()))
    journal.begin("f: attention", 60.0)
    assert survive(run, died)
    with pytest.raises(WorkloadError, match="killed by signal 9"):
        Written(run, begun(run, (), "a GPU", VERSIONS, Alone())).begin("f: attention", 60.0)
    journal.begin("f: autotune", 60.0)
    journal.end()
    assert not survive(run, died), "it ended between two trials"


def test_a_lost_device_ends_the_process_and_names_what_lost_it(run: RunDirectory) -> None:
    attempt = begun(run, (), "a GPU", VERSIONS, Alone())
    journal = Written(run, attempt, lost=lambda: "CUDA error: an illegal memory access")
    journal.begin("f: plan", 60.0)
    failed = WorkloadError("the step failed", why="CUDA error: an illegal memory access")
    with pytest.raises(AbortedError, match="lost its GPU") as caught:
        journal.failed(failed)
    assert survive(run, caught.value)
    found = run.attempt()
    assert found is not None
    assert found.died == {"f: plan": failed.line()}


def test_judgements_hold_for_one_request_device_and_set_of_versions(run: RunDirectory) -> None:
    journal = Written(run, begun(run, ("a",), "a GPU", VERSIONS, Alone()))
    trial = Trial("a", action="autotune", swapped={"autotune": 2}, absent={"plan": "no site"})
    trial.judgement = Judgement(False, "slower")
    journal.judged(trial)
    again = [Trial("a", action="autotune"), Trial("a", action="cuda_graph")]
    restore(again, begun(run, ("a",), "a GPU", VERSIONS, Alone()))
    assert again[0].judgement == trial.judgement
    assert again[0].swapped == {"autotune": 2}
    assert again[0].absent == {"plan": "no site"}
    assert again[1].judgement is None
    for other in (
        begun(run, (), "a GPU", VERSIONS, Alone()),
        begun(run, ("a",), "another GPU", VERSIONS, Alone()),
        begun(run, ("a",), "a GPU", {"torch": "2.12.0"}, Alone()),
    ):
        assert other.trials == ()


ENDLESS = """
import json, os, sys, time
told = int(sys.argv[2])
os.write(told, b'{"type":"happened","stage":"rewrite","state":"running"}\\n')
os.write(told, b'{"type":"watched","what":"x","limit_s":1.0}\\n')
time.sleep(100)
"""


def test_what_has_no_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START", ENDLESS)
    with pytest.raises(WorkloadError, match="it has no end within 1 s") as caught:
        supervise(ApplyJob(run="x"), lambda *_, **__: None, lambda _: None, where="net.py")
    assert caught.value.where == "net.py"


def test_a_full_disk_ends_the_process_and_condemns_nothing_that_was_tried(
    run: RunDirectory,
) -> None:
    full = StorageError("cannot write", where="/cache", why="No space left on device")
    with pytest.raises(StorageError):
        search_of(run, Scripted(TIMES, TIMES, refuses={"fused_optimizer": full}))
    found = run.attempt()
    assert found is not None
    assert ([t.action for t in found.trials], found.died) == (["channels_last"], {})
    Written(run, found).begin("asked: fused_optimizer", 60.0)  # as where not even that is written
    assert not survive(run, JobError(failed_of(full))), "started again, the disk is as full"
    assert search_of(run, Scripted(TIMES, TIMES))["fused_optimizer"][0] == "kept"


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENOSPC, "storage", "/run/attempt.json: cannot write: No space left on device. make"),
        (errno.EROFS, "storage", "/run/attempt.json: cannot write: Read-only file system. let"),
        (errno.EACCES, "internal", "internal error: PermissionError"),  # perhaps it was to be read
    ],
)
def test_a_job_that_finds_the_disk_full_says_so_and_is_no_fault_of_this_program(
    number: int, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/run/attempt.json")

    heard, told = os.pipe()
    monkeypatch.setattr(child, "_do", fails)
    with suppress(PermissionError):
        assert child._run(ApplyJob(run="run"), told) == EXIT_UNREADABLE
    os.close(told)
    with os.fdopen(heard, "rb") as pipe:
        ended = msgspec.json.decode(pipe.read(), type=Failed)
    assert ended.code == code
    assert JobError(ended).line().startswith(words)
