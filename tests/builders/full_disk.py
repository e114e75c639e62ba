"""Run in a mount namespace of its own, where a small disk is full: what is told of compilations.

Arguments: the folder of that disk, an empty one elsewhere, and what to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from advisor.errors import AdvisorError, UnreadableError
from advisor.hardware.gpus import gpu_by_key

H200 = gpu_by_key("h200")


def quiet(*_: object, **__: object) -> None:
    """Progress nobody reads."""


def say(line: str) -> None:
    """For the test that started this."""
    sys.stdout.write(f"{line}\n")


def size(full: Path, empty: Path) -> None:
    """Make a candidate ready whose kernels are compiled on the full disk."""
    os.environ["TRITON_CACHE_DIR"] = str(full)
    size_elsewhere(full, empty)


def size_elsewhere(full: Path, empty: Path) -> None:
    """The same where only the variables of the process say what is written there."""
    from advisor.pipeline import candidates as stages
    from tests.model import builders

    plan = builders.plan()
    found = {plan.id: stages.Candidate(plan)}
    stages.generate(found, empty / "kernels", quiet)
    try:
        stages.size(found, [H200], H200, quiet)
    finally:
        say(f"refused: {found[plan.id].refused}")


def step(full: Path, empty: Path) -> None:
    """Compile a step whose code goes to the full disk."""
    import torch
    from torch import nn

    from advisor.pipeline.measure import Bench
    from collectors.live.workload import Workload

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(full)
    work = Workload("w", "inference", torch.device("cpu"), nn.GELU(), (torch.randn(8, 8),))
    Bench(work, lambda: work)


MODEL = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = torch.compile(lambda value: value.exp().relu() + 1)

    @torch.compiler.disable
    def forward(self, value):
        return self.relu(value)


def make():
    model, value = nn.Sequential(nn.Linear(8, 8), Own()), torch.randn(8, 8)
    model(value)
    return model, (value,)
"""
SCRIPT = """
import torch
from torch import nn

import advisor

model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
for _ in range(8):
    with advisor.step():
        model(torch.randn(8, 8))
"""


def _profile(text: str, folder: Path, name: str = "") -> None:
    """Profile a workload, written into a folder, into a run there."""
    from advisor.pipeline.profile import ProfileOptions, profile
    from advisor.store import RunDirectory

    file = folder / "workload.py"
    file.write_text(text)
    run = RunDirectory.create_at(folder / "run")
    profile(ProfileOptions(target=f"{file}{name}", mode="eager", gpu="h200"), run, quiet)


def compiled(full: Path, empty: Path) -> None:
    """Profile a workload that compiles a part while it is made; the code goes to the full disk."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(full)
    _profile(MODEL, empty, ":make")


def swallowed(full: Path, empty: Path) -> None:
    """Profile a script whose modules run by the compiler's code, as on a GPU."""
    from collectors.live import capture, script_graphs

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(full)
    script_graphs.running_backend = lambda found, **_: (  # type: ignore[assignment]
        capture.running_backend(found, generate_code=True)
    )
    _profile(SCRIPT, empty)


def traced(full: Path, empty: Path) -> None:
    """Read a trace of which the profiler wrote no more than the beginning."""
    import torch

    from advisor.pipeline.storage import blame_error
    from collectors import read_trace
    from collectors.live.recorder import record_steps

    record_steps(lambda: torch.zeros(8).exp(), empty / "trace.json.gz", 4)
    try:
        read_trace(empty / "trace.json.gz")
    except UnreadableError as error:
        say(error.line())
        blame_error(error, empty)


COUNTED = """
from pathlib import Path

import torch
from torch import nn

from advisor.pipeline import profile
from advisor.pipeline.profile_report import save_unfinished
from collectors import read_trace

count = profile.count_kernels


def as_on_gpu(recording, run):
    recording.trace = read_trace(Path("TRACE"))
    save_unfinished(recording, run)
    count(recording, run)


profile.count_kernels = as_on_gpu


def make():
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), (torch.randn(8, 8),)
"""
# Counts the kernels that it is given until the disk is full, and says nothing of it; what it leaves
# beside the log stays.
FILLS = """#!PYTHON
import os, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
rows = open("ROWS", "rb").read()
beside = os.path.join(os.path.dirname(log), "..", "beside")
try:
    for path, times in ((beside, BESIDE), (log, 10_000)):
        with open(path, "ab", buffering=0) as file:
            for _ in range(times):
                file.write(rows)
except OSError:
    pass
"""


def counted(full: Path, empty: Path, beside: int = 0) -> None:
    """`profile --ncu` into a run on the full disk: what the command prints, its status."""
    from advisor.cli.main import run
    from tests.pipeline.test_analyze_counters import SAMPLE, counters_of

    rows = counters_of(SAMPLE, empty / "rows.csv")
    text = FILLS.replace("PYTHON", sys.executable).replace("ROWS", str(rows))
    (empty / "ncu").write_text(text.replace("BESIDE", str(beside)))
    (empty / "ncu").chmod(0o755)
    (empty / "net.py").write_text(COUNTED.replace("TRACE", str(SAMPLE)))
    os.environ["PATH"] = f"{empty}:{os.environ['PATH']}"
    os.environ["COLUMNS"] = "200"
    os.dup2(1, 2)
    status = run(
        ["profile", f"{empty}/net.py:make", "--gpu", "h200", "--ncu", "--out", f"{full}/run"]
    )
    sys.stdout.flush()
    say(f"status {status}, {sorted(path.name for path in (full / 'run').iterdir())}")


def crowded(full: Path, empty: Path) -> None:
    """The same where what fills the disk is not the run's."""
    counted(full, empty, 10_000)


WHAT: dict[str, Callable[[Path, Path], None]] = {
    "size": size,
    "size_elsewhere": size_elsewhere,
    "step": step,
    "compiled": compiled,
    "swallowed": swallowed,
    "traced": traced,
    "counted": counted,
    "crowded": crowded,
}


def main(full: str, empty: str, what: str) -> None:
    """Say how it ended."""
    try:
        WHAT[what](Path(full), Path(empty))
    except AdvisorError as error:
        say(f"{error.code}: {error.line()}")
    else:
        say("it ended well")


if __name__ == "__main__":
    main(*sys.argv[1:])
