"""The run under ncu: a stand-in for ncu runs the real step program; every refusal is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from advisor.errors import StorageError
from collectors.live import ncu
from collectors.live.ncu import command, count_step, find_ncu

RAW = '"ID","Kernel Name","dram__bytes_read.sum"\n"","","Kbyte"\n"0","k","3"\n'
FACTORY = """
import torch
def make():
    print("the step runs")
    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)
def fails():
    raise ValueError("no such data")
"""
# Runs what it is given like ncu: its own options first, then the program.
STAND_IN = """#!{python}
import subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
program = sys.argv[sys.argv.index({python!r}):]
done = subprocess.run(program, capture_output=True, text=True)
sys.stderr.write(done.stderr)
text = {text!r}
if done.returncode == 0:
    open(log, "w").write("==PROF== Connected\\n" + text)
sys.exit(done.returncode)
"""

# Its program goes on after ncu itself is gone.
SLEEPS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "net.py").write_text(FACTORY)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(ncu, "_PLACES", ())
    return tmp_path


def install(folder: Path, text: str) -> None:
    path = folder / "bin" / "ncu"
    path.write_text(STAND_IN.format(python=sys.executable, text=text))
    path.chmod(0o755)


def fine(said: str) -> None:
    """The disk has room."""


def arguments(folder: Path, factory: str = "make") -> list[str]:
    return [f"net.py:{factory}", "eager", "0", "1", str(folder)]


def test_counters_of_a_step_that_ran(folder: Path) -> None:
    install(folder, RAW)
    counters, warnings = count_step(arguments(folder), folder / "ncu.csv", fine)
    assert warnings == ()
    assert counters is not None
    assert [k.dram_read_bytes for k in counters.kernels] == [3_000]


@pytest.mark.parametrize("text", [RAW + '"1","k","3', RAW[:20], RAW])
def test_what_a_full_disk_cut_is_not_counted(folder: Path, text: str) -> None:
    """Whole rows may be missing too: of half a step nothing is said."""

    def full(said: str) -> None:
        raise StorageError("cannot write", where="/run", why="No space left on device")

    install(folder, text)
    counters, warnings = count_step(arguments(folder), folder / "ncu.csv", full)
    if text == RAW:
        assert counters is not None, "nothing was amiss: nobody is asked"
        return
    assert counters is None
    (warning,) = warnings
    assert warning.message == (
        "no counters of single kernels: /run: cannot write: No space left on device"
    )
    assert not (folder / "ncu.csv").exists()


def test_without_ncu_one_line_says_so(folder: Path) -> None:
    assert find_ncu() is None
    counters, (warning,) = count_step(arguments(folder), folder / "ncu.csv", fine)
    assert counters is None
    assert "put ncu on the path" in warning.message


def test_missing_permission_is_explained(folder: Path) -> None:
    install(folder, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    counters, (warning,) = count_step(arguments(folder), folder / "ncu.csv", fine)
    assert counters is None
    assert "NVreg_RestrictProfilingToAdminUsers=0" in warning.message
    assert "\n" not in warning.message


def test_a_workload_that_fails_under_ncu_is_quoted(folder: Path) -> None:
    install(folder, RAW)
    counters, (warning,) = count_step(arguments(folder, "fails"), folder / "ncu.csv", fine)
    assert counters is None
    assert "no such data" in warning.message


def test_a_run_that_hangs_ends(folder: Path) -> None:
    path = folder / "bin" / "ncu"
    path.write_text(f"#!{sys.executable}\n{SLEEPS}")
    path.chmod(0o755)
    counters, (warning,) = count_step(arguments(folder), folder / "ncu.csv", fine, timeout_s=0.5)
    assert counters is None
    assert "did not finish" in warning.message


def test_what_cannot_be_run_is_told(folder: Path) -> None:
    path = folder / "bin" / "ncu"
    path.write_text("#!/nowhere/python\n")
    path.chmod(0o755)
    counters, (warning,) = count_step(arguments(folder), folder / "ncu.csv", fine)
    assert counters is None
    assert "does not run" in warning.message


def test_clocks_are_left_alone_and_only_the_marked_step_is_counted() -> None:
    line = command("ncu", Path("x.csv"), ["a"])
    assert line[line.index("--clock-control") + 1] == "none"
    assert line[line.index("--profile-from-start") + 1] == "off"
    assert line[line.index("--page") + 1] == "raw"
    assert "dram__bytes_read.sum" in line[line.index("--metrics") + 1]
    assert line[line.index("-m") - 1] == sys.executable
