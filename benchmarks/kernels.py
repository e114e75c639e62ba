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
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import kernel_groups
import kernel_liger
import kernel_patterns
import kernel_random
import kernel_tasks
import torch
from kernel_bounds import FAST, bound_rows
from msgspec.structs import replace

from advisor.errors import AdvisorError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import find_gpu
from advisor.model.base import Record, decode, encode, load
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
    SEARCH_ROUNDS,
    TIMING_ROUNDS,
    configured_calls,
    flusher,
    host_time_ns,
    site_inputs,
)
from analyzers.program_cost import program_time

HERE = Path(__file__).parent
RESULTS = HERE / "kernels.json"
STORED = HERE.parent / "sample_traces" / "runs" / "llama_train_compile" / "plans"
CUDA = torch.device("cuda")
# From so many bytes on a row has to reach the bar; how far it may be behind the best other.
LARGE_BYTES, SLOWER = 64_000_000, 1.02
HEAD = (
    "pattern", "shape", "MB", "ops", "copy", "ours", "of copy", "Inductor", "tuned", "Liger",
    "eager", "launch", "configuration",
)  # fmt: skip
TUNED = "max-autotune-no-cudagraphs"
# Of each pattern the first shapes go backward too.
BACKWARD_SHAPES = 2
SCANS = ((8, 64, 4096), (64, 32, 2048))
# A kernel that is wrong by more than the rounding of bfloat16 results has no time to report.
TOLERANCE = 0.02


class Row(Record, frozen=True, kw_only=True):
    """One pattern at one shape; `why` says why nothing of ours was timed.

    `covers` is (ops of the captured graph in our kernel, all of them); `configs` the median of
    every configuration tried; `others` of other ways to do it (Inductor tuned, Liger's kernels,
    PyTorch's own fused ones); `intervals` the spread of what was timed beside it. Caches are cold
    but for `warm_ns`, of which `predicted_ns` is the kernel model's; `launch_ns` is host time.
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
    warm_ns: int | None = None
    predicted_ns: int | None = None
    launch_ns: int | None = None
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
    parser.add_argument("--shard", type=shard, default=(0, 1), metavar="I/N", help="of N, the Ith")
    parser.add_argument("--merge", type=Path, nargs="+", help="files of results to take rows from")
    options = parser.parse_args(arguments)
    if options.merge:
        merge(options.merge, options.results)
    if options.table:
        sys.stdout.write(table(read(options.results)))
    if options.table or options.merge:
        return 0
    if not torch.cuda.is_available():
        sys.stderr.write("a GPU is needed; --table prints what was recorded\n")
        return 2
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
    order = [Row(name=name, shape=shape, gpu="").key for name, shape, _ in tasks()]
    versions = read(parts[0]).versions
    ordered = tuple(rows[key] for key in order if key in rows)
    write_atomic(path, encode(Results(versions=versions, rows=ordered)) + b"\n")


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
        return replaced(bare, why=error.line())
    if isinstance(made, kernel_groups.Calls):
        return compared(bare, made)
    if made.plan is None:
        return replaced(bare, why="no program of ours: a family that is not generated yet")
    gpu = find_gpu(torch.cuda.get_device_name())
    try:
        configs = without_spills(made.plan, gpu) if gpu is not None else ()
        if not configs:
            return replaced(bare, why="every configuration spills, or the GPU is not in the table")
        return timed(bare, made, made.plan, configs)
    except AdvisorError as error:
        return replaced(bare, why=error.line())


def timed(
    bare: Row, task: kernel_tasks.Task, plan: FusionPlan, configs: Sequence[LaunchConfig]
) -> Row:
    """The search over configurations, then the fastest beside the others."""
    site = plan.sites[0]
    sources = {scheme: scheme_source(plan, scheme) for scheme in {c.scheme for c in configs}}
    given = site_inputs(plan, site, CUDA)
    calls = configured_calls(plan, sources, CUDA, configs, given)
    searched = {
        label: timing(times).median_ns
        for label, times in gpu_recorder(calls, SEARCH_ROUNDS, flusher(CUDA)).items()
    }
    best = min(searched, key=searched.__getitem__)
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
    return replaced(
        bare,
        bytes=moved,
        covers=task.covers,
        config=best,
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


def moved_bytes(plan: FusionPlan) -> int:
    """What must be moved: every tensor once, and again what is reduced in rows beyond the L2."""
    site, gpu = plan.sites[0], find_gpu(torch.cuda.get_device_name())
    needed = site_bytes(plan, site)
    if plan.members or "split" not in schemes_of(plan) or gpu is None or gpu.l2_bytes is None:
        return needed
    again = bytes_read_again(plan, "split") * site.columns
    return needed + again * site.rows * (again > gpu.l2_bytes)


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
        "and Inductor run the whole pattern; `ops` says how much of it our kernel does. `launch`",
        "is the host's time for one. fp8 with one scale a tensor must read the tensor twice, and",
        "no cache holds it: `MB` and `copy` count both. Rows that are bound by arithmetic, by the",
        "count of `kernel_counts.md`, which was made before them, have `*` at their share.",
        "",
        f"| {' | '.join(HEAD)} |",
        "|---" * len(HEAD) + "|",
    ]
    lines += [_cells(row) for row in results.rows]
    versions = json.dumps(results.versions)
    return "\n".join([*lines, "", *_figures(results.rows), "", f"Versions: {versions}", ""])


def _cells(row: Row) -> str:
    shape = "×".join(map(str, row.shape))
    if row.ours_ns is None or row.copy_ns is None or row.bytes is None or row.why:
        return f"| {row.name} | {shape} |{' |' * (len(HEAD) - 3)} {row.why} |"
    others = dict(row.others)
    columns = [row.inductor_ns, others.pop(TUNED, None), others.pop("Liger", None), row.eager_ns]
    times = [f"{t / 1000:.1f}" if t is not None else "" for t in (*columns, row.launch_ns)]
    covers = "all" if row.covers is None else f"{row.covers[0]}/{row.covers[1]}"
    more = (f"{name} {taken / 1000:.1f}" for name, taken in others.items())
    mark = "*" if row.key in bound_rows() else ""
    cells = [
        row.name, shape, f"{row.bytes / 1e6:.0f}", covers, f"{row.copy_ns / 1000:.1f}",
        f"{row.ours_ns / 1000:.1f}", f"{row.copy_ns / row.ours_ns:.2f}{mark}", *times,
        "; ".join((row.config or "", *more)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _figures(rows: Sequence[Row]) -> list[str]:
    """What the bars are about: large rows, the best other, Inductor, the kernel model."""
    timed = [row for row in rows if row.ours_ns and row.copy_ns and not row.why]
    counted = bound_rows()
    every = [row for row in timed if (row.bytes or 0) >= LARGE_BYTES]
    large = [row for row in every if row.key not in counted]
    fast = [row for row in large if (row.copy_ns or 0) >= FAST * (row.ours_ns or 0)]
    whole = [row for row in timed if row.covers is None or row.covers[0] == row.covers[1]]
    behind = [row for row in whole if (row.ours_ns or 0) > SLOWER * min(_others(row))]
    ratios = [row.inductor_ns / (row.ours_ns or 1) for row in whole if row.inductor_ns]
    errors = [
        abs(row.predicted_ns - row.warm_ns) / row.warm_ns
        for row in timed
        if row.predicted_ns and row.warm_ns
    ]
    return [
        f"- {len(fast)} of {len(large)} rows of 64 MB and more that memory bounds reach "
        f"{FAST:.2f} of a copy's speed; not: {_names(large, fast)}",
        f"- {len(every) - len(large)} rows of that size are bound by arithmetic: "
        f"{_names(every, large)}",
        f"- {len(behind)} of {len(whole)} rows that our kernel does whole are more than 2 % behind "
        f"the best other: {_names(behind, [])}",
        f"- over Inductor, geometric mean of these: {geometric_mean(ratios):.2f}×"
        if ratios
        else "- over Inductor: not measured",
        f"- the kernel model, caches warm: {median(errors):.1%} off in the median of {len(errors)}"
        if errors
        else "- the kernel model: not measured",
    ]


def _others(row: Row) -> list[int]:
    found = (row.inductor_ns, row.eager_ns, *row.others.values())
    return [taken for taken in found if taken is not None]


def _names(rows: Sequence[Row], without: Sequence[Row]) -> str:
    return ", ".join(row.key for row in rows if row not in without) or "none"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
