"""Generated kernels beside eager PyTorch, Inductor and a copy of the same bytes, on this GPU.

    python benchmarks/kernels.py [--only softmax,layernorm] [--seconds 80] [--again]
    python benchmarks/kernels.py --shard 1/4 --results FILE   (every fourth row, beside others)
    python benchmarks/kernels.py --merge FILE [FILE ...]
    python benchmarks/kernels.py --table > benchmarks/kernels.md

Every row is one process's work: the pattern is captured, its row program found and generated in
every scheme, configurations that spill are dropped, the rest timed, and the fastest recorded beside
eager, Inductor and a copy, in turn, caches cold. Rows are kept in kernels.json as they are done: a
second call goes on with those that are missing. No row is begun after `--seconds`.

Rows named `plan:ID` are stored plans of a recorded run, where eager is their ops one by one.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import kernel_groups
import kernel_liger
import kernel_patterns
import kernel_random
import kernel_tasks
import torch
from kernel_rows import FIELDS, TUNED, Results, Row, read
from kernel_table import line, table
from msgspec.structs import replace
from needed import RECORDED, need_gpu

from advisor.errors import AdvisorError
from advisor.folders import triton_cache
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import find_gpu
from advisor.model.base import encode, load
from advisor.model.configs import bytes_read_again, schemes_of
from advisor.model.launch import LaunchConfig
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
    TIMING_ROUNDS,
    configured_calls,
    fastest,
    flusher,
    host_time_ns,
    site_inputs,
)
from advisor.verify.toolchain import triton_version
from analyzers.program_cost import program_time

HERE = Path(__file__).parent
RESULTS = HERE / "kernels.json"
STORED = HERE.parent / "sample_traces" / "runs" / "llama_train_compile" / "plans"
CUDA = torch.device("cuda")
# Of each pattern the first shapes go backward too.
BACKWARD_SHAPES = 2
SCANS = ((8, 64, 4096), (64, 32, 2048))
# A kernel that is wrong by more than the rounding of bfloat16 results has no time to report.
TOLERANCE = 0.02


def main(arguments: Sequence[str]) -> int:
    """Record rows until the time is over, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--table", action="store_true", help="print the table of recorded rows")
    parser.add_argument("--only", default="", help="names of patterns, comma separated")
    parser.add_argument("--seconds", type=float, default=80, help="begin no row after this")
    parser.add_argument("--again", action="store_true", help="record rows that are there anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--shard", type=shard, default=(0, 1), metavar="I/N", help="of N, the Ith")
    parser.add_argument("--merge", type=Path, nargs="+", help="files of results to take rows from")
    options = parser.parse_args(arguments)
    if options.merge:
        merge(options.merge, options.results)
    if options.table:
        sys.stdout.write(table(read(options.results), wanted_keys()))
    if options.table or options.merge:
        return 0
    need_gpu(RECORDED)
    if (kept := triton_cache()) is not None:
        os.environ["TRITON_CACHE_DIR"] = str(kept)  # what was sized is compiled already
    record_rows(options)
    return 0


class _Plain(argparse.RawDescriptionHelpFormatter):
    pass


def shard(text: str) -> tuple[int, int]:
    """(number from 0, count) of `I/N`."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, as 1/4")
    return int(number) - 1, int(count)


def merge(parts: Sequence[Path], path: Path) -> None:
    """Put the rows of other files into one, in the order of the tasks; theirs replace its own."""
    rows = {row.key: row for part in (path, *parts) for row in read(part).rows}
    versions = read(parts[0]).versions
    ordered = tuple(rows[key] for key in wanted_keys() if key in rows)
    write_atomic(path, encode(Results(versions=versions, rows=ordered)) + b"\n")


# --- recording ------------------------------------------------------------------------------------


def record_rows(options: argparse.Namespace) -> None:
    """Every missing row of the chosen patterns, written as it is done."""
    started = time.monotonic()
    results = read(options.results)
    rows = {} if options.again else {row.key: row for row in results.rows}
    kept = {row.key: row for row in results.rows}
    wanted = set(filter(None, options.only.split(",")))
    found = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    number, count = options.shard
    for name, shape, make in islice(tasks(), number, None, count):
        bare = Row(name=name, shape=shape, gpu=torch.cuda.get_device_name())
        if (wanted and name not in wanted) or bare.key in rows:
            continue
        if time.monotonic() - started > options.seconds:
            sys.stderr.write("time is over: call again for the rows that are missing\n")
            return
        begun = time.monotonic()
        try:
            row = kept[bare.key] = measured(bare, make)
        except Exception:  # noqa: BLE001 (one row must not cost the others: it stays missing)
            sys.stderr.write(f"{bare.key} failed\n{traceback.format_exc()}")
            continue
        torch.cuda.empty_cache()
        write_atomic(
            options.results, encode(Results(versions=found, rows=tuple(kept.values()))) + b"\n"
        )
        sys.stderr.write(f"{time.monotonic() - begun:5.1f} s  {line(row)}\n")


def wanted_keys() -> list[str]:
    """The keys of all rows that there are to measure, in their order."""
    return [Row(name=name, shape=shape, gpu="").key for name, shape, _ in tasks()]


def tasks() -> Iterator[tuple[str, tuple[int, ...], Callable[[], Any]]]:
    """Name, shape and a maker of every row: stored plans first."""
    for path in sorted(STORED.glob("*.json")):
        plan = load(path, FusionPlan)
        site = plan.sites[0]
        yield (
            f"plan:{plan.id[:8]}",
            (*site.row_sizes, site.columns),
            partial(kernel_tasks.stored, plan),
        )
    for name, pattern in kernel_patterns.PATTERNS.items():
        for shape in pattern.shapes:
            yield name, shape, partial(kernel_tasks.forward, pattern, shape, CUDA)
    for name, pattern in kernel_patterns.PATTERNS.items():
        if pattern.differentiable:
            for shape in pattern.shapes[:BACKWARD_SHAPES]:
                make = partial(kernel_tasks.backward, pattern, shape, CUDA)
                yield f"{name}_backward", shape, make
    for name, pattern in kernel_random.random_patterns().items():
        (shape,) = pattern.shapes
        yield name, shape, partial(kernel_tasks.forward, pattern, shape, CUDA)
    for shape in SCANS:
        yield "scan", shape, partial(kernel_tasks.scanned, shape, CUDA)
    yield from kernel_groups.rows(CUDA)


def measured(bare: Row, make: Callable[[], Any]) -> Row:
    """One row; what cannot be done is said in it."""
    torch._dynamo.reset()  # one function is compiled for many shapes
    try:
        made = make()
    except AdvisorError as error:
        return replace(bare, why=error.line())
    if isinstance(made, kernel_groups.Calls):
        return compared(bare, made)
    if made.plan is None:
        return replace(bare, why="no program of ours: a family that is not generated yet")
    gpu = find_gpu(torch.cuda.get_device_name())
    try:
        configs = without_spills(made.plan, gpu) if gpu is not None else ()
        if not configs:
            return replace(bare, why="every configuration spills, or the GPU is not in the table")
        return timed(bare, made, made.plan, configs)
    except AdvisorError as error:
        return replace(bare, why=error.line())


def timed(
    bare: Row, task: kernel_tasks.Task, plan: FusionPlan, configs: Sequence[LaunchConfig]
) -> Row:
    """The search over configurations, then the fastest beside the others."""
    site = plan.sites[0]
    sources = {scheme: scheme_source(plan, scheme) for scheme in {c.scheme for c in configs}}
    given = in_place_of(site_inputs(plan, site, CUDA), (*task.inputs, *task.upstream))
    calls = configured_calls(plan, sources, CUDA, configs, given)
    best, searched = fastest(calls, gpu_recorder, CUDA)
    moved = moved_bytes(plan)
    source = torch.empty(moved // 2, dtype=torch.uint8, device=CUDA).random_()
    large = torch.empty(PEAK_COPY_BYTES // 2, dtype=torch.uint8, device=CUDA).random_()
    target, large_target = torch.empty_like(source), torch.empty_like(large)
    variants: dict[str, Callable[[], object]] = {
        "ours": calls[best],
        "eager": task.eager,
        "inductor": task.compiled(None),
        TUNED: task.compiled(TUNED),
        "copy": lambda: target.copy_(source),
        "peak": lambda: large_target.copy_(large),
        **kernel_liger.calls(bare.name, task.inputs),
    }
    with torch.no_grad():
        for call in variants.values():
            call()
        measured = gpu_recorder(variants, TIMING_ROUNDS, flusher(CUDA))
        warm = timing(gpu_recorder({"ours": calls[best]}, TIMING_ROUNDS)["ours"])
        error = worst_error(plan, given, calls[best]())
    times = {name: timing(values) for name, values in measured.items()}
    columns = {f"{name}_ns": t.median_ns for name, t in times.items() if f"{name}_ns" in FIELDS}
    return replace(
        bare,
        bytes=moved,
        covers=task.covers,
        config=best,
        plan=plan,
        launch=next(config for config in configs if config.label() == best),
        day=datetime.date.today().isoformat(),
        triton=triton_version(),
        **columns,
        warm_ns=warm.median_ns,
        predicted_ns=predicted_ns(plan),
        launch_ns=host_time_ns(calls[best]),
        error=error,
        configs=searched,
        others={n: t.median_ns for n, t in times.items() if f"{n}_ns" not in FIELDS},
        intervals={name: (found.low_ns, found.high_ns) for name, found in times.items()},
        why="" if error <= TOLERANCE else "the result is wrong",
    )


def in_place_of(
    given: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The inputs of a plan, in the memory of a pattern's where one has as many of such elements.

    All ways to do a row read the same places then: other places alone make up to 4 %.
    """
    free = [tensor.detach() for tensor in others if tensor.is_contiguous()]
    found = []
    for own in given:
        alike = (n for n, t in enumerate(free) if (t.dtype, t.numel()) == (own.dtype, own.numel()))
        place = next(alike, None) if own.is_contiguous() else None
        found.append(own if place is None else free.pop(place).view(own.shape))
    return found


def moved_bytes(plan: FusionPlan) -> int:
    """What must be moved: every tensor once, and again what is reduced in rows beyond the L2."""
    site, gpu = plan.sites[0], find_gpu(torch.cuda.get_device_name())
    needed = site_bytes(plan, site)
    if plan.members or "split" not in schemes_of(plan) or gpu is None or gpu.l2_bytes is None:
        return needed
    row_bytes = bytes_read_again(plan, "split") * site.columns
    return needed + row_bytes * site.rows if row_bytes > gpu.l2_bytes else needed


def predicted_ns(plan: FusionPlan) -> int | None:
    """What the kernel model says of the first site, by the calibration of this GPU."""
    gpu = find_gpu(torch.cuda.get_device_name())
    if gpu is None:
        return None
    once = replace(plan.sites[0], executions=1)
    return program_time(plan, once, gpu, load_calibration(gpu)).mid


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
    return replace(
        bare,
        bytes=calls.bytes,
        config="one launch",
        day=datetime.date.today().isoformat(),
        triton=triton_version(),
        **columns,
        others={n: t.median_ns for n, t in times.items() if f"{n}_ns" not in FIELDS},
        intervals={name: (found.low_ns, found.high_ns) for name, found in times.items()},
    )


def worst_error(plan: FusionPlan, given: list[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """The largest error of any output beside eager's ops, as `_apart` has it.

    Where eager itself is further from the exact results than ours are, ours beside these: op by op
    it rounds a long chain to bfloat16 a dozen times.
    """
    eager = evaluate(plan, given, "native")
    beside_eager = _apart(got, eager)
    if beside_eager <= TOLERANCE:
        return beside_eager
    exact = evaluate(plan, given, "exact")
    ours = _apart(got, exact)
    return ours if ours <= _apart(eager, exact) else beside_eager


def _apart(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest error of any output relative to its largest value; non-finite ones must agree.

    In eight bits it counts as the same number of last places of a bfloat16.
    """
    worst = 0.0
    for mine, want in zip(got, wanted, strict=True):
        truth = want.expand(mine.shape).double()
        apart = (mine.double() - truth).abs()[torch.isfinite(truth)]
        scale = truth[torch.isfinite(truth)].abs().max().clamp(min=1e-30)
        if mine.dtype.is_floating_point and mine.dtype.itemsize == 1:
            scale = scale * (torch.finfo(mine.dtype).eps / torch.finfo(torch.bfloat16).eps)
        worst = max(worst, float(apart.max() / scale)) if apart.numel() else worst
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
