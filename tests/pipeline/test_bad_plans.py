"""Planted bad kernels through the real `apply`, without a GPU: each is out for its true reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="applying needs torch")
pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.apply import kernels
from advisor.cli.main import run as command
from advisor.codegen import KernelSource
from advisor.errors import IllegalFusionError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.pipeline import candidates, supervisor
from advisor.pipeline.sizing import requests, spills
from advisor.store import RunDirectory
from advisor.verify.numerics import NumericsProcess
from advisor.verify.resources import resources_of
from advisor.verify.timing_process import TimingProcess, TimingRequest
from tests.builders import bad_kernels
from tests.builders.forked import Forked

pytestmark = pytest.mark.usefixtures("started")

ROOT = Path(__file__).parents[2]
FACTORY = f"{ROOT / 'tests' / 'builders' / 'bad_workload.py'}:small"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[RunDirectory]:
    """The workload profiled, as it is: five plans."""
    folder = tmp_path_factory.mktemp("bad")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(supervisor, "subprocess", forked.module)
        assert command(["profile", FACTORY, "--gpu", "h200", "--out", str(folder / "run")]) == 0
        yield RunDirectory.at(folder / "run")


def test_each_bad_kernel_is_out_for_its_own_reason_and_the_good_one_stays(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("wrong", "overwriting", "endless", "crashing")
    planted = dict(zip(run.plan_ids(), kinds, strict=False))
    text = ",".join(f"{kind}={plan}" for plan, kind in planted.items())
    monkeypatch.setenv(bad_kernels.VARIABLE, text)
    monkeypatch.setenv(bad_kernels.LIMIT_VARIABLE, "1")
    assert command(["apply", str(run.path)]) == 0
    applied = run.applied()
    assert applied is not None
    reasons = {planted.get(v.plan_id, "good"): (v.verdict, v.reason) for v in applied.plans}
    assert {kind: verdict for kind, (verdict, _) in reasons.items()} == {
        **dict.fromkeys(kinds, "refused"),
        "good": "not_measured",
    }
    assert "ulps, at most" in reasons["wrong"][1]
    assert "an input was overwritten" in reasons["overwriting"][1]
    assert "it has no end within 1 s" in reasons["endless"][1]
    assert "was killed by signal 11 (SIGSEGV)" in reasons["crashing"][1]


def test_where_kernels_are_timed_the_endless_one_costs_the_planted_limit_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There it is met first; compiling it is not within that limit, nor is another plan."""
    for where, name in (
        (kernels, "render"),
        (NumericsProcess, "verify"),
        (TimingProcess, "time"),
    ):
        monkeypatch.setattr(where, name, getattr(where, name))
    monkeypatch.setenv(bad_kernels.VARIABLE, "looping=endless,looping=slow to compile")
    monkeypatch.setenv(bad_kernels.LIMIT_VARIABLE, "0.3")
    bad_kernels.plant_from_environment()
    config = LaunchConfig(num_warps=4)
    with TimingProcess("cpu", "tests.verify.timing_child") as process:
        for plan in ("slow to compile", "good"):
            request = TimingRequest(plan=plan, sources={}, usable=(config,), bytes_moved=8)
            assert process.time(request).config == config
        with pytest.raises(IllegalFusionError, match=r"timed alone, it has no end within 0\.3 s"):
            process.time(msgspec.structs.replace(request, plan="endless"))


@pytest.mark.usefixtures("forked_compilers")
@pytest.mark.parametrize("kind", ["illegal", "looping", "slow", "spilling"])
def test_what_is_planted_on_a_gpu_compiles_and_one_spills(
    kind: str, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels that tests/gpu plants, as far as they can be looked at here."""
    plan = run.plan(run.plan_ids()[0])
    genuine = kernels.render

    def planted(plan: FusionPlan, scheme: Scheme = "registers") -> KernelSource:
        source = genuine(plan, scheme)
        return replace(source, text=bad_kernels.BAD[kind](source.text))

    monkeypatch.setattr(kernels, "render", planted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # With few warps each thread holds most, with many the register file is divided among more.
    configs = [LaunchConfig(block_rows=1, num_warps=warps) for warps in (4, 16)]
    wanted = [request for config in configs for request in requests(plan, config)]
    rows = [row for (row,) in resources_of(wanted, [gpu_by_key("h200")])]
    assert [row.error for row in rows] == [None] * len(rows)
    assert [spills(row) for row in rows] == [kind == "spilling"] * len(rows)


def test_what_is_planted_in_the_model_alone_is_there(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By those who load kernels for it, whatever they imported before; what is verified is not."""
    plan = run.plan(run.plan_ids()[0])
    config = LaunchConfig(num_warps=4)
    monkeypatch.setattr(kernels, "load_module", kernels.load_module)
    bad_kernels.plant("slow", plan.id, in_model_only=True)
    ready = candidates.load_kernel(plan, tmp_path, config)
    assert "range(2000)" in ready.functions[0].fn.src
    assert "range(2000)" not in kernels.write_source(plan, tmp_path, config.scheme)[0].text
    other = candidates.load_kernel(run.plan(run.plan_ids()[1]), tmp_path, config)
    assert "range(2000)" not in other.functions[0].fn.src
