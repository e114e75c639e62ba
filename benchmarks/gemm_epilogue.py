"""Matrix products with what follows them: ours beside the library, Inductor and max-autotune.

    python benchmarks/gemm_epilogue.py [--only GELU] [--again]
    python benchmarks/gemm_epilogue.py --table > benchmarks/gemm_epilogue.md

Rows are named before anything is measured. The program of each is found in its captured graph as
`profile` finds it; all its configurations that do not spill are timed, inputs cold in cache, and
the fastest is measured again beside the others. The share is the time of the library's product
alone over that of our kernel with all that follows: what `analyzers/gemm_cost.py` estimates. Rows
are kept in gemm_epilogue.json as they are done: a second call goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace
from needed import RECORDED, need_gpu
from torch.nn import functional as nnf

from advisor.apply.kernels import write_source
from advisor.hardware.gpus import find_gpu
from advisor.model.base import Record, decode, encode
from advisor.model.configs import candidate_configs
from advisor.model.plan import FusionPlan
from advisor.pipeline.candidates import without_spills
from advisor.store.files import write_atomic
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import timing
from advisor.verify.timing import best_config, configured_calls, flusher, site_inputs
from advisor.verify.toolchain import triton_version
from analyzers.dataflow import dataflow
from analyzers.gemm_programs import gemm_programs
from analyzers.row_plans import plan_of
from collectors.live.capture import capture
from collectors.live.workload import Workload

CUDA = torch.device("cuda")
ROUNDS = 30
Tensors = Sequence[torch.Tensor]
RESULTS = Path(__file__).with_suffix(".json")
HEAD = (
    "| row | library + rest (Inductor) | max-autotune | eager | product alone | ours | share | "
    "launched as |\n|---|---|---|---|---|---|---|---|"
)
VARIANTS = ("inductor", "tuned", "eager", "product", "ours")


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


class Measured(Record, frozen=True, kw_only=True):
    """One row: (median, low, high) ns of every variant, our configuration, or why there is none."""

    name: str
    gpu: str
    torch: str
    triton: str
    day: str
    times: dict[str, tuple[int, int, int]] = {}
    config: str = ""
    why: str = ""

    @property
    def share(self) -> float:
        """The library's product alone over our kernel."""
        return self.times["product"][0] / self.times["ours"][0]


class Results(Record, frozen=True, kw_only=True):
    """All rows, in the order of `ROWS`."""

    rows: tuple[Measured, ...] = ()


def measured(row: Row, folder: Path) -> Measured:
    """A row, on this GPU."""
    bare = Measured(
        name=row.name,
        gpu=torch.cuda.get_device_name(),
        torch=str(torch.__version__),
        triton=triton_version(),
        day=datetime.date.today().isoformat(),
    )
    torch.set_float32_matmul_precision("high" if row.tf32 else "highest")
    inputs = row.inputs()
    plan = plan_for(row, inputs)
    if plan is None:
        return replace(bare, why="no plan")
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
    times = {name: (one.median_ns, one.low_ns, one.high_ns) for name, one in found.items()}
    return replace(bare, times=times, config=config.label())


def line(row: Measured) -> str:
    """A line of the table; times in µs."""
    if row.why:
        return f"| {row.name} | {row.why} |" + " |" * 6
    times = " | ".join(
        f"{mid / 1e3:.1f} ({low / 1e3:.1f}–{high / 1e3:.1f})"
        for mid, low, high in (row.times[name] for name in VARIANTS)
    )
    return f"| {row.name} | {times} | {row.share:.2f} | {row.config} |"


def table(rows: Sequence[Measured]) -> str:
    """The whole document."""
    done = [row for row in rows if row.times]
    lines = [f"# Products with what follows on {', '.join(sorted({row.gpu for row in done}))}", ""]
    lines += [
        "Written by `python benchmarks/gemm_epilogue.py --table`: medians in µs (interval), inputs",
        "cold in cache. The share is the library's product alone over ours with all that follows.",
        "",
        HEAD,
        *(line(row) for row in rows),
        "",
    ]
    names = {row.name for row in rows}
    missing = [row.name for row in ROWS if row.name not in names]
    won = [row.name for row in done if is_fastest(row)]
    shares = sorted(row.share for row in done)
    lines += [
        f"- Ours is the fastest of {len(won)} of {len(done)}: {'; '.join(won) or 'none'}.",
        f"- Share: {statistics.median(shares):.2f} in the median, from {shares[0]:.2f} to "
        f"{shares[-1]:.2f}." if shares else "- Nothing measured.",
        f"- Not measured: {'; '.join(missing) or 'none'}.",
    ]  # fmt: skip
    versions = sorted({f"torch {row.torch}, Triton {row.triton}, {row.day}" for row in done})
    return "\n".join([*lines, "", f"Versions: {'; '.join(versions)}", ""])


def is_fastest(row: Measured) -> bool:
    """Whether our slow end is below the fast end of every way to do the same."""
    others = (row.times[name] for name in ("inductor", "tuned", "eager"))
    return row.times["ours"][2] < min(low for _, low, _ in others)


def read() -> Results:
    """What was measured."""
    if not RESULTS.exists():
        return Results()
    return decode(RESULTS.read_bytes(), Results, str(RESULTS))


def record(rows: Sequence[Row], *, again: bool) -> None:
    """Measure the rows that are missing, or all `again`; written as they are done."""
    kept = {row.name: row for row in read().rows}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for row in rows:
            if row.name in kept and not again:
                continue
            torch.compiler.reset()
            kept[row.name] = measured(row, Path(folder))
            ordered = tuple(kept[one.name] for one in ROWS if one.name in kept)
            write_atomic(RESULTS, encode(Results(rows=ordered)) + b"\n")
            sys.stderr.write(line(kept[row.name]) + "\n")


def main() -> int:
    """Measure the rows whose names hold what was asked for, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of rows")
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
    parser.add_argument("--table", action="store_true", help="print the table of recorded rows")
    options = parser.parse_args()
    if options.table:
        sys.stdout.write(table(read().rows))
        return 0
    need_gpu(RECORDED)
    record([row for row in ROWS if options.only in row.name], again=options.again)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
