"""Plans that are a module's whole forward: how that is shown, and the source diff of a patch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.model.applied import Applied, PlanVerdict, SetVerdict
from advisor.model.base import decode, encode
from advisor.model.configs import default_config
from advisor.model.forward import Forwards, PlanForwards, WholeForward
from advisor.pipeline.patch import patch_files, write_folder
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.report.source_diff import source_diff
from advisor.store import RunDirectory
from advisor.verify.forward import bind_forward
from collectors.live.module_calls import CallTensor

MODEL = '''"""Layers as people write them."""

import torch
from torch import nn


def scaled(x, weight):
    return x * weight


class RMS(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.eps = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        # As in the paper.
        return scaled(self._norm(x.float()).type_as(x), self.weight)


class AddNorm(nn.Module):
    """Reads two tensors, and its row count."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, width))
        self.bias = nn.Parameter(torch.linspace(1, 2, width))

    def forward(
        self,
        x,
        other,
        scale=None,
    ):
        """What stands behind the docstring."""
        x = x - other / x.shape[0]
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class Halved(nn.Module):
    """A softmax is but a part of its forward."""

    def forward(self, x):
        return torch.softmax(x * 0.5, -1) @ x.transpose(-1, -2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([RMS(64), RMS(64)])
        self.linears = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(3)])
        self.add_norm, self.halved = AddNorm(64), Halved()

    def forward(self, x):
        for norm, linear in zip(self.norms, self.linears):
            x = linear(norm(x))
        return self.halved(self.linears[2](self.add_norm(x, self.linears[2](x))))


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 6, 64),)


def train():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 6, 64)
    return model, torch.optim.SGD(model.parameters(), 0.1), lambda m: m(x).square().mean()
'''
# Runs the patched model beside a copy of the original; kernels are interpreted.
RUN = '''
import sys
import torch
from torch.autograd import forward_ad
import original, patched
from fusion_patch import forwards

assert "advisor" not in sys.modules
calls = []
for name in [n for n in vars(forwards) if n.startswith("KERNEL_")]:
    kernel = getattr(forwards, name)
    def counted(*args, own=kernel.fusion, name=name):
        calls.append(name)
        return own(*args)
    kernel.fusion = counted

def compare(kind, *args, change=lambda m: m):
    """The largest difference of results and gradients, and how many kernels ran."""
    results = []
    calls.clear()
    for module in (original, patched):
        torch.manual_seed(0)
        made = change(getattr(module, kind)(64))
        given = [a.clone().requires_grad_() for a in args]
        out = made(*given)
        out.square().sum().backward()
        results.append([out, *(g.grad for g in given), *(p.grad for p in made.parameters())])
    pairs = list(zip(*results))
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs), len(calls)

x, y = torch.randn(2, 6, 64), torch.randn(2, 6, 64)
def with_eps(m):
    m.eps = 1e-3
    return m
print(compare("RMS", x))
if len(sys.argv) > 1:
    sys.exit()
print(compare("RMS", torch.randn(3, 1, 64)))
print(compare("RMS", x.double(), change=lambda m: m.double()))
print(compare("RMS", x, change=with_eps))
print(compare("RMS", x.transpose(0, 1)))
print(compare("AddNorm", x, y))
print(compare("AddNorm", torch.randn(4, 6, 64), torch.randn(4, 6, 64)))
with torch.no_grad():
    calls.clear()
    same = torch.allclose(original.make()[0](x), patched.make()[0](x), atol=1e-5)
    print(same, len(calls))
def dual(module, x, y):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(module(forward_ad.make_dual(x, y))).tangent

def slope(module, x, y):
    return torch.func.grad(lambda given: module(given).square().sum())(x)

for way in (lambda *given: torch.func.jvp(given[0], (given[1],), (given[2],))[1], dual, slope):
    calls.clear()
    results = [way(m.RMS(64), x, y) for m in (original, patched)]
    print(torch.allclose(*results, atol=1e-5), len(calls))
'''


def profiled(folder: Path, target: str) -> RunDirectory:
    run = RunDirectory.create_at(folder)
    profile(ProfileOptions(target=target, steps=3), run, lambda stage, text: None)
    return run


def kept(run: RunDirectory) -> None:
    """Write that all forward plans with one member were kept."""
    plans = [run.plan(plan_id) for plan_id in run.plan_ids()]
    plans = [plan for plan in plans if plan.phase != "backward" and not plan.members]
    verdicts = tuple(
        PlanVerdict(
            plan_id=plan.id, title=plan.title, verdict="kept", reason="measured",
            sites_expected=len(plan.sites), launch=default_config(plan, plan.sites[0]),
        )
        for plan in plans
    )  # fmt: skip
    chosen = SetVerdict(verdict="kept", reason="measured", plans=tuple(p.id for p in plans))
    run.write_applied(
        Applied(created="now", device="a GPU", versions={}, plans=verdicts, set=chosen)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("forwards")
    (found / "patched.py").write_text(MODEL)
    (found / "original.py").write_text(MODEL)
    return found


@pytest.fixture(scope="module")
def run(folder: Path) -> RunDirectory:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        made = profiled(folder / "run", "patched.py:make")
        kept(made)
    return made


def found_forwards(run: RunDirectory) -> dict[str, WholeForward]:
    known = run.forwards()
    assert known is not None
    return {f.type_name: f for item in known.plans for f in item.forwards}


def test_whole_forwards_are_found_with_what_they_hold(run: RunDirectory) -> None:
    found = found_forwards(run)
    assert set(found) == {"RMS", "AddNorm"}
    rms, add = found["RMS"], found["AddNorm"]
    assert (rms.module, rms.file, rms.exact, rms.arguments) == (
        "norms.0",
        "patched.py",
        False,
        ("x",),
    )
    assert [(c.name, c.value) for c in rms.constants] == [("eps", 1e-6)]
    assert {item.name for item in rms.inputs} == {"x", "weight"}
    assert add.exact, "it divides by the number of rows"
    assert add.arguments == ("x", "other")
    assert [(c.holder, c.name, c.value) for c in add.constants] == [("argument", "scale", None)]


def test_a_part_of_a_forward_says_so(run: RunDirectory) -> None:
    known = run.forwards()
    assert known is not None
    reasons = [item.reason for item in known.plans if item.reason]
    assert any("halved also computes" in reason for reason in reasons), reasons


def test_the_diff_applies_and_the_patched_model_computes_the_same(
    run: RunDirectory, folder: Path
) -> None:
    files = patch_files(run)
    assert patch_files(run) == files
    write_folder(files, folder / "fusion_patch")
    readme = files["README.md"].decode()
    assert "forwards.diff puts it into RMS.forward (patched.py)" in readme
    assert "no source diff: the forward of halved also computes" in readme
    git = ["git", "apply", "fusion_patch/forwards.diff"]
    done = subprocess.run(git, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changed = (folder / "patched.py").read_text()
    assert "from fusion_patch import forwards as fusion_forwards" in changed
    assert 'docstring."""\n        fused = fusion_forwards.add_norm_' in changed
    ran = _python(folder, RUN)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    pairs = [tuple(map(float, line.strip("()").split(","))) for line in lines[:-4]]
    assert [calls for _, calls in pairs] == [1, 1, 0, 0, 0, 1, 0]
    assert max(difference for difference, _ in pairs) < 1e-5
    assert lines[-4] == "True 3"
    assert lines[-3:] == ["True 0"] * 3, "kernels have no rule for torch.func, nor forward mode"
    told = [line for line in ran.stderr.splitlines() if "UserWarning" in line]
    assert len(told) == 2, "once for each function, and not for torch.func"
    assert "patched.py" in told[0]
    assert "rms_" in told[0]
    assert told[0].endswith(
        "is not used, the forward runs as written: the kernel needs Triton, x float32[.., 64], "
        "weight float32[64] on cpu, contiguous, and the constants that the module had"
    )
    assert "add_norm_" in told[1]
    assert "x float32[2, 6, 64], other float32[2, 6, 64], weight float32[64]" in told[1]


def _python(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )


def test_a_training_forward_returns_one_of_several_outputs(tmp_path: Path) -> None:
    """What the backward pass reads is written too; the diff takes what the forward returns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        for name in ("patched.py", "original.py"):
            (tmp_path / name).write_text(MODEL)
        made = profiled(tmp_path / "run", "patched.py:train")
        kept(made)
        write_folder(patch_files(made), tmp_path / "fusion_patch")
    git = ["git", "apply", "fusion_patch/forwards.diff"]
    assert subprocess.run(git, cwd=tmp_path, check=False).returncode == 0
    known = made.forwards()
    assert known is not None
    (plan_id,) = [item.plan_id for item in known.plans for f in item.forwards if f.owner == "RMS"]
    assert len(made.plan(plan_id).outputs) > 1
    ran = _python(tmp_path, RUN, "first")
    assert ran.returncode == 0, ran.stderr
    difference, calls = map(float, ran.stdout.strip().strip("()").split(","))
    assert difference < 1e-5
    assert calls == 1


def test_what_no_record_can_hold_is_a_reason(tmp_path: Path) -> None:
    """A value of two lines; the run can be read all the same, and has its other forwards."""
    told = MODEL.replace("self.eps = eps", 'self.eps, self.mode = eps, "two\\nlines"')
    told = told.replace(
        "self.weight)\n\n\nclass Add", "self.weight) if self.mode else x\n\n\nclass Add"
    )
    (tmp_path / "patched.py").write_text(told)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        made = profiled(tmp_path / "run", "patched.py:make")
    assert set(found_forwards(made)) == {"AddNorm"}
    known = made.forwards()
    assert known is not None
    assert any("is no line of text" in item.reason for item in known.plans)


class Repeats(nn.Module):
    """Holds one number as 64."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(1).expand(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("given", "reason"),
    [((), "given no tensor"), ((CallTensor((2, 6, 64), "float32"),), "weight repeats")],
)
def test_what_cannot_be_tried_is_a_reason(
    run: RunDirectory, given: tuple[CallTensor, ...], reason: str
) -> None:
    known = run.forwards()
    assert known is not None
    plan = next(run.plan(item.plan_id) for item in known.plans if item.forwards)
    reads = [*given, CallTensor((64,), "float32", "weight")]
    names = ("x",)[: len(given)]
    with pytest.raises(IllegalFusionError, match=reason):
        bind_forward(plan, plan.sites[0], Repeats(), names, reads, sizes_matter=False)


def test_records_of_others_cannot_leave_the_diff(run: RunDirectory) -> None:
    """Lines, names and paths of a record are checked: they become a diff and a module."""
    good = found_forwards(run)["RMS"]
    bad: list[dict[str, Any]] = [
        {"file": "../outside.py"},
        {"file": "/etc/x.py"},
        {"file": 'a.py\n+++ b/other.py'},
        {"type_name": 'X"); import os'},
        {"variable": "a b"},
        {"module": "a\nb"},
        {"body": msgspec.structs.replace(good.body, lines=("a\n+evil",))},
        {"body": msgspec.structs.replace(good.body, at=10_000)},
        {"arguments": ("y",)},
    ]  # fmt: skip
    for change in bad:
        forward = msgspec.structs.replace(good, **change)
        record = Forwards(plans=(PlanForwards(plan_id="0" * 16, forwards=(forward,)),))
        with pytest.raises(InvalidRecordError):
            decode(encode(record), Forwards)


def test_changes_of_one_file_that_touch_are_one_hunk(run: RunDirectory) -> None:
    good = found_forwards(run)["RMS"]
    near = msgspec.structs.replace(
        good.body, first=good.imports.first, lines=("one", "two", "three", "four", "five"),
        at=good.imports.at,
    )  # fmt: skip
    joined = msgspec.structs.replace(good, body=near, imports=near)
    text = source_diff([(joined, "f")], "p")
    assert text.count("@@") == 2
    assert source_diff([(good, "f")], "p").count("@@") == 4
