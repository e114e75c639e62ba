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
from advisor.codegen.standalone_group import render_file
from advisor.errors import IllegalFusionError
from advisor.model.base import Location, load
from advisor.model.configs import default_config
from advisor.model.launch import LaunchConfig
from advisor.model.optable import FLOAT_DTYPES
from advisor.model.plan import FusionPlan
from tests.builders import members
from tests.builders.forked import Forked
from tests.builders.plan import PlanBuilder, rms_norm
from tests.builders.scan_plans import selective
from tests.codegen.plans import (
    batch_norm,
    group_norm,
    layer_norm,
    log_softmax,
    loss_gradient,
    norm_gradient,
    rows_only,
    strided,
)

pytest.importorskip("triton", reason="running kernels needs triton")

RUNS = Path(__file__).parents[2] / "sample_traces" / "runs"
RECORDED = {path.stem: path for path in sorted(RUNS.glob("llama_*/plans/*.json"))}


def scaled() -> FusionPlan:
    """No reduction: blocks of rows and columns."""
    make = PlanBuilder()
    x, factor = make.input(), make.input("float32", (False, True))
    return make.plan(make.op("mul", x, factor), sizes=(9,), columns=33)


PLANS = {
    "scaled": scaled(),
    "norm": rms_norm(columns=200),
    "layer norm": layer_norm(columns=130),
    "labels": loss_gradient(columns=70),
    "rows": rows_only("float16", columns=50),
    "strided": strided("float32", columns=33),
}


def rendered(plan: FusionPlan, config: LaunchConfig | None = None, **extra: bool) -> str:
    launch = config or default_config(plan, plan.sites[0])
    return render_standalone(Standalone(plan, launch, "not timed", **extra))


def quickly(interpreting: Forked, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `run` does, but for imports."""
    path = folder / "kernel.py"
    path.write_text(text)
    return interpreting.run(str(path), cwd=folder)


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
def test_a_file_checks_itself_and_its_gradients_without_this_tool(
    name: str, tmp_path: Path, interpreting: Forked
) -> None:
    plan = PLANS[name]
    # The interpreter takes as long for masked rows as for real ones: two rows a block.
    config = msgspec.structs.replace(default_config(plan, plan.sites[0]), block_rows=2)
    text = rendered(plan, config, custom_op=True)
    assert "import advisor" not in text
    done = quickly(interpreting, text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    values = [line for line in lines if line.startswith("passed") and "gradient" not in line]
    assert len(values) == 2 * len(plan.outputs)
    floats = sum(item.dtype in FLOAT_DTYPES for item in plan.inputs)
    assert sum("gradient of" in line for line in lines) == 2 * floats
    assert lines[-1] == "not timed: there is no GPU"


@pytest.mark.parametrize(
    "plan",
    [
        group_norm("float32", columns=(5, 12)),
        group_norm(columns=(12, 5), channels_last=True),
        batch_norm(columns=(3, 25)),
    ],
    ids=["group norm", "channels last", "batch norm"],
)
def test_rows_of_several_axes_check_themselves(
    plan: FusionPlan, tmp_path: Path, interpreting: Forked
) -> None:
    done = quickly(interpreting, rendered(plan, custom_op=True), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("passed")]
    assert len(lines) == 2 * len(plan.outputs)
    assert "no gradient kernel" in (tmp_path / "kernel.py").read_text()


@pytest.mark.parametrize(
    "config",
    [
        LaunchConfig(scheme="looped", block_columns=256, num_warps=4, num_stages=3),
        LaunchConfig(scheme="online", block_columns=256, num_warps=4, block_rows=2),
        LaunchConfig(scheme="split", block_columns=256, num_warps=4, splits=4),
    ],
    ids=lambda config: config.scheme,
)
def test_every_scheme_checks_itself(
    config: LaunchConfig, tmp_path: Path, interpreting: Forked
) -> None:
    plan = log_softmax(columns=900)
    done = quickly(interpreting, rendered(plan, config, custom_op=True), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


OLDER = """
import runpy

import tests.builders.older_interpreter

runpy.run_path({!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("plan", "config"),
    [
        (log_softmax(columns=300), LaunchConfig(scheme="looped", block_columns=128)),
        (norm_gradient(columns=20), None),
        (selective((2, 9, 4)), None),
    ],
    ids=["looped", "over rows", "scan"],
)
def test_loops_are_interpreted_by_older_tritons_too(
    plan: FusionPlan, config: LaunchConfig | None, tmp_path: Path, interpreting: Forked
) -> None:
    """Triton 3.6 makes indices by `int`, which NumPy 2.4 refuses of its scalars."""
    text = rendered(plan, config)
    (tmp_path / "old.py").write_text(OLDER.format(str(tmp_path / "kernel.py")))
    for source, status in ((text, 0), (text.replace("    mend_loops()\n", "    pass\n"), 1)):
        (tmp_path / "kernel.py").write_text(source)
        done = interpreting.run(str(tmp_path / "old.py"), cwd=tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
    assert "0-dimensional arrays" in done.stderr


def test_a_kernel_without_loops_says_nothing_of_them() -> None:
    assert "mend_loops" not in rendered(rms_norm())
    assert "mend_loops" in rendered(rms_norm(), custom_op=True)  # its gradient's


SEEN = """
import sys, types
import torch
from torch._dynamo.backends.common import aot_autograd

kernel = types.ModuleType("kernel")
kernel.__file__ = sys.argv[1]
sys.modules["kernel"] = kernel
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), vars(kernel))


class Model(torch.nn.Module):
    def forward(self, *given):
        return kernel.fusion(*given)


def keep(graph, _):
    print("compiled", [str(node.target) for node in graph.graph.nodes])
    return graph.forward


inputs = kernel.make_inputs((4, 64), "cpu")
try:
    compiled = torch.compile(Model(), backend=aot_autograd(fw_compiler=keep), fullgraph=True)
    compiled(*inputs)
except RuntimeError as error:  # there is no GPU to run it on
    print("driver", "drivers" in str(error))
print("exported", torch.export.export(Model(), inputs).graph)
with torch.autocast("cpu", torch.bfloat16):
    print("cast", torch.export.export(Model(), tuple(x.float() for x in inputs)).graph)
"""


def test_compile_export_and_autocast_see_the_operator(tmp_path: Path) -> None:
    """Graphs are captured for real, and cannot run here."""
    path = tmp_path / "kernel.py"
    path.write_text(rendered(rms_norm(), custom_op=True))
    (tmp_path / "seen.py").write_text(SEEN)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "seen.py", str(path)],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled, exported = done.stdout.partition("exported")[::2]
    assert "triton_kernel_wrapper_functional" in compiled
    exported, cast = exported.partition("cast graph")[::2]
    name = f"torch.ops.fusion_advisor.row_program_{rms_norm().id[:8]}"
    assert name in exported
    assert name in cast
    assert cast.count("torch.ops.aten.to.dtype](") == 2


def test_an_operator_without_a_gradient_says_so_in_backward(
    tmp_path: Path, interpreting: Forked
) -> None:
    make = PlanBuilder()
    x = make.input()
    for _ in range(300):
        x = make.op("sin", x)
    text = rendered(make.plan(x), custom_op=True)
    text = text.replace(
        "sys.exit(main())",
        """x = torch.randn(2, 8, requires_grad=True)
    try:
        fusion(x).sum().backward()
    except NotImplementedError as error:
        print(error)""",
    )
    done = quickly(interpreting, text, tmp_path)
    assert "no gradient kernel (its gradient is no plan" in done.stdout, done.stderr
    assert "call `reference`" in done.stdout


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


def test_a_group_of_programs_checks_every_member(tmp_path: Path, interpreting: Forked) -> None:
    programs = (members.rms_norm(4, 40), members.softmax(3, 33), members.rms_norm(2, 40))
    plan = members.group(*programs)
    export = Standalone(plan, default_config(plan, plan.sites[0]), "not timed")
    text = render_file(export)
    assert max(map(len, text.splitlines())) <= 100
    done = quickly(interpreting, text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed  3 members") == 3
    with pytest.raises(IllegalFusionError, match="no operator with a gradient"):
        render_file(Standalone(plan, export.config, "not timed", custom_op=True))


def test_what_the_casts_of_an_equation_cost_is_no_fault_of_its_kernel(
    tmp_path: Path, interpreting: Forked
) -> None:
    """e^-x of a large x that was rounded: x times as far off as x was."""
    make = PlanBuilder()
    x = make.op("add", make.op("abs", make.input()), 50.0)
    rounded = make.cast(make.cast(x, "bfloat16"), "float32")
    plan = make.plan(make.op("exp", make.op("neg", rounded)), title="far", columns=50)
    done = quickly(interpreting, rendered(plan), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0.00 from the equation with its casts" in done.stdout
    before, kernel = rendered(plan).split("def row_program", 1)
    wrong = kernel.replace("v1 = v0 + 50.0", "v1 = v0 + 49.5", 1)
    done = quickly(interpreting, f"{before}def row_program{wrong}", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
