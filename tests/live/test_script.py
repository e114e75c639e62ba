"""Scripts: marks and what they cost, phases, stopping, and one clear line for what goes wrong."""

from __future__ import annotations

import sys
import threading
import timeit
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
import torch

import advisor
from advisor import steps
from advisor.errors import AdvisorError, UsageError, WorkloadError
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.store import RunDirectory
from collectors.live.capture import Capture
from collectors.live.conductor import Conductor, ScriptPhase
from collectors.live.script import ScriptStopped, run_script
from collectors.live.script_graphs import CaptureModules, Compiles, Watch, compiled_regions
from collectors.live.target import parse_target, script_target

BETWEEN = "sizes vary between steps: a graph is given float32[4, 8] then float32[5, 8]"


class Counted(ScriptPhase):
    """A phase of `wanted` steps that notes what happens to it."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.log = wanted, list[str]()

    def begin(self, undo: ExitStack) -> int:
        undo.callback(self.log.append, "undone")
        return self.wanted

    def enter(self) -> None:
        self.log.append("enter")

    def leave(self, completed: bool) -> None:
        self.log.append("leave" if completed else "failed")

    def end(self) -> None:
        self.log.append("end")


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    torch.compiler.reset()
    yield
    steps.listen(None)


def fail() -> NoReturn:
    pytest.exit("a script that can be stopped is not abandoned")


def conducted(wanted: int = 1000) -> tuple[Conductor, Counted]:
    phase = Counted(wanted)
    return Conductor([phase], fail), phase


def run(
    folder: Path, body: str, *phases: ScriptPhase, arguments: str = ""
) -> tuple[bool, Conductor]:
    path = folder / "train.py"
    path.write_text("import sys\nimport torch\nimport advisor\n" + body)
    conductor = Conductor(phases, fail)
    name = f"{path}{arguments}"
    try:
        return run_script(parse_target(name), name, conductor), conductor
    finally:
        conductor.close()


def test_every_form_of_a_mark_is_a_step_and_inner_marks_are_none() -> None:
    conductor, phase = conducted()
    steps.listen(conductor)
    with advisor.step(), advisor.step():
        pass
    assert list(advisor.step([3, 4])) == [3, 4]

    @advisor.step
    def train(value: int) -> int:
        """Trains."""
        return value + 1

    @advisor.step()
    def infer(value: int) -> int:
        return train(value) * 2

    assert (train(1), infer(1), train.__doc__) == (2, 4, "Trains.")
    assert phase.log == ["enter", "leave"] * 5
    assert conductor.completed == 5


def test_a_step_that_raises_does_not_count() -> None:
    conductor, phase = conducted()
    steps.listen(conductor)
    with pytest.raises(ZeroDivisionError), advisor.step():
        _ = 1 / 0
    for value in advisor.step([1, 2, 3]):
        if value == 2:
            break
    assert phase.log == ["enter", "failed", "enter", "leave", "enter", "failed"]


def test_marks_of_other_threads_are_no_steps() -> None:
    conductor, _ = conducted()
    steps.listen(conductor)

    def other() -> None:
        with advisor.step():
            pass

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert conductor.completed == 0


def test_a_mark_costs_almost_nothing_when_nobody_profiles() -> None:
    def marked() -> None:
        with advisor.step():
            pass

    marked()
    taken = min(timeit.repeat(marked, number=2_000, repeat=20)) / 2_000
    assert taken < 1e-6
    # After the first use no module is looked for.
    assert vars(advisor)["step"] is steps.step


def test_phases_follow_each_other_and_then_the_script_is_stopped(tmp_path: Path) -> None:
    first, none, second = Counted(2), Counted(0), Counted(1)
    body = (
        "try:\n    for _ in range(100):\n        with advisor.step():\n            pass\n"
        f"finally:\n    open({str(tmp_path / 'left')!r}, 'w').write(sys.argv[2] + __name__)\n"
    )
    stopped, conductor = run(tmp_path, body, first, none, second, arguments=" -- --epochs '3 4'")
    assert stopped
    assert conductor.completed == 3
    assert first.log == ["enter", "leave"] * 2 + ["undone", "end"]
    assert none.log == ["undone"]
    assert second.log == ["enter", "leave", "undone", "end"]
    assert (tmp_path / "left").read_text() == "3 4__main__", "it was left in an orderly way"
    assert sys.modules["__main__"].__name__ == "__main__"
    assert getattr(sys.modules["__main__"], "__file__", None) != str(tmp_path / "train.py")


@pytest.mark.parametrize("end", ["", "sys.exit()\n", "sys.exit(0)\n"])
def test_a_script_may_end_by_itself(tmp_path: Path, end: str) -> None:
    phase = Counted(9)
    stopped, conductor = run(tmp_path, "with advisor.step():\n    pass\n" + end, phase)
    assert not stopped
    assert conductor.completed == 1
    assert phase.log == ["enter", "leave", "undone"]


def test_the_steps_of_its_own_profiler_are_marks(tmp_path: Path) -> None:
    body = """
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=1, warmup=1, active=1), on_trace_ready=sys.exit) as profiler:
    for _ in range(100):
        torch.ones(1)
        profiler.step()
"""
    phase = Counted(4)
    stopped, conductor = run(tmp_path, body, phase)
    assert stopped
    assert conductor.completed == 4
    assert "__main__" not in torch.profiler.profile.step.__module__


def test_marks_of_ours_count_before_those_of_a_profiler(tmp_path: Path) -> None:
    body = """
with torch.profiler.profile() as profiler:
    for _ in range(3):
        with advisor.step():
            pass
        profiler.step()
"""
    phase = Counted(9)
    stopped, conductor = run(tmp_path, body, phase)
    assert not stopped
    assert conductor.completed == 3
    assert phase.log.count("failed") == 1, "the profiler's first step, which ours took the place of"


WRONG = (
    ("raises", "x = 1\nraise ValueError('bad batch')", "train.py:5: the script failed: ValueError"),
    ("raises below", "import json\njson.loads('{')", "train.py:5: the script failed: JSONDecode"),
    ("no syntax", "def f(:", "train.py:4: the script failed: SyntaxError"),
    ("exits", "sys.exit(3)", "train.py: the script failed: it called sys.exit(3)"),
    ("no memory", "torch.empty(1 << 50)", "out of host memory"),
)  # fmt: skip


@pytest.mark.parametrize(("body", "text"), [pytest.param(*rest, id=name) for name, *rest in WRONG])
def test_what_goes_wrong_is_one_line(tmp_path: Path, body: str, text: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        run(tmp_path, body, Counted(2))
    assert text in caught.value.line()
    assert "\n" not in caught.value.line()


MODEL = """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
loss = torch.nn.MSELoss()
results = []
for number in range({count}):
    with advisor.step():
        torch.manual_seed(number % 2)
        value = loss(model(torch.randn(4, 8)), torch.zeros(4, 8))
        value.backward()
        results.append(float(value.detach()))
        {more}
"""


def graphs_of(folder: Path, more: str = "pass", count: int = 9) -> tuple[Capture, Watch, bool]:
    found = Capture()
    compiles, watch = Compiles(found), Watch(found)
    capture = CaptureModules(found, watch, generate_code=False, announce=lambda: None)
    with compiled_regions(found, generate_code=False):
        run(folder, MODEL.format(count=count, more=more), compiles, watch, capture, Counted(2))
    return found, watch, capture.used


def test_without_regions_the_modules_that_a_step_calls_are_captured(tmp_path: Path) -> None:
    check = "assert number < 2 or results[-1] == results[-3], 'captured as it computes'"
    found, watch, used = graphs_of(tmp_path, check)
    assert used
    assert [type(module).__name__ for module in watch.modules] == ["Sequential", "MSELoss"]
    assert watch.shapes == ("float32[4, 8]",) * 3
    phases = [item.lowered.graph.phase for item in found.graphs]
    assert phases.count("forward") == phases.count("backward") == 2
    assert all(module._compiled_call_impl is None for module in watch.modules)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there a trace tells of the sizes")
@pytest.mark.parametrize("varies", [False, True])
def test_sizes_that_vary_from_step_to_step_are_told(varies: bool, tmp_path: Path) -> None:
    """The step whose modules are found is not the one that is captured."""
    path = tmp_path / "train.py"
    rows = "4 + number" if varies else "4"
    path.write_text(
        "import torch, advisor\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))\n"
        "for number in range(9):\n"
        "    with advisor.step():\n"
        f"        model(torch.randn({rows}, 8)).sum().backward()\n"
    )
    made = RunDirectory.create_at(tmp_path / "run")
    report = profile(ProfileOptions(target=str(path)), made, lambda *_: None)
    told = [warning.message for warning in report.warnings if warning.code == "sizes-vary"]
    assert (
        told
        == [
            "sizes vary between steps: modules were given float32[5, 8], then float32[6, 8]; "
            "graphs, findings and plans are of the latter alone"
        ]
        * varies
    )
    assert report.workload.shapes == ("float32[6, 8]" if varies else "float32[4, 8]",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there code is generated for it")
@pytest.mark.parametrize(
    ("rows", "scale", "code", "message"),
    [
        ("4 + number", "1", "sizes-vary", BETWEEN),
        ("4", "number", "recompiled", "the second step was compiled again, for values that"),
        ("4", "1", "", ""),
    ],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_regions_that_run_otherwise_in_the_next_step_are_told(
    rows: str, scale: str, code: str, message: str, dynamic: bool | None, tmp_path: Path
) -> None:
    """Also where one graph serves all sizes: then nothing is compiled again."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, advisor\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))\n"
        "kinds = (lambda x: x.exp(), lambda x: x.sin())\n"
        f"@torch.compile(dynamic={dynamic})\n"
        "def run(x, number):\n"
        "    return kinds[number % 2](model(x))\n"
        "for number in range(9):\n"
        "    with advisor.step():\n"
        f"        run(torch.randn({rows}, 8), {scale}).sum().backward()\n"
    )
    made = RunDirectory.create_at(tmp_path / "run")
    report = profile(ProfileOptions(target=str(path)), made, lambda *_: None)
    codes = ("sizes-vary", "recompiled", "several-runs")
    told = [(w.code, w.message) for w in report.warnings if w.code in codes]
    assert [key for key, _ in told] == [code] * bool(code)
    assert all(text.startswith(message) for _, text in told)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there code is generated for it")
def test_a_region_that_runs_for_every_part_of_a_batch_is_told(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, advisor\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))\n"
        "for number in range(40):\n"
        "    model(torch.randn(4, 8))\n"
        "    with advisor.step():\n"
        "        for part in range(4):\n"
        "            model(torch.randn(4, 8)).sum().backward()\n"
    )
    made = RunDirectory.create_at(tmp_path / "run")
    report = profile(ProfileOptions(target=str(path)), made, lambda *_: None)
    (told,) = [warning.message for warning in report.warnings if warning.code == "several-runs"]
    assert "runs up to 4 times a step" in told


def test_regions_that_the_script_compiles_are_its_graphs(tmp_path: Path) -> None:
    body = MODEL.replace("loss =", "model = torch.compile(model)\nloss =").format(count=5, more="0")
    found = Capture()
    compiles, watch = Compiles(found), Watch(found)
    capture = CaptureModules(found, watch, generate_code=False, announce=lambda: None)
    with compiled_regions(found, generate_code=False):
        run(tmp_path, body, compiles, watch, capture, Counted(2))
    assert not capture.used
    assert watch.modules == []
    assert [item.lowered.graph.phase for item in found.graphs] == ["forward", "backward"]
    assert compiles.settle(timed=True)


def test_a_step_that_fails_while_it_is_captured_is_captured_again(tmp_path: Path) -> None:
    found = Capture()
    compiles, watch = Compiles(found), Watch(found)
    capture = CaptureModules(found, watch, generate_code=False, announce=lambda: None)
    body = """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
for number in range(20):
    try:
        with advisor.step():
            model(torch.ones(4, 8)).sum().backward()
            if number == 2:
                raise ValueError("while it is captured")
    except ValueError:
        pass
"""
    with compiled_regions(found, generate_code=False):
        run(tmp_path, body, compiles, watch, capture)
    assert [item.lowered.graph.phase for item in found.graphs] == ["forward", "backward"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a trace is enough where there is a GPU")
def test_a_step_without_modules_is_not_too_few_steps(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("import advisor\nfor _ in advisor.step(range(20)): pass\n")
    made = RunDirectory.create_at(tmp_path / "run")
    options = ProfileOptions(target=str(path), mode="eager")
    with pytest.raises(WorkloadError, match="the step calls no module and compiles nothing"):
        profile(options, made, lambda *_: None)


def test_a_script_that_catches_what_stops_it_is_abandoned() -> None:
    abandoned = []

    def leave() -> NoReturn:
        abandoned.append(True)
        raise KeyboardInterrupt

    conductor = Conductor([Counted(1)], leave)
    steps.listen(conductor)
    caught = 0

    def endless() -> None:
        nonlocal caught
        while caught < 100:
            try:
                with advisor.step():
                    pass
            except ScriptStopped:
                caught += 1

    with pytest.raises(KeyboardInterrupt):
        endless()
    assert abandoned == [True]
    assert 1 < caught < 20


@pytest.mark.parametrize("text", ["nowhere.py", "nowhere.py -- a"])
def test_a_script_that_is_not_there(text: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        run_script(parse_target(text), text, conducted()[0])


def test_the_text_of_a_target_holds_its_arguments() -> None:
    text = script_target("a b.py", ["--name", "x y", "--", ":z"])
    assert parse_target(text).place == "a b.py"
    assert parse_target(text).arguments == ("--name", "x y", "--", ":z")
    assert script_target("a.py:make", []) == "a.py:make"
    for target in ("a.py:make", "sample:transformer_block", "a.b:make"):
        with pytest.raises(AdvisorError, match="a factory takes no arguments"):
            script_target(target, ["--x"])
