"""A small workload of one's own, profiled once; every test works on a signed copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="profiling needs torch")
pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.cli.main import run as command
from advisor.pipeline import supervisor
from advisor.store import RunDirectory, sign
from tests.builders.forked import Forked
from tests.builders.repository import committed

ROOT = Path(__file__).parents[2]
WORKLOAD = '''
"""Two norms in pieces around a linear layer, then a soft-capped softmax."""

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Norm(64), Norm(64)
        self.linear, self.head = nn.Linear(64, 64), nn.Linear(64, 96)

    def forward(self, x):
        scores = self.head(self.second(self.linear(self.first(x))))
        return torch.softmax(20.0 * torch.tanh(scores / 20.0), dim=-1)


def block():
    return Block().to(torch.bfloat16).eval(), (torch.randn(24, 64, dtype=torch.bfloat16),)


def train():
    model = Block()
    data = torch.randn(24, 64)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m: m(data).square().mean()


def broken():
    raise ValueError("no weights\\nhere")


def wrong():
    return 42
'''


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Forks children that have imported what `profile` and `apply` take seconds to import."""
    modules = ("advisor.pipeline.profile", "advisor.pipeline.apply")
    with Forked(modules, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1") as running:
        yield running


@pytest.fixture
def started(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this test fork their children; some of test_supervisor.py start real ones."""
    _fork_children(forked, monkeypatch)


def _fork_children(forked: Forked, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervisor, "subprocess", forked.module)


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own for keys and caches, and the workload in it."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "workload.py").write_text(WORKLOAD)
    if shutil.which("git") is not None:
        committed(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="session")
def profiled(places: Path, forked: Forked) -> RunDirectory:
    """The run of one `profile`; not to be changed."""
    out = places / "run"
    with pytest.MonkeyPatch.context() as patch:
        _fork_children(forked, patch)
        assert command(["profile", f"{places / 'workload.py'}:block", "--out", str(out)]) == 0
    return RunDirectory.at(out)


@pytest.fixture(scope="session")
def applied(profiled: RunDirectory, places: Path, forked: Forked) -> RunDirectory:
    """The same run after one `apply`; not to be changed."""
    run = _copied(profiled, places / "applied")
    with pytest.MonkeyPatch.context() as patch:
        _fork_children(forked, patch)
        assert command(["apply", str(run.path)]) == 0
    return run


@pytest.fixture
def copied(profiled: RunDirectory, tmp_path: Path) -> Callable[[str], RunDirectory]:
    """Makes signed copies to be changed."""
    return lambda name: _copied(profiled, tmp_path / name)


def _copied(run: RunDirectory, path: Path) -> RunDirectory:
    shutil.copytree(run.path, path)
    made = RunDirectory.at(path)
    sign(made)
    return made
