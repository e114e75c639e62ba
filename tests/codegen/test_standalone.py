"""Kernels as files of their own: complete, deterministic, safe, and right when they are run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.codegen.standalone import Standalone, render_standalone
from advisor.errors import IllegalFusionError
from advisor.model.base import Location, load
from advisor.model.configs import default_config
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from tests.builders.plan import rms_norm
from tests.codegen.plans import layer_norm, log_softmax, loss_gradient, rows_only, strided

pytest.importorskip("triton", reason="running kernels needs triton")

RUNS = Path(__file__).parents[2] / "sample_traces" / "runs"
RECORDED = {path.stem: path for path in sorted(RUNS.glob("llama_*/plans/*.json"))}
PLANS = {
    "norm": rms_norm(columns=200),
    "layer norm": layer_norm(columns=130),
    "labels": loss_gradient(columns=70),
    "rows": rows_only("float16", columns=50),
    "strided": strided("float32", columns=33),
}


def rendered(plan: FusionPlan, config: LaunchConfig | None = None, **extra: bool) -> str:
    launch = config or default_config(plan, plan.sites[0])
    return render_standalone(Standalone(plan, launch, "not timed", **extra))


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "kernel.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, str(path)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize("name", PLANS)
def test_a_file_checks_itself_without_this_tool(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    text = rendered(plan)
    assert "import advisor" not in text
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("passed") for line in lines) == 2 * len(plan.outputs)
    assert lines[-1] == "not timed: there is no GPU"


@pytest.mark.parametrize(
    "config",
    [
        LaunchConfig(scheme="looped", block_columns=256, num_warps=4, num_stages=3),
        LaunchConfig(scheme="online", block_columns=256, num_warps=4, block_rows=2),
        LaunchConfig(scheme="split", block_columns=256, num_warps=4, splits=4),
    ],
    ids=lambda config: config.scheme,
)
def test_every_scheme_checks_itself(config: LaunchConfig, tmp_path: Path) -> None:
    done = run(rendered(log_softmax(columns=900), config, custom_op=True), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_kernel_fails_its_own_check(tmp_path: Path) -> None:
    kernel, launch, rest = rendered(rms_norm(columns=64)).partition("def fused(")
    done = run(kernel.replace("1e-06", "0.1") + launch + rest, tmp_path)
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_without_a_gpu_a_file_says_how_to_check_it(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(rendered(rms_norm()))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "TRITON_INTERPRET=1" in done.stderr


@pytest.mark.parametrize("path", RECORDED.values(), ids=RECORDED)
@pytest.mark.parametrize("custom_op", [False, True])
def test_recorded_plans_give_files_a_person_reads(path: Path, custom_op: bool) -> None:
    plan = load(path, FusionPlan)
    text = rendered(plan, custom_op=custom_op)
    assert text == rendered(load(path, FusionPlan), custom_op=custom_op)
    assert max(map(len, text.splitlines())) <= 100
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert plan.title in doc
    assert f"plan {plan.id}" in doc
    location = plan.sites[0].location
    assert location.file is None or f"{location.file}:{location.line}" in doc


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=30, deadline=None)
def test_a_place_cannot_leave_the_docstring(module: str, file: str) -> None:
    plan = rms_norm()
    place = Location(module=module, file=file, line=3)
    site = msgspec.structs.replace(plan.sites[0], location=place)
    text = rendered(msgspec.structs.replace(plan, sites=(site,)))
    body, plain = ast.parse(text).body, ast.parse(rendered(plan)).body
    assert [ast.dump(node) for node in body[1:]] == [ast.dump(node) for node in plain[1:]]


def test_a_plan_without_a_place_has_no_file() -> None:
    plan = msgspec.structs.replace(rms_norm(), sites=())
    with pytest.raises(IllegalFusionError, match="no site"):
        render_standalone(Standalone(plan, LaunchConfig(), "not timed"))
