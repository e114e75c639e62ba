"""How well the kernel model predicts kernels that ran: recorded traces against their prediction.

    python benchmarks/kernel_model.py [--fit] [--calibration FILE]

Every memory-bound kernel of PyTorch itself of at least 10 µs in the traces of an H200 (compiled
workloads without one are left out), joined to its op with shapes, dtypes and strides, and those of
the Nsight Compute files whose size can be told from the launch. No GPU is needed.

The constants of the model (`analyzers.eager_work.Instructions`, `TRIP_NS`, `L2_SPEEDUP`,
`L2_SHARE`) are fitted on one half of the traces (`--fit` finds and prints them; `--calibration`
takes those of the card as they were measured) and scored on the other half, and so are the spreads
by pattern that make the interval. The form of the model was chosen with all of them in sight.

Not modelled: matrix products, convolutions, attention, communication, and kernels whose accesses
depend on the data (gather, scatter, index_put, embedding gradients, losses) or that are one block.
The table says how many these are. Writes kernel_model.json and kernel_model.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import kernel_model_ncu
import msgspec
import pandas as pd
from descent import descended
from needed import need_traces

from advisor.hardware.calibration import (
    L2_SHARE,
    L2_SPEEDUP,
    TRIP_NS,
    BandwidthPoint,
    Calibration,
    default_calibration,
    read_calibration,
    residuals,
)
from advisor.hardware.gpus import gpu_by_key
from advisor.model.trace import Trace
from analyzers.eager_work import FITTED, Instructions, Launch, eager_work
from analyzers.kernel_roles import classify
from analyzers.recorded_ops import UNKNOWN_PLACE, RecordedOp, recorded_op
from collectors import read_trace

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", HERE.parent.parent / "shared"))
RECORDED = SHARED / "traces" / "h200"
# Both runs of the same workload on two GPUs are on one side: they are nearly the same kernels.
FITTED_ON = (
    "bert.eager", "ddp_onebucket.rank0", "ddp_onebucket.rank1", "ddp_overlap.rank0",
    "ddp_overlap.rank1", "llama_train.eager", "llama_train.inductor", "resnet50.eager",
    "ncu_probe_raw",
)  # fmt: skip
SCORED_ON = (
    "bert_cudagraph.eager", "dlrm_train.eager", "dlrm_train.inductor", "llama_decode.eager",
    "llama_prefill.eager", "mamba.eager", "unet.eager", "ncu_model_raw",
)  # fmt: skip
SHORTEST_NS = 10_000
PRIOR_CASES = 10
H200 = gpu_by_key("h200")
# Roles of kernels whose time goes to moving data, of those that PyTorch itself launches.
MEMORY_BOUND = frozenset({
    "pointwise", "optimizer", "norm", "reduction", "copy", "cast", "layout", "softmax", "embedding",
    "loss", "pool",
})  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One kernel that ran; `op` is None where its sizes are not known."""

    source: str
    name: str
    op: RecordedOp
    launch: Launch
    measured_ns: int
    warm: bool = True


@dataclass(frozen=True)
class Scored:
    """A kernel with its prediction."""

    kernel: Kernel
    pattern: str
    low: int
    mid: int
    high: int

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.kernel.measured_ns / self.mid


def main() -> None:
    """Read, fit if asked, score, write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="find the constants and print them")
    parser.add_argument("--calibration", type=Path, help="measured instead of the table's figures")
    options = parser.parse_args()
    need_traces(RECORDED)
    fitted = [kernel for name in FITTED_ON for kernel in recorded(name)]
    if options.fit:
        _fit(fitted)
        return
    scored = [kernel for name in SCORED_ON for kernel in recorded(name)]
    card = default_calibration(H200)
    if options.calibration:
        card = read_calibration(options.calibration, H200)
    result = measured_table(fitted, scored, card)
    (HERE / "kernel_model.json").write_text(json.dumps(result, indent=1) + "\n")
    (HERE / "kernel_model.md").write_text(_markdown(result))


def recorded(name: str) -> Iterator[Kernel]:
    """Kernels of a trace that are not plainly bound by arithmetic or communication."""
    if name.startswith("ncu"):
        for kernel, op, launch, ns in kernel_model_ncu.kernels(
            RECORDED / f"{name}.csv.gz", SHORTEST_NS
        ):
            yield Kernel(name, kernel, op, launch, ns, warm=False)
        return
    trace = read_trace(RECORDED / f"{name}.json.gz")
    for row in trace.kernels.itertuples():
        if row.duration_ns < SHORTEST_NS or pd.isna(row.op):
            continue
        op = _op(trace, int(row.op))
        if op is not None and _is_memory_bound(str(row.name), op.name):
            launch = Launch(
                kernel=str(row.name),
                blocks=int(row.grid_x) * int(row.grid_y) * int(row.grid_z),
                threads=int(row.block_x) * int(row.block_y) * int(row.block_z),
                registers=int(row.registers_per_thread),
            )
            yield Kernel(name, str(row.name), op, launch, int(row.duration_ns))


def _op(trace: Trace, index: int) -> RecordedOp | None:
    row = trace.ops.loc[index]
    columns = ("input_shapes", "input_dtypes", "input_strides", "input_values")
    return recorded_op(str(row["name"]), *(row[c] for c in columns), UNKNOWN_PLACE)


def _is_memory_bound(kernel: str, op: str) -> bool:
    return op.startswith("aten::") and classify(kernel, op).role in MEMORY_BOUND


def score(
    kernels: Iterable[Kernel], calibration: Calibration, counts: Instructions = FITTED
) -> tuple[list[Scored], list[Kernel]]:
    """(kernels with their prediction, kernels that have none)."""
    found, unknown = [], []
    for kernel in kernels:
        work = eager_work(kernel.op, kernel.launch, H200, counts)
        if work is None:
            unknown.append(kernel)
            continue
        time = replace(work, warm=kernel.warm).time(H200, calibration)
        found.append(Scored(kernel, work.pattern, time.low, time.mid, time.high))
    return found, unknown


def measured_table(
    fitted: Sequence[Kernel], scored: Sequence[Kernel], calibration: Calibration
) -> dict[str, Any]:
    """The figures of both halves; spreads come from the half that was fitted on."""
    known, unknown = score(fitted, calibration)
    other, other_unknown = score(scored, calibration)
    spreads = fitted_spreads(known)
    return {
        "fitted_on": FITTED_ON,
        "scored_on": SCORED_ON,
        "calibration": f"{calibration.provenance}: {calibration.source}",
        "constants": asdict(FITTED),
        "spreads": spreads,
        "fitted": _half(known, unknown, spreads),
        "scored": _half(other, other_unknown, spreads),
    }


def fitted_spreads(known: Sequence[Scored]) -> dict[str, tuple[float, float]]:
    """10 % and 90 % quantiles of measured over predicted time, of every pattern.

    A step repeats few different kernels: a pattern of few cases (ops with their shapes) is widened
    towards the quantiles of all patterns, with a weight of `PRIOR_CASES` cases; never narrowed.
    """
    below, above = _quantiles(known)
    found = {}
    for pattern, rows in _by(known, lambda s: s.pattern).items():
        low, high = _quantiles(rows)
        cases = len(_by(rows, _case))
        weight = cases / (cases + PRIOR_CASES)
        found[pattern] = (
            round(min(low, weight * low + (1 - weight) * below), 3),
            round(max(high, weight * high + (1 - weight) * above), 3),
        )
    return found


def _quantiles(rows: Sequence[Scored]) -> tuple[float, float]:
    return residuals([s.mid for s in rows], [s.kernel.measured_ns for s in rows])


def _case(row: Scored) -> str:
    """What makes two kernels the same: the op with its arguments, and the launch."""
    return f"{row.kernel.op} {row.kernel.launch}"


def _half(
    known: Sequence[Scored], unknown: Sequence[Kernel], spreads: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    names = ((k.op.name, k.name) for k in unknown)
    left: dict[str, int] = defaultdict(int)
    for op, _ in names:
        left[op] += 1
    return {
        "all": _row(known, spreads),
        "by_op": {k: _row(v, spreads) for k, v in _by(known, lambda s: s.kernel.op.name).items()},
        "by_pattern": {k: _row(v, spreads) for k, v in _by(known, lambda s: s.pattern).items()},
        "by_trace": {k: _row(v, spreads) for k, v in _by(known, lambda s: s.kernel.source).items()},
        "not_modelled": dict(sorted(left.items())),
        "not_modelled_time_share": _time(unknown) / max(_time(unknown) + _time(known), 1),
    }


def _time(kernels: Sequence[Kernel] | Sequence[Scored]) -> int:
    return sum((k.kernel if isinstance(k, Scored) else k).measured_ns for k in kernels)


def _row(rows: Sequence[Scored], spreads: dict[str, tuple[float, float]]) -> dict[str, float]:
    errors = [abs(1 / s.ratio - 1) for s in rows]
    inside = [spreads[s.pattern][0] <= s.ratio <= spreads[s.pattern][1] for s in rows]
    cases: dict[str, list[bool]] = defaultdict(list)
    for row, hit in zip(rows, inside, strict=True):
        cases[_case(row)].append(hit)
    return {
        "kernels": len(rows),
        "cases": len(cases),
        "median_error": statistics.median(errors),
        "within_15_percent": sum(error <= 0.15 for error in errors) / len(rows),
        "median_ratio": statistics.median(s.ratio for s in rows),
        "coverage": sum(inside) / len(rows),
        "case_coverage": statistics.mean(sum(hits) / len(hits) for hits in cases.values()),
    }


def _by(rows: Iterable[Scored], key: Callable[[Scored], str]) -> dict[str, list[Scored]]:
    found: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(sorted(found.items()))


def _fit(kernels: Sequence[Kernel]) -> None:
    """Coordinate descent on the mean absolute log error of every (pattern, op), by root of count.

    `trip_ns` and `l2_share` are constants of the calibration; `speedup …` what `L2_SPEEDUP` adds to
    1 at that share of L2.
    """
    values = {**asdict(FITTED), "trip_ns": float(TRIP_NS), "l2_share": L2_SHARE}
    # No kernel is as small as the first point; the last is 1 by definition.
    values |= {f"speedup {share}": speedup - 1 for share, speedup in L2_SPEEDUP[1:-1]}
    values = descended(values, lambda tried: _loss(kernels, tried))
    for name, value in values.items():
        sys.stdout.write(f"{name}: {value:.4g}\n")


def _loss(kernels: Sequence[Kernel], values: dict[str, float]) -> float:
    names = asdict(FITTED)
    counts = Instructions(**{name: values[name] for name in names})
    known, _ = score(kernels, _varied(values), counts)
    groups = _by(known, lambda s: f"{s.pattern} {s.kernel.op.name}").values()
    return sum(
        math.sqrt(len(rows)) * statistics.mean(min(abs(math.log(s.ratio)), 1) for s in rows)
        for rows in groups
    )


def _varied(values: dict[str, float]) -> Calibration:
    base = default_calibration(H200)
    top = base.curve[-1].bytes_per_s
    curve = tuple(
        BandwidthPoint(
            bytes=point.bytes,
            bytes_per_s=round(top * (1 + values.get(f"speedup {share}", speedup - 1))),
        )
        for (share, speedup), point in zip(L2_SPEEDUP, base.curve, strict=True)
    )
    return msgspec.structs.replace(
        base,
        curve=curve,
        trip_ns=round(values["trip_ns"]),
        l2_bytes_per_s=round(values["l2_share"] * top),
    )


def _markdown(result: dict[str, Any]) -> str:
    lines = [
        "# The kernel model against kernels that ran",
        "",
        "Made by `python benchmarks/kernel_model.py`; the method is described there. NVIDIA H200,",
        "kernels of at least 10 µs. Error: |predicted / measured - 1|. Coverage: the share inside",
        "the 80 % interval, whose bounds are quantiles of the half that the model was fitted on;",
        "of cases: every op with its shapes counted once, however often it ran.",
        "",
        f"Calibration {result['calibration']}.",
    ]
    for half, sources in (("scored", result["scored_on"]), ("fitted", result["fitted_on"])):
        title = "Scored on (nothing was fitted here)" if half == "scored" else "Fitted on"
        lines += ["", f"## {title}", "", ", ".join(sources), ""]
        lines += [*_HEAD, _line("**all**", result[half]["all"])]
        for part in ("by_trace", "by_pattern", "by_op"):
            lines += [_line(name, row) for name, row in result[half][part].items()]
        left = ", ".join(f"{op} {n}" for op, n in result[half]["not_modelled"].items())
        share = result[half]["not_modelled_time_share"]
        lines += ["", f"Not modelled ({100 * share:.1f} % of the time): {left or 'none'}."]
    return "\n".join(lines) + "\n"


_HEAD = (
    "| kernels of | count | cases | median error | within 15 % | measured / predicted | coverage"
    " | of cases |",
    "|---|---|---|---|---|---|---|---|",
)


def _line(name: str, row: dict[str, float]) -> str:
    return (
        f"| {name} | {row['kernels']} | {row['cases']} | {100 * row['median_error']:.1f} %"
        f" | {100 * row['within_15_percent']:.0f} % | {row['median_ratio']:.2f}"
        f" | {100 * row['coverage']:.0f} % | {100 * row['case_coverage']:.0f} % |"
    )


if __name__ == "__main__":
    main()
