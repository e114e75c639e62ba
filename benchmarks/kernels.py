"""Generated kernels beside eager PyTorch, Inductor and a copy of the same bytes, on this GPU.

    python benchmarks/kernels.py [--only softmax,layernorm] [--seconds 80] [--again]
    python benchmarks/kernels.py --table > benchmarks/kernels.md

Every row is one process's work: the pattern is captured, its row program found and generated in
every scheme, configurations that spill are dropped, the rest timed, and the fastest recorded beside
eager, Inductor and a copy, in turn, caches cold. Rows are kept in kernels.json as they are done: a
second call goes on with those that are missing. No row is begun after `--seconds`.

Rows named `plan:ID` are stored plans of a recorded run, where eager is their ops one by one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import kernel_groups
import kernel_patterns
import torch

from advisor.errors import AdvisorError
from advisor.hardware.gpus import find_gpu
from advisor.model.base import Record, decode, encode, load
from advisor.model.launch import LaunchConfig
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from advisor.pipeline.candidates import without_spills
from advisor.pipeline.sizing import scheme_source
from advisor.store.files import write_atomic
from advisor.verify.interpret import evaluate
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import timing
from advisor.verify.timing import (
    PEAK_COPY_BYTES,
    SEARCH_ROUNDS,
    TIMING_ROUNDS,
    configured_calls,
    flusher,
    site_inputs,
)
from analyzers.row_plans import canonical_program, cluster, plan_of
from analyzers.row_programs import find_row_programs
from collectors.live.capture import capture
from collectors.live.workload import Workload

HERE = Path(__file__).parent
RESULTS = HERE / "kernels.json"
STORED = HERE.parent / "sample_traces" / "runs" / "llama_train_compile" / "plans"
# A kernel that is wrong by more than the rounding of bfloat16 results has no time to report.
TOLERANCE = 0.02


class Row(Record, frozen=True, kw_only=True):
    """One pattern at one shape; `why` says why nothing of ours was timed.

    `covers` is (ops of the captured graph in our kernel, all of them); `configs` the median of
    every configuration tried; `others` of other ways to do it (PyTorch's own fused kernels);
    `intervals` the spread of what was timed beside it.
    """

    name: str
    shape: tuple[int, ...]
    gpu: str
    bytes: int | None = None
    covers: tuple[int, int] | None = None
    config: str | None = None
    ours_ns: int | None = None
    eager_ns: int | None = None
    inductor_ns: int | None = None
    copy_ns: int | None = None
    peak_ns: int | None = None
    error: float | None = None
    configs: dict[str, int] = {}
    others: dict[str, int] = {}
    intervals: dict[str, tuple[int, int]] = {}
    why: str = ""

    @property
    def key(self) -> str:
        """Identifies the row in the file of results."""
        return f"{self.name} {'x'.join(map(str, self.shape))}"


FIELDS = frozenset(Row.__struct_fields__)


class Results(Record, frozen=True, kw_only=True):
    """All rows recorded so far, and what recorded them."""

    versions: dict[str, str] = {}
    rows: tuple[Row, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Record rows until the time is over, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--table", action="store_true", help="print the table of recorded rows")
    parser.add_argument("--only", default="", help="names of patterns, comma separated")
    parser.add_argument("--seconds", type=float, default=80, help="begin no row after this")
    parser.add_argument("--again", action="store_true", help="record rows that are there anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    options = parser.parse_args(arguments)
    if options.table:
        sys.stdout.write(table(read(options.results)))
        return 0
    if not torch.cuda.is_available():
        sys.stderr.write("a GPU is needed; --table prints what was recorded\n")
        return 2
    record_rows(options)
    return 0


class _Plain(argparse.RawDescriptionHelpFormatter):
    pass


def read(path: Path) -> Results:
    """The recorded rows; none yet if there is no file."""
    return decode(path.read_bytes(), Results, str(path)) if path.exists() else Results()


# --- recording ------------------------------------------------------------------------------------


def record_rows(options: argparse.Namespace) -> None:
    """Every missing row of the chosen patterns, written as it is done."""
    started = time.monotonic()
    results = read(options.results)
    rows = {} if options.again else {row.key: row for row in results.rows}
    kept = {row.key: row for row in results.rows}
    wanted = set(filter(None, options.only.split(",")))
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name, shape, make in tasks():
        bare = Row(name=name, shape=shape, gpu=torch.cuda.get_device_name())
        if (wanted and name not in wanted) or bare.key in rows:
            continue
        if time.monotonic() - started > options.seconds:
            sys.stderr.write("time is over: call again for the rows that are missing\n")
            return
        begun = time.monotonic()
        row = kept[bare.key] = measured(bare, make)
        torch.cuda.empty_cache()
        write_atomic(
            options.results, encode(Results(versions=found, rows=tuple(kept.values()))) + b"\n"
        )
        sys.stderr.write(f"{time.monotonic() - begun:5.1f} s  {line(row)}\n")


Task = tuple[Callable[..., Any], list[torch.Tensor], FusionPlan | None, tuple[int, int] | None]


def tasks() -> Iterator[tuple[str, tuple[int, ...], Callable[[], Any]]]:
    """Name, shape and a maker of every row: stored plans first."""
    for path in sorted(STORED.glob("*.json")):
        plan = load(path, FusionPlan)
        site = plan.sites[0]
        yield f"plan:{plan.id[:8]}", (*site.row_sizes, site.columns), partial(stored, plan)
    for name, pattern in kernel_patterns.PATTERNS.items():
        for shape in pattern.shapes:
            yield name, shape, partial(captured, pattern, shape, torch.device("cuda"))
    yield from kernel_groups.rows(torch.device("cuda"))


def stored(plan: FusionPlan) -> Task:
    """A plan's own ops, on inputs like those of its first site."""
    inputs = site_inputs(plan, plan.sites[0], torch.device("cuda"))
    return (lambda *given: evaluate(plan, given, "native")), inputs, plan, None


def captured(
    pattern: kernel_patterns.Pattern, shape: tuple[int, ...], device: torch.device
) -> Task:
    """The pattern's largest row program, as the product finds it in the compiled graph."""
    inputs = pattern.inputs(shape, device)
    work = Workload("benchmark", "inference", device, pattern.function, inputs=inputs)
    found, _ = capture(work, generate_code=False)
    best: tuple[int, FusionPlan, int] | None = None
    for item in found.graphs:
        graph = item.lowered.graph
        programs = find_row_programs(graph)
        groups = [canonical_program(programs.flow, group) for group in programs.whole]
        ops = sum(spec_of(node.op).kind in ("pointwise", "reduction") for node in graph.nodes)
        for group in cluster((graph.phase, program) for program in groups):
            plan = plan_of(group, graph.phase, "benchmark")
            if best is None or len(plan.ops) > best[0]:
                best = len(plan.ops), plan, ops
    covers = (best[0], best[2]) if best else None
    return pattern.function, inputs, best[1] if best else None, covers


def measured(bare: Row, make: Callable[[], Any]) -> Row:
    """One row; what cannot be done is said in it."""
    torch._dynamo.reset()  # one function is compiled for many shapes
    try:
        made = make()
    except AdvisorError as error:
        return replaced(bare, why=error.line())
    if isinstance(made, kernel_groups.Calls):
        return compared(bare, made)
    function, inputs, plan, covers = made
    if plan is None:
        return replaced(bare, why="no row program: a family that is not generated yet")
    gpu = find_gpu(torch.cuda.get_device_name())
    try:
        configs = without_spills(plan, gpu) if gpu is not None else ()
        if not configs:
            return replaced(bare, why="every configuration spills, or the GPU is not in the table")
        return timed(bare, function, inputs, plan, covers, configs)
    except AdvisorError as error:
        return replaced(bare, why=error.line())


def timed(
    bare: Row,
    function: Callable[..., Any],
    inputs: list[torch.Tensor],
    plan: FusionPlan,
    covers: tuple[int, int] | None,
    configs: Sequence[LaunchConfig],
) -> Row:
    """The search over configurations, then the fastest beside the others."""
    device, site = torch.device("cuda"), plan.sites[0]
    sources = {scheme: scheme_source(plan, scheme) for scheme in {c.scheme for c in configs}}
    given = site_inputs(plan, site, device)
    calls = configured_calls(plan, sources, device, configs, given)
    searched = {
        label: timing(times).median_ns
        for label, times in gpu_recorder(calls, SEARCH_ROUNDS, flusher(device)).items()
    }
    best = min(searched, key=searched.__getitem__)
    moved = site_bytes(plan, site)
    source = torch.empty(moved // 2, dtype=torch.uint8, device=device).random_()
    large = torch.empty(PEAK_COPY_BYTES // 2, dtype=torch.uint8, device=device).random_()
    target, large_target = torch.empty_like(source), torch.empty_like(large)
    compiled = torch.compile(function, dynamic=False)
    variants: dict[str, Callable[[], object]] = {
        "ours": calls[best],
        "eager": lambda: function(*inputs),
        "inductor": lambda: compiled(*inputs),
        "copy": lambda: target.copy_(source),
        "peak": lambda: large_target.copy_(large),
    }
    with torch.no_grad():
        for call in variants.values():
            call()
        times = {
            name: timing(values)
            for name, values in gpu_recorder(variants, TIMING_ROUNDS, flusher(device)).items()
        }
        error = worst_error(plan, given, calls[best]())
    return replaced(
        bare,
        bytes=moved,
        covers=covers,
        config=best,
        **{f"{name}_ns": found.median_ns for name, found in times.items()},
        error=error,
        configs=searched,
        intervals={name: (found.low_ns, found.high_ns) for name, found in times.items()},
        why="" if error <= TOLERANCE else "the result is wrong",
    )


def compared(bare: Row, calls: kernel_groups.Calls) -> Row:
    """Ready ways to do the same, in turn, beside a copy of the bytes that must be moved."""
    source = torch.empty(calls.bytes // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    variants = {**calls.variants, "copy": lambda: target.copy_(source)}
    for call in variants.values():
        call()
    measured = gpu_recorder(variants, TIMING_ROUNDS, flusher(torch.device("cuda")))
    times = {name: timing(values) for name, values in measured.items()}
    columns = {f"{name}_ns": t.median_ns for name, t in times.items() if f"{name}_ns" in FIELDS}
    return replaced(
        bare,
        bytes=calls.bytes,
        config="one launch",
        **columns,
        others={n: t.median_ns for n, t in times.items() if f"{n}_ns" not in FIELDS},
        intervals={name: (found.low_ns, found.high_ns) for name, found in times.items()},
    )


def worst_error(plan: FusionPlan, given: list[torch.Tensor], got: Any) -> float:
    """The largest error of any output relative to its largest value; non-finite ones must agree.

    In eight bits it counts as the same number of last places of a bfloat16.
    """
    worst = 0.0
    for mine, want in zip(got, evaluate(plan, given, "native"), strict=True):
        truth = want.expand(mine.shape).float()
        apart = (mine.float() - truth).abs()[torch.isfinite(truth)]
        scale = truth[torch.isfinite(truth)].abs().max().clamp(min=1e-30)
        if mine.dtype.is_floating_point and mine.dtype.itemsize == 1:
            scale = scale * (torch.finfo(mine.dtype).eps / torch.finfo(torch.bfloat16).eps)
        worst = max(worst, float(apart.max() / scale)) if apart.numel() else worst
    return worst


def replaced(row: Row, **changes: Any) -> Row:
    """The row with other fields."""
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return Row(**(fields | changes))


# --- table ----------------------------------------------------------------------------------------


def line(row: Row) -> str:
    """One row as text."""
    if row.ours_ns is None or row.copy_ns is None:
        return f"{row.key}: {row.why}"
    by_scheme: dict[str, tuple[int, str]] = {}
    for label, taken in row.configs.items():
        scheme = label.split()[0] if not label.startswith("rows=") else "registers"
        by_scheme[scheme] = min(by_scheme.get(scheme, (taken, label)), (taken, label))
    found = ", ".join(f"{t / 1000:.1f} us {label}" for t, label in sorted(by_scheme.values()))
    return f"{row.key}: {row.copy_ns / row.ours_ns:.2f} of a copy; {found}"


def table(results: Results) -> str:
    """Markdown: times in microseconds, and the share of the time of a copy of the same bytes."""
    lines = [
        "# Generated kernels",
        "",
        "Written by `python benchmarks/kernels.py --table`; times are medians on the GPU, caches",
        "cold, in µs. `copy` moves the bytes that the kernel must move: 1.00 is its speed. Eager",
        "and Inductor run the whole pattern; `ops` says how much of it our kernel does. Rows with",
        "a dropout are bound by arithmetic, by count: ten rounds of Philox for every element; fp8",
        "with one scale a tensor reads it twice, of which `MB` and `copy` count one.",
        "",
        "| pattern | shape | MB | ops | copy | ours | of copy | Inductor | eager | configuration |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results.rows:
        shape = "×".join(map(str, row.shape))
        if row.ours_ns is None or row.copy_ns is None or row.bytes is None or row.why:
            lines.append(f"| {row.name} | {shape} | | | | | | | | {row.why} |")
            continue
        times = [row.inductor_ns, row.eager_ns]
        others = [f"{t / 1000:.1f}" if t is not None else "" for t in times]
        covers = "all" if row.covers is None else f"{row.covers[0]}/{row.covers[1]}"
        cells = [
            row.name, shape, f"{row.bytes / 1e6:.0f}", covers, f"{row.copy_ns / 1000:.1f}",
            f"{row.ours_ns / 1000:.1f}", f"{row.copy_ns / row.ours_ns:.2f}", *others,
            "; ".join((row.config or "", *(f"{n} {t / 1000:.1f}" for n, t in row.others.items()))),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    versions = json.dumps(results.versions)
    return "\n".join([*lines, "", f"Versions: {versions}", ""])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
