"""Matrix products with what follows them: ours beside the library, Inductor and max-autotune.

    python benchmarks/gemm_epilogue.py                      # all rows, to standard output
    python benchmarks/gemm_epilogue.py -o benchmarks/gemm_epilogue.md

Needs a GPU. Rows are named before anything is measured. The program of each is found in its
captured graph as `profile` finds it; all its configurations that do not spill are timed, inputs
cold in cache, and the fastest is measured again beside the others. The share is the time of the
library's product alone over that of our kernel with all that follows: what
`analyzers/gemm_cost.py` estimates.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as nnf

from advisor.apply.kernels import write_source
from advisor.hardware.gpus import find_gpu
from advisor.model.configs import candidate_configs
from advisor.model.plan import FusionPlan
from advisor.pipeline.candidates import without_spills
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import timing
from advisor.verify.timing import best_config, configured_calls, flusher, site_inputs
from analyzers.dataflow import dataflow
from analyzers.gemm_programs import gemm_programs
from analyzers.row_plans import plan_of
from collectors.live.capture import capture
from collectors.live.workload import Workload

CUDA = torch.device("cuda")
ROUNDS = 30
Tensors = Sequence[torch.Tensor]
HEAD = (
    "| row | library + rest (Inductor) | max-autotune | eager | product alone | ours | share | "
    "launched as |\n|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Row:
    """A product of M × K and K × N with what follows it."""

    name: str
    follows: Callable[..., torch.Tensor]
    sizes: tuple[int, int, int]
    dtype: torch.dtype = torch.bfloat16
    tf32: bool = False

    def inputs(self) -> list[torch.Tensor]:
        """x, the weight [N, K], a bias, and a tensor as large as the result."""
        rows, depth, columns = self.sizes
        shapes = ((rows, depth), (columns, depth), (columns,), (rows, columns))
        return [
            torch.randn(shape, device=CUDA).mul(depth**-0.25).to(self.dtype) for shape in shapes
        ]


def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return nnf.gelu(nnf.linear(x, w, b))


def gated(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return nnf.silu(g) * nnf.linear(x, w)


def residual(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return r + nnf.linear(x, w, b)


ROWS = (
    Row("BERT up, GELU, fp16", gelu, (2048, 768, 3072), torch.float16),
    Row("BERT up, GELU, bf16", gelu, (2048, 768, 3072)),
    Row("GPT-2 up, GELU", gelu, (8192, 768, 3072)),
    Row("ViT-L up, GELU", gelu, (12_608, 1024, 4096)),
    Row("short depth, GELU", gelu, (8192, 256, 4096)),
    Row("8192 × 4096 × 4096, GELU", gelu, (8192, 4096, 4096)),
    Row("512 × 4096 × 4096, GELU", gelu, (512, 4096, 4096)),
    Row("Llama 1B, gated", gated, (4096, 2048, 5632)),
    Row("Llama 7B, gated", gated, (4096, 4096, 11_008)),
    Row("Llama 7B, decode, gated", gated, (16, 4096, 11_008)),
    Row("down, residual", residual, (4096, 5632, 2048)),
    Row("short depth, residual", residual, (8192, 512, 2048)),
    Row("float32 in TF32, GELU", gelu, (4096, 1024, 4096), torch.float32, tf32=True),
    Row("float32, GELU", gelu, (4096, 1024, 4096), torch.float32),
)


def plan_for(row: Row, inputs: Tensors) -> FusionPlan | None:
    """The plan that is found in the captured graph."""
    work = Workload("benchmark", "inference", CUDA, row.follows, inputs=list(inputs))
    (item,) = capture(work, generate_code=False)[0].graphs
    graph = item.lowered.graph
    found = [f.program for f in gemm_programs(dataflow(graph), frozenset()) if f.program]
    return plan_of(found, graph.phase, row.name) if found else None


def measured(row: Row, folder: Path) -> str:
    """A line of the table."""
    torch.set_float32_matmul_precision("high" if row.tf32 else "highest")
    inputs = row.inputs()
    plan = plan_for(row, inputs)
    if plan is None:
        return f"| {row.name} | no plan |"
    _, path = write_source(plan, folder, "gemm", "kernel")
    gpu = find_gpu(torch.cuda.get_device_name())
    configs = candidate_configs(plan, plan.sites[0])
    usable = configs if gpu is None else without_spills(plan, gpu, configs)
    config = best_config(plan, {"gemm": path}, gpu_recorder, CUDA, usable)
    own = site_inputs(plan, plan.sites[0], CUDA)
    ours = configured_calls(plan, {"gemm": path}, CUDA, (config,), own)[config.label()]
    plain = torch.compile(row.follows, dynamic=False)
    tuned = torch.compile(row.follows, dynamic=False, mode="max-autotune-no-cudagraphs")
    calls: dict[str, Callable[[], object]] = {
        "inductor": lambda: plain(*inputs),
        "tuned": lambda: tuned(*inputs),
        "eager": lambda: row.follows(*inputs),
        "product": lambda: torch.mm(inputs[0], inputs[1].t()),
        "ours": ours,
    }
    for call in calls.values():
        call()
    found = {n: timing(v) for n, v in gpu_recorder(calls, ROUNDS, flusher(CUDA)).items()}
    times = " | ".join(
        f"{one.median_ns / 1e3:.1f} ({one.low_ns / 1e3:.1f}–{one.high_ns / 1e3:.1f})"
        for one in found.values()
    )
    share = found["product"].median_ns / found["ours"].median_ns
    return f"| {row.name} | {times} | {share:.2f} | {config.label()} |"


def table(rows: Sequence[Row]) -> str:
    """The whole document; times are medians in µs, with their intervals."""
    lines = [f"# Products with what follows on {torch.cuda.get_device_name()}", ""]
    lines += ["Medians in µs (interval). `python benchmarks/gemm_epilogue.py`", "", HEAD]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for row in rows:
            torch.compiler.reset()
            lines.append(measured(row, Path(folder)))
            sys.stderr.write(lines[-1] + "\n")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the rows whose names hold what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of rows")
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    text = table([row for row in ROWS if arguments.only in row.name])
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
