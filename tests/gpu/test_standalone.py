"""Generated files on a GPU: they check and time themselves, and their operators compile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from advisor.codegen.standalone import Standalone, render_standalone
from advisor.hardware.gpus import find_gpu
from advisor.model.base import load
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.pipeline.exports import chosen_launch
from advisor.verify.kernel_module import load_module
from tests.codegen.plans import layer_norm, log_softmax, strided

if not torch.cuda.is_available():
    pytest.skip("kernels run on a GPU only", allow_module_level=True)

RUNS = Path(__file__).parents[2] / "sample_traces" / "runs"
RECORDED = {path.stem: path for path in sorted(RUNS.glob("llama_*/plans/*.json"))}


def written(plan: FusionPlan, folder: Path, config: LaunchConfig | None = None) -> Path:
    chosen = chosen_launch(plan, find_gpu(torch.cuda.get_device_name()), None)
    export = Standalone(plan, config or chosen.config, chosen.why, custom_op=True)
    path = folder / f"{plan.id}.py"
    path.write_text(render_standalone(export))
    return path


@pytest.mark.parametrize("name", RECORDED)
def test_a_file_checks_and_times_itself(name: str, tmp_path: Path) -> None:
    path = written(load(RECORDED[name], FusionPlan), tmp_path)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the bandwidth of a copy of these bytes" in done.stdout
    sys.stdout.write(f"{name}\n{done.stdout}")


@pytest.mark.parametrize(
    "config",
    [
        LaunchConfig(scheme="looped", block_columns=1024, num_warps=4, num_stages=3),
        LaunchConfig(scheme="online", block_columns=1024, num_warps=4, block_rows=2),
        LaunchConfig(scheme="split", block_columns=1024, num_warps=4, splits=4),
    ],
    ids=lambda config: config.scheme,
)
def test_every_scheme_checks_itself(config: LaunchConfig, tmp_path: Path) -> None:
    path = written(log_softmax(columns=9000), tmp_path, config)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["layer norm", "strided"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    plans = {"layer norm": layer_norm(columns=1024), "strided": strided(columns=512)}
    return load_module(written(plans[request.param], tmp_path_factory.mktemp("kernels")))


def leaves(module: ModuleType) -> list[torch.Tensor]:
    sizes = (*(8 for _ in module.SHAPE[:-1]), module.SHAPE[-1])
    return [x.detach().requires_grad_() for x in module.make_inputs(sizes, "cuda")]


def total(out: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    parts = (out,) if isinstance(out, torch.Tensor) else out
    return sum(((p.float() * 0.5).sum() for p in parts), torch.zeros((), device="cuda"))


def gradients(module: ModuleType, function: object) -> list[torch.Tensor]:
    given = leaves(module)
    total(function(*given)).backward()  # type: ignore[operator]
    return [x.grad for x in given if x.grad is not None]


def test_compiled_as_eager_forward_and_backward(module: ModuleType) -> None:
    compiled = torch.compile(module.fusion, fullgraph=True)
    for mine, own in zip(
        gradients(module, compiled), gradients(module, module.fusion), strict=True
    ):
        torch.testing.assert_close(mine, own)
    given = [x.detach() for x in leaves(module)]
    torch.testing.assert_close(compiled(*given), module.fusion(*given))


def test_captured_in_a_cuda_graph(module: ModuleType) -> None:
    given = [x.detach() for x in leaves(module)]
    expected = module.fusion(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module.fusion(*given)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected)


def test_compiled_with_cuda_graphs(module: ModuleType) -> None:
    compiled = torch.compile(module.fusion, mode="reduce-overhead", fullgraph=True)
    given = [x.detach() for x in leaves(module)]
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        out = compiled(*given)
    torch.testing.assert_close(out, module.fusion(*given))


def test_under_autocast(module: ModuleType) -> None:
    given = [x.detach() for x in leaves(module)]
    with torch.autocast("cuda", torch.bfloat16):
        found = module.fusion(*(x.float() if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(found, module.fusion(*given))


def test_exported(module: ModuleType) -> None:
    class Model(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> object:
            return module.fusion(*given)

    given = tuple(x.detach() for x in leaves(module))
    program = torch.export.export(Model(), given)
    torch.testing.assert_close(program.module()(*given), module.fusion(*given))
