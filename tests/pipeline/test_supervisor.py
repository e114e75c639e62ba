"""However user code ends: one line, an exit code, and nothing is left running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from advisor.cli.main import run as command
from advisor.errors import RefusedError, UsageError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.gate import GateConfig
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.pipeline.profile_report import save_unfinished
from advisor.pipeline.recording import Recording, record_workload
from advisor.pipeline.supervisor import death
from advisor.pipeline.trials import requested
from advisor.pipeline.unfinished import is_incomplete, keep_unfinished
from advisor.report.gate import judge
from advisor.store import RunDirectory, read_progress
from tests.builders.child import interruptible
from tests.builders.forked import Forked

ROOT = Path(__file__).parents[2]
DYING = """
import os, signal, subprocess, sys, time
import torch

print("hello from the factory")


def crashes():
    print("last words", end="")
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves():
    os._exit(5)


def escapes():
    raise BaseException("caught by no handler of errors")


def exits():
    print("usage: none", file=sys.stderr)
    sys.exit(7)


def hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"children {os.getpid()} {child.pid}", flush=True)
    time.sleep(600)
"""
SCRIPT = """
import sys
import torch
import advisor

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
try:
    for number in range(int(sys.argv[1])):
        with advisor.step():
            (20 * torch.tanh(model(torch.randn(4, 8)) / 20)).sum().backward()
finally:
    print("the script cleaned up")
"""


@pytest.fixture
def dying(tmp_path: Path) -> Path:
    path = tmp_path / "dying.py"
    path.write_text(DYING)
    return path


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("factory", "words", "printed"),
    [
        ("crashes", "killed by signal 11 (SIGSEGV): during the stage 'load'", "in crashes"),
        ("leaves", "ended its process with exit code 5", "hello from the factory"),
        ("escapes", "the workload raised BaseException, which is no Exception", "in escapes"),
        ("exits", "the factory failed: it called sys.exit(7)", "usage: none"),
    ],
)
def test_a_process_that_ends_is_one_line_and_what_it_printed_is_shown(
    factory: str,
    words: str,
    printed: str,
    dying: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = dying.parent / "run"
    assert command(["profile", f"{dying}:{factory}", "--out", str(out)]) == 3
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert words in lines[-1]
    assert printed in captured.err
    assert captured.out == ""
    assert not out.exists(), "nothing of it is worth keeping"


@pytest.mark.usefixtures("started")
def test_a_process_that_dies_where_it_cannot_write_is_no_workload_that_fails(
    dying: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code aborts on a full disk."""
    cache = dying / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    out = dying.parent / "run"
    assert command(["profile", f"{dying}:crashes", "--out", str(out)]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {cache}: cannot write: Not a directory. name another folder in TRITON_CACHE_DIR"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_command(number: signal.Signals, dying: Path, forked: Forked) -> None:
    out = dying.parent / "run"
    argv = [sys.executable, "-m", "tests.builders.forked_command", "profile", f"{dying}:hangs"]
    with interruptible():
        parent = forked.popen(
            [*argv, "--out", str(out)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
    assert parent.stderr is not None
    said = next(line for line in parent.stderr if line.startswith("children"))
    children = [int(word) for word in said.split()[1:]]
    assert all(map(lives, children))
    parent.send_signal(number)
    rest = parent.communicate(timeout=60)[1]
    deadline = time.monotonic() + 20
    while any(map(lives, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(lives, children))
    if number != signal.SIGKILL:
        assert parent.returncode == 130
        assert rest.splitlines()[-1] == "interrupted"
        assert not out.exists()


def lives(process: int) -> bool:
    """Running, not a zombie that nobody has reaped."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@pytest.mark.parametrize(
    ("status", "memory", "words"),
    [
        (-signal.SIGKILL, True, "the machine ran out of memory"),
        (-signal.SIGKILL, False, "killed by signal 9 (SIGKILL)"),
        (-signal.SIGABRT, True, "killed by signal 6 (SIGABRT)"),
        (-64, False, "killed by signal 64"),
        (0, False, "ended its process with exit code 0"),
    ],
)
def test_every_death_has_its_words(status: int, memory: bool, words: str) -> None:
    line = death(status, "time", "train.py", memory).line()
    assert line.startswith("train.py: ")
    assert words in line
    assert "'time'" in line


@pytest.mark.usefixtures("started")
def test_a_script_is_profiled_with_its_arguments_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    out = tmp_path / "run"
    line = ["profile", str(tmp_path / "train.py"), "--out", str(out), "--gpu", "a100"]
    assert command([*line, "--", "1000000000"]) == 0
    assert "the script cleaned up" in capsys.readouterr().err
    run = RunDirectory.at(out)
    report = run.report()
    assert report.workload.target.endswith("train.py -- 1000000000")
    assert report.workload.shapes == ("float32[4, 8]",)
    assert report.workload.graph_hash
    said = {warning.code: warning.message for warning in report.warnings}
    assert "(Sequential)" in said["modules-only"]
    assert run.log_tail() == "the script cleaned up\n"
    events = read_progress(run.progress_path)[0]
    assert [e.stage for e in events] == ["load", "capture", "analyze", "done"]
    assert command(["apply", str(out)]) == 2
    assert "a script cannot be applied to" in capsys.readouterr().err

    assert command(["profile", "--again", str(out), "--steps", "3"]) == 2
    assert "--steps cannot be given with --again" in capsys.readouterr().err
    assert command(["profile", "--again", str(out), "--out", str(tmp_path / "second")]) == 0
    again = RunDirectory.at(tmp_path / "second")
    assert again.report().workload == report.workload
    assert again.info().arguments == run.info().arguments
    changed = capsys.readouterr().out.rpartition("Metrics")[2]
    assert "Before" in changed
    assert "What changed" in changed


@pytest.mark.usefixtures("started")
def test_a_script_that_ends_too_early_says_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    out = str(tmp_path / "run")
    assert command(["profile", str(tmp_path / "train.py"), "--out", out, "--", "1"]) == 3
    assert "the script ended after 1 step: up to" in capsys.readouterr().err
    assert not Path(out).exists()
    options = ProfileOptions(target=f"{tmp_path / 'train.py'} -- 0")
    with pytest.raises(UsageError, match=r"advisor\.step\(\)") as caught:
        profile(options, RunDirectory.create_at(tmp_path / "none"), lambda stage, text: None)
    assert caught.value.exit_code == 2


def test_what_was_known_when_it_ended_is_kept_marked_and_refused(
    places: Path, tmp_path: Path
) -> None:
    run = RunDirectory.create_at(tmp_path / "unfinished")
    options = ProfileOptions(target=f"{places / 'workload.py'}:block")
    recording = Recording(options, torch.device("cpu"), gpu_by_key("a100"), [])
    record_workload(recording, run, lambda stage, text: None, lambda: None)
    save_unfinished(recording, run)
    assert keep_unfinished(run, "it was killed"), "there is a report"
    report = run.report()
    assert is_incomplete(report)
    assert [w.message for w in report.warnings if w.code == "incomplete"] == ["it was killed"]
    assert report.workload.graph_hash
    assert report.findings == ()
    result = judge(GateConfig(), report)
    assert result.status == "failed"
    assert "it was killed" in result.checks[0].text
    with pytest.raises(RefusedError, match="its profile did not finish"):
        requested(run, ())


def test_the_parent_and_the_help_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from advisor.cli.main import run\n"
        "status = run(['profile', sys.argv[1], '--out', sys.argv[2], '--steps', '1'])\n"
        "print(json.dumps([status, 'torch' in sys.modules, 'pandas' in sys.modules]))"
    )
    argv = [sys.executable, "-c", code, "sample:resnet_block", str(tmp_path / "run")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])[:2] == [0, False]


def test_profile_in_this_process_leaves_its_modules_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    before = (list(sys.argv), list(sys.path), Path.cwd(), sys.modules["__main__"])
    options = ProfileOptions(target=f"{tmp_path / 'train.py'} -- 9")
    profile(options, RunDirectory.create_at(tmp_path / "run"), lambda stage, text: None)
    assert (sys.argv, sys.path, Path.cwd(), sys.modules["__main__"]) == before
