"""Targets: the three kinds of workload, and one clear line for everything that is no workload."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from advisor.errors import EXIT_UNREADABLE, EXIT_USAGE, AdvisorError, UsageError, WorkloadError
from advisor.pipeline.likeness import differences
from collectors.live.workload import Workload, load_workload

CPU = torch.device("cpu")
PRELUDE = "import torch\nfrom torch import nn\n"


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    """Targets are imported for good; what a test imported goes with it."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("target_", "json")):
            del sys.modules[name]


def target(folder: Path, body: str, *, name: str = "target_file.py", factory: str = "make") -> str:
    path = folder / name
    path.write_text(PRELUDE + body)
    return f"{path}:{factory}"


def load(folder: Path, body: str) -> Workload:
    return load_workload(target(folder, body), CPU)


INFERENCE = "def make():\n    return nn.Linear(4, 2), {}\n"
TRAINING = """
def make():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    return model, torch.optim.AdamW(model.parameters()), lambda m: m(x).square().sum()
"""


@pytest.mark.parametrize(
    "inputs",
    [
        "torch.ones(3, 4)",
        "(torch.ones(3, 4),)",
        "[torch.ones(3, 4)]",
        "{'input': torch.ones(3, 4)}",
        "__import__('collections').UserDict(input=torch.ones(3, 4))",
    ],
)
def test_a_module_and_its_inputs_are_an_inference_step(tmp_path: Path, inputs: str) -> None:
    workload = load(tmp_path, INFERENCE.format(inputs))
    assert workload.kind == "inference"
    assert workload.shapes() == ("float32[3, 4]",)
    result = workload.step_of()()
    assert result.shape == (3, 2)
    assert not result.requires_grad
    torch.testing.assert_close(workload.results_of(), [result])


def test_a_model_an_optimizer_and_a_loss_are_a_training_step(tmp_path: Path) -> None:
    workload = load(tmp_path, TRAINING)
    assert workload.kind == "training"
    assert isinstance(workload.part, nn.Module)
    before = [p.detach().clone() for p in workload.part.parameters()]
    workload.step_of()()
    assert any(
        not torch.equal(a, b) for a, b in zip(before, workload.part.parameters(), strict=True)
    )


def test_results_of_training_are_the_loss_and_every_gradient_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    workload = load(tmp_path, TRAINING)
    assert isinstance(workload.part, nn.Module)
    before = [p.detach().clone() for p in workload.part.parameters()]
    first, second = workload.results_of(), workload.results_of()
    assert len(first) == 1 + len(before)
    assert float(first[1].abs().sum()) > 0
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(list(workload.part.parameters()), before)
    assert all(p.grad is None for p in workload.part.parameters())


def test_sparse_gradients_are_compared_by_their_rows() -> None:
    """Those of an embedding: the rows that were looked up, each once, and what they get."""
    model = nn.Sequential(nn.Embedding(1000, 8, sparse=True), nn.Linear(8, 4))
    rows = torch.tensor([7, 3, 7, 900])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = Workload(
        "t", "training", torch.device("cpu"), model, optimizer=optimizer,
        loss=lambda part: part(rows).square().sum(),
    )  # fmt: skip
    results = work.results_of()
    assert [list(result.shape) for result in results] == [[], [1, 3], [3, 8], [4, 8], [4]]
    assert results[1].tolist() == [[3, 7, 900]]
    assert max(differences(results, work.results_of())) == 0.0
    wrong = [*results[:2], results[2].flip(0), *results[3:]]
    assert differences(wrong, results)[2] > 0.1


def test_results_start_from_the_same_state_every_time() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.seen.add_(x)  # type: ignore[operator]
            cache[1:] = x[1:]
            return nn.functional.dropout(x * cache), self.seen  # type: ignore[return-value]

    module, inputs = Stateful(), (torch.randn(1).expand(4), torch.ones(4))
    workload = Workload("test", "inference", CPU, module, inputs=inputs)
    torch.testing.assert_close(workload.results_of(), workload.results_of(), rtol=0, atol=0)
    assert torch.equal(workload.results_of()[1], inputs[0]), "a result that is a buffer is kept"
    assert not bool(module.seen.any())  # type: ignore[operator]
    assert torch.equal(inputs[1], torch.ones(4))


def test_a_callable_is_a_step(tmp_path: Path) -> None:
    workload = load(tmp_path, "def make():\n    return lambda: {'a': [torch.ones(2)], 'b': 3}\n")
    assert workload.kind == "step"
    torch.testing.assert_close(workload.results_of(), [torch.ones(2)])


@pytest.mark.parametrize(
    "kind",
    [
        INFERENCE.format("torch.ones(3, 4)"),
        TRAINING,
        "def make():\n    return lambda: torch.ones(2)\n",
    ],
)
def test_the_part_that_is_compiled_can_be_replaced(tmp_path: Path, kind: str) -> None:
    workload = load(tmp_path, kind)
    calls: list[object] = []

    def wrap(part):  # type: ignore[no-untyped-def]
        def counted(*args, **kwargs):  # type: ignore[no-untyped-def]
            calls.append(part)
            return part(*args, **kwargs)

        return counted

    workload.step_of(wrap)()
    assert calls == [workload.part]
    plain, wrapped = workload.results_of(), workload.results_of(wrap)
    torch.testing.assert_close(plain, wrapped)


def test_results_of_library_outputs_are_found() -> None:
    class Output:
        def to_tuple(self) -> tuple[object, ...]:
            return torch.ones(1), None, (torch.zeros(2),)

    workload = Workload("test", "step", CPU, Output)
    assert [tuple(t.shape) for t in workload.results_of()] == [(1,), (2,)]


def test_the_factory_runs_seeded_on_the_device(tmp_path: Path) -> None:
    body = "def make():\n    x = torch.randn(3)\n    return lambda: x\n"
    name = target(tmp_path, body)
    first, again = (load_workload(name, CPU, seed=3).results_of() for _ in range(2))
    torch.testing.assert_close(first, again)
    assert not torch.equal(first[0], load_workload(name, CPU, seed=4).results_of()[0])
    assert load_workload(name, torch.device("meta")).results_of()[0].device.type == "meta"


DRAWING = """
import random
import numpy as np

DATA = torch.randn(4), random.random(), np.random.rand()

def make():
    model, x = nn.Linear(4, 4), torch.rand(8, 4)
    drawn = [*DATA, random.random(), np.random.rand()]
    model.drawn = [float(torch.as_tensor(value).sum()) for value in drawn]
    scale = lambda: random.random() + np.random.rand()
    return model, torch.optim.SGD(model.parameters(), 0.1), lambda m: m(x).sum() * scale()
"""


@pytest.mark.parametrize("seed", [0, -1, 1 << 40])
def test_copies_draw_the_same_numbers_whoever_draws_them(tmp_path: Path, seed: int) -> None:
    """Each copy executes the file anew; the data that it draws must not change."""
    place = target(tmp_path, DRAWING)
    first, second = (load_workload(place, CPU, seed=seed) for _ in range(2))
    assert isinstance(first.part, nn.Module)
    assert isinstance(second.part, nn.Module)
    assert first.part.drawn == second.part.drawn
    for mine, theirs in zip(first.results_of(), second.results_of(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(first.results_of()[0], first.results_of()[0])


def test_a_sample_and_a_module_are_targets_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load_workload("sample:transformer_block", CPU).kind == "inference"
    target(tmp_path, "def make():\n    return lambda: None\n", name="target_module.py")
    monkeypatch.chdir(tmp_path)
    assert load_workload("target_module:make", CPU).kind == "step"


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "target_neighbour.py").write_text("def step():\n    return 1\n")
    workload = load(
        tmp_path, "import target_neighbour\ndef make():\n    return target_neighbour.step\n"
    )
    assert workload.step_of()() == 1


def test_a_file_named_like_a_module_in_use_does_not_replace_it(tmp_path: Path) -> None:
    name = target(tmp_path, "def make():\n    return lambda: 1\n", name="json.py")
    assert load_workload(name, CPU).step_of()() == 1
    assert sys.modules["json"] is json


def test_a_dataclass_in_the_file_finds_its_module(tmp_path: Path) -> None:
    body = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Config:
    size: int = 3
def make():
    return lambda: Config().size
"""
    path = tmp_path / "target_dataclass.py"
    path.write_text(body)
    assert load_workload(f"{path}:make", CPU).step_of()() == 3


MAKE = "def make():\n    "
PAIR = MAKE + "m = nn.Linear(1, 1)\n    return "
WRONG = (
    ("an integer", MAKE + "return 3", UsageError, "int"),
    ("nothing", MAKE + "return None", UsageError, "NoneType"),
    ("a module alone", MAKE + "return nn.Linear(1, 1)", UsageError, "Linear"),
    ("a class", MAKE + "return nn.Linear", UsageError, "type"),
    ("a list", MAKE + "return [nn.Linear(1, 1), ()]", UsageError, "list"),
    ("a pair without a module", MAKE + "return (lambda: 1), ()", UsageError, "tuple"),
    ("four things", MAKE + "return 1, 2, 3, 4", UsageError, "tuple"),
    ("inputs that are an array", MAKE + "return nn.Linear(1, 1), __import__('numpy').ones(3)",
     UsageError, "ndarray"),
    ("no inputs", MAKE + "return nn.Linear(1, 1), None", UsageError, "NoneType"),
    ("a pair in another order", MAKE + "return (), nn.Linear(1, 1)", UsageError, "(tuple, Linear)"),
    ("no loss", PAIR + "m, torch.optim.SGD(m.parameters()), 3", UsageError, "tuple"),
    ("no model", PAIR + "m.forward, torch.optim.SGD(m.parameters()), abs", UsageError, "tuple"),
    ("a factory that raises",
     MAKE + "raise ValueError('too\\nbad')", WorkloadError, "ValueError: too"),
    ("a factory that exits", MAKE + "raise SystemExit(3)", WorkloadError, "sys.exit(3)"),
    ("a factory with arguments", "def make(size):\n    return size", WorkloadError, "TypeError"),
    ("no such factory", "x = 1", UsageError, "no factory 'make'"),
    ("a factory that is a number", "make = 1", UsageError, "no factory 'make'"),
    ("a syntax error", "def make(:", WorkloadError, "SyntaxError"),
    ("a missing import",
     "import target_not_there", WorkloadError, "No module named 'target_not_there'"),
    ("a file that raises", "1 / 0", WorkloadError, "ZeroDivisionError"),
    ("a script that exits", "raise SystemExit('usage')", WorkloadError, "sys.exit('usage')"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "text"), [pytest.param(*rest, id=name) for name, *rest in WRONG]
)
def test_what_is_no_workload_is_one_clear_line(
    tmp_path: Path, body: str, kind: type[AdvisorError], text: str
) -> None:
    name = target(tmp_path, body)
    with pytest.raises(kind) as caught:
        load_workload(name, CPU)
    assert text in caught.value.line()
    assert "target_file.py" in caught.value.line()
    assert "\n" not in caught.value.line()
    assert caught.value.exit_code == (EXIT_USAGE if kind is UsageError else EXIT_UNREADABLE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere.py:make", "no such file"),
        ("nowhere.py", "a script is no factory"),
        (":make", "give pkg.mod:factory"),
        ("target_not_there:make", "no module 'target_not_there'"),
        ("target_not_there.inside:make", "no module 'target_not_there.inside'"),
        ("json.not_there:make", "no module 'json.not_there'"),
        ("json:not_there", "json has no factory 'not_there'"),
        ("sample:nothing", "transformer_block"),
        ("sample:transformer_block:nothing", "no factory 'nothing'"),
    ],
)
def test_a_target_that_is_not_there_is_a_usage_error(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_workload(name, CPU)
    assert text in caught.value.line()


def test_a_factory_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(
        "from os.path import join\ndef inference(): ...\ndef _own(): ...\ndef training(): ...\n"
    )
    with pytest.raises(UsageError) as caught:
        load_workload("several.py:inferenc", CPU, directory=tmp_path)
    assert caught.value.line().endswith("'inferenc'. it defines inference, training")
    many = "".join(f"def step{number}(): ...\n" for number in range(11))
    (tmp_path / "many.py").write_text(many)
    with pytest.raises(UsageError, match=r"it defines step0, .*, step7 and 3 more"):
        load_workload("many.py:step", CPU, directory=tmp_path)


def test_a_step_that_fails_is_a_workload_error_in_one_line(tmp_path: Path) -> None:
    workload = load(tmp_path, "def make():\n    return nn.Linear(4, 2), torch.ones(3, 5)\n")
    for run in (workload.step_of(), workload.results_of):
        with pytest.raises(WorkloadError) as caught:
            run()
        assert "RuntimeError" in caught.value.line()
        assert "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("async def step():\n    return 1\n", "coroutine"),
        ("def step():\n    yield 1\n", "generator"),
    ],
)
def test_a_step_that_nobody_runs_is_not_one_without_work(
    tmp_path: Path, body: str, text: str
) -> None:
    workload = load(tmp_path, f"{body}def make():\n    return step\n")
    for run in (workload.step_of(), workload.results_of):
        with pytest.raises(WorkloadError, match=text):
            run()
